"""A target and a drafter of three tokens whose laws are tables, and every draft that
may follow a text.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import specdec_jax as sd
from specdec_jax import _run, _stats, _types

V = 3
TOY = sd.Toy(vocab_size=V)

CHAIN = (-1, 0, 1)
TREE = (-1, 0, 1, 0, 1)  # siblings need not be neighbours
STAR = (-1, 0, 0)

Text = tuple[int, ...]
Law = Callable[[Text], np.ndarray]  # of the token after a text, in float64


def table(seed: int, vocab_size: int = V) -> dict[str, np.ndarray]:
    """Logits of a `Toy`; a fifth of the tokens have a probability of exactly zero."""
    random = np.random.default_rng(seed)
    logits = random.normal(0.0, 1.5, (TOY.num_contexts, vocab_size))
    logits[random.random(logits.shape) < 0.2] = -200.0
    return {"logits": logits.astype(np.float32)}


P, Q = table(1), table(2)  # the target's and the drafter's


@functools.cache
def q_law(text: Text) -> np.ndarray:
    return TOY.law(Q, text)


@dataclasses.dataclass(frozen=True)
class Scripted:
    """A drafter whose state is the draft that it proposes."""

    num_nodes: int
    max_depth: int
    kind: _types.Kind
    can_pass: bool = False
    taps: tuple[int | str, ...] = ()

    def init(self, batch: int, slots: int) -> Any:
        raise NotImplementedError

    def draft(self, target, params, state, root, sampler) -> tuple[_types.Draft, Any]:
        return state, state

    def update(self, target, params, state, accepted) -> Any:
        return state


class Drafts(NamedTuple):
    """Every draft after one text."""

    tokens: np.ndarray  # "n N"
    parents: np.ndarray  # "n N"
    valid: np.ndarray  # "n N"
    log_q: np.ndarray  # "n N V": what a node's children were drawn from; else NaN
    weight: np.ndarray  # "n": its probability
    # "n": drafts of one number are the outcomes of one experiment. Chosen drafts are an
    # experiment each: the law must hold for every one of them.
    group: np.ndarray


def path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from below the root to `node`."""
    return [] if node == 0 else [*path(parents, parents[node]), node]


def all_drafts(
    parents: Sequence[int],
    kind: _types.Kind,
    text: Text,
    law: Law = q_law,
    is_valid_beyond: bool = False,
) -> Drafts:
    """Draw node after node, in order, every token that can be drawn.

    A node for which nothing is drawn is not valid, and holds some token. That is so for
    nodes of even number below a token 0 (presence may depend on what lies above), and
    where the law has no token left, unless `is_valid_beyond` says that it is valid all
    the same. A law of NaN draws token 0, as an argmax does.
    """

    def after(tokens: list[int], node: int) -> Text:
        return text + tuple(tokens[i] for i in path(parents, node))

    cases = [([text[-1]], [True], 1.0)]
    for node, parent in list(enumerate(parents))[1:]:
        grown = []
        for tokens, valid, weight in cases:
            q = np.ones(V) if kind == "points" else law(after(tokens, parent)).copy()
            q = np.array([1.0, 0.0, 0.0]) if np.isnan(q).any() else q
            rarest = int(q.argmin())
            if kind == "without_replacement":
                for i in range(1, node):
                    if parents[i] == parent and valid[i]:
                        q[tokens[i]] = 0
                q /= max(q.sum(), 1e-300)
            is_withheld = parent > 0 and tokens[parent] == 0 and node % 2 == 0
            if is_withheld or not q.any():
                is_valid = is_valid_beyond and not is_withheld
                grown.append(([*tokens, rarest], [*valid, is_valid], weight))
                continue
            for token in np.flatnonzero(q).tolist():
                grown.append(([*tokens, token], [*valid, True], weight * q[token]))
        cases = grown
    log_q = np.full((len(cases), len(parents), V), np.nan)
    if kind != "points":
        for case, (tokens, _, _) in enumerate(cases):
            for parent in set(parents[1:]):
                with np.errstate(divide="ignore"):
                    log_q[case, parent] = np.log(law(after(tokens, parent)))
    tokens, valid, weight = (np.array(x) for x in zip(*cases, strict=True))
    every = np.arange(len(cases))
    shape = np.tile(parents, (len(cases), 1))
    return Drafts(tokens, shape, valid, log_q, weight, every * (kind == "points"))


no_stats = functools.cache(_stats.init_stats)


def propose(
    drafter: Scripted,
    run: _run.Run,
    tokens: np.ndarray,
    parents: np.ndarray,
    valid: np.ndarray,
    log_q: np.ndarray | None = None,
) -> _run.Run:
    """The same rows, with the draft that the drafter will propose to each."""
    tokens, parents = tokens.astype(np.int32), parents.astype(np.int32)
    proposal = None
    if log_q is not None:
        row = jnp.asarray(np.maximum(parents, 0))
        proposal = _types.Proposal(jnp.asarray(log_q, jnp.float32), row)
    draft = _types.Draft(
        jnp.asarray(tokens), jnp.asarray(parents), jnp.asarray(valid), proposal
    )
    return run._replace(
        state=run.state._replace(drafter=draft),
        stats=no_stats(len(tokens), drafter.max_depth + 1),
    )
