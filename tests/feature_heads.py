"""Heads on the toy of three tokens, and every draft that they may make after a text:
shipped drafters, with their draws given.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from enumeration import SLOTS
from jaxtyping import Array
from scripted import TOY, Drafts, Text, V

import specdec_jax as sd
from specdec_jax import _sampling, _tree, _types
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax._options import make_request
from specdec_jax.nn import (
    Eagle3Config,
    EagleConfig,
    InjectedConfig,
    MarkovConfig,
)

WIDTH = TOY.width
SIZES: dict[str, Any] = {
    "width": WIDTH,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_width": 4,
    "mlp_width": 8,
}
HEAD = EagleConfig(**SIZES)
HEAD3 = Eagle3Config(**SIZES, feature_width=3 * WIDTH)
FEW3 = dataclasses.replace(HEAD3, draft_vocab_size=2)  # of the three tokens
TAPS = (-1, 0, "final")
CHAIN, TREE = StaticTree("0 00"), StaticTree("0 1 00 01")
WIDE = StaticTree("0 1 2 00 10")  # a child for every token there is
GROWN = GrownTree(num_nodes=4, depth=2, width=2)
EAGLES: dict[str, Any] = {
    "eagle": sd.Eagle(HEAD, TREE),
    "eagle, drawn": sd.Eagle(HEAD, TREE, kind="without_replacement"),
    "eagle, drawn wide": sd.Eagle(HEAD, WIDE, kind="without_replacement"),
    "eagle 2": sd.Eagle(HEAD, GROWN),
    "eagle 3": sd.Eagle3(HEAD3, GROWN, taps=TAPS),
    "eagle 3 of few": sd.Eagle3(FEW3, GROWN, taps=TAPS),
    "eagle 3, tree": sd.Eagle3(FEW3, TREE, taps=TAPS),
    "eagle 3, chain": sd.Eagle3(HEAD3, CHAIN, taps=TAPS),
    "eagle 3, drawn chain": sd.Eagle3(
        FEW3, CHAIN, kind="without_replacement", taps=TAPS
    ),
    "eagle 3, drawn wide": sd.Eagle3(FEW3, WIDE, kind="without_replacement", taps=TAPS),
}

BODY = InjectedConfig(
    **SIZES, num_layers=1, feature_width=2 * WIDTH, block_size=3, mask_id=1
)
SPARK = dataclasses.replace(
    BODY,
    block_size=2,
    layout="anchor_first",
    markov=MarkovConfig(rank=3),
    confidence="state and markov",
)
FEW_SPARK = dataclasses.replace(
    SPARK,
    own_head=True,
    draft_vocab_size=2,
    markov=MarkovConfig(rank=3, kind="rnn"),
    confidence="state",
)
PRUNED = dataclasses.replace(SPARK, markov=MarkovConfig(rank=3, kind="gated", top_k=2))
BLOCK_TAPS = (-1, 0)
BLOCKS: dict[str, Any] = {
    "dflash": sd.DFlash(BODY, BLOCK_TAPS),
    "dflash, drawn": sd.DFlash(BODY, BLOCK_TAPS, kind="iid"),
    "dflash, tree": sd.DFlash(BODY, BLOCK_TAPS, tree=sd.MarginalTree(4)),
    "dspark": sd.DSpark(SPARK, BLOCK_TAPS),
    "dspark, drawn": sd.DSpark(SPARK, BLOCK_TAPS, kind="iid"),
    "dspark of few, drawn": sd.DSpark(FEW_SPARK, BLOCK_TAPS, kind="iid"),
    "dspark pruned, drawn": sd.DSpark(PRUNED, BLOCK_TAPS, kind="iid"),
}
HEADS = EAGLES | BLOCKS


def params_of(drafter: Any, target: sd.Toy = TOY, *, seed: int = 0) -> sd.Params:
    """A random head, and the table that it reads its own features by: not the
    target's, whose impossible tokens would make it certain of everything.
    """
    keys = jax.random.split(jax.random.key(seed))
    params = drafter.init_params(keys[0], target)
    if "tokens" in params:  # it does not know token 1
        params["tokens"] = jnp.arange(0, 2 * len(params["tokens"]), 2, dtype=jnp.int32)
    return sd.Params(target.init_params(keys[1]), params)


@functools.partial(jax.jit, static_argnames="drafter")
def _draft(
    drafter: Any,
    params: sd.Params,
    tokens: Array,
    length: Array,
    options: _types.Options,
    keys: Array,
    noise: Array,
) -> _types.Draft:
    """What the drafter proposes after one text, once a row of `noise`, which is all
    that it draws by.
    """
    batch = noise.shape[0]
    block = _tree.causal_block(jnp.broadcast_to(tokens, (batch, SLOTS)))
    output = TOY.forward(
        params.target, TOY.init_cache(batch, SLOTS), block, drafter.taps
    )
    base = jnp.broadcast_to(length - 1, (batch,))
    root = jnp.broadcast_to(tokens[length - 1], (batch,))
    read = _types.Accepted(block.tokens, output.features, base, root)
    state = drafter.update(TOY, params, drafter.init(batch, SLOTS), read)
    sampler = _types.Sampler(options, keys, base, base, None, None, None)

    def given(_, role, slot, *, vocab_size):
        assert role == _sampling.DRAFT
        return noise[:, slot]

    with mock.patch.object(_sampling, "step_noise", given):
        return drafter.draft(TOY, params, state, root, sampler)[0]


@dataclasses.dataclass(frozen=True)
class HeadDrafts:
    """`Game.drafts` of a shipped drafter.

    Row i of `sampling` is for texts that begin with the first token of prompt i. A
    draft's probability is what the law that came back with it says of its draws:
    `slots` says of each slot which law it draws from, and how many tokens in turn.
    """

    drafter: Any
    params: sd.Params
    prompts: Sequence[Text]
    sampling: sd.Sampling
    slots: Sequence[tuple[int, int]]

    def __call__(self, parents: Sequence[int], kind: _types.Kind, text: Text) -> Drafts:
        orders = [
            list(itertools.permutations(range(V), draws)) for _, draws in self.slots
        ]
        cases = list(itertools.product(*orders))
        noise = np.zeros((len(cases), max(1, len(self.slots)), V), np.float32)
        for case, drawn in enumerate(cases):
            for slot, order in enumerate(drawn):
                noise[case, slot, list(order)] = 1e4 * np.arange(len(order), 0, -1)
        draft = jax.tree.map(np.asarray, self.draft(text, noise))
        count = len(cases)
        log_q = np.full((*draft.tokens.shape, V), np.nan)
        weight = np.ones(count)
        if draft.proposal is not None:
            laws, row = draft.proposal
            for node in range(1, draft.tokens.shape[1]):
                every = np.arange(count)
                log_q[every, draft.parents[:, node]] = laws[every, row[:, node]]
            for case, drawn in enumerate(cases):
                for (row, _), order in zip(self.slots, drawn, strict=True):
                    weight[case] *= in_order(np.exp(laws[case, row]), order)
        happens = weight > 0
        experiment = np.arange(count) * (draft.proposal is None)
        return Drafts(
            *(
                x[happens]
                for x in (
                    draft.tokens,
                    draft.parents,
                    draft.valid,
                    log_q,
                    weight,
                    experiment,
                )
            )
        )

    def draft(self, text: Text, noise: np.ndarray) -> _types.Draft:
        """As the step would ask for it after a text; slot i draws by noise "n i V"."""
        batch = len(self.prompts)
        row = [prompt[0] for prompt in self.prompts].index(text[0])
        request = make_request(self.sampling, batch=batch, vocab_size=V)
        options = jax.tree.map(
            lambda x: jnp.repeat(x[row : row + 1], len(noise), axis=0), request.options
        )
        tokens = np.zeros(SLOTS, np.int32)
        tokens[: len(text)] = text
        keys = jnp.repeat(request.keys[:1], len(noise))
        return _draft(
            self.drafter,
            self.params,
            jnp.asarray(tokens),
            jnp.array(len(text), jnp.int32),
            options,
            keys,
            jnp.asarray(noise, jnp.float32),
        )


def in_order(law: np.ndarray, order: Sequence[int]) -> float:
    """The probability of drawing these tokens in turn, none twice. Where no token is
    left that could be drawn, something has to stand there: the lowest ids.
    """
    left, weight = law.astype(np.float64), 1.0
    for i, token in enumerate(order):
        if left.sum() <= 0:
            others = [x for x in range(len(law)) if x not in order[:i]]
            return weight * (list(order[i:]) == others[: len(order) - i])
        weight *= left[token] / left.sum()
        left[token] = 0
    return weight


def slots_of(drafter: Any) -> list[tuple[int, int]]:
    """A slot for each node with children, and a law."""
    if drafter.kind == "points":
        return []
    if drafter.kind == "iid":  # a chain: one draw of each law
        return [(i, 1) for i in range(drafter.max_depth)]
    parents = list(drafter.tree.parents)
    inner = sorted(set(parents) - {-1})
    return [(i, parents.count(node)) for i, node in enumerate(inner)]


def parents_of(drafter: Any) -> tuple[int, ...]:
    """The tree's, or one of as many nodes that is as deep."""
    tree = getattr(drafter, "tree", None)
    if isinstance(tree, StaticTree):
        return tree.parents
    return (
        *range(-1, drafter.max_depth),
        *[0] * (drafter.num_nodes - 1 - drafter.max_depth),
    )


def drawn_laws(drafts: HeadDrafts, text: Text) -> tuple[np.ndarray, np.ndarray]:
    """What each node with children truly draws its first child from, and the law that
    came back: twice "inner nodes V", with all draws but that one the same.

    By how much noise the choice between two tokens turns, found by bisection.
    """
    parents = list(parents_of(drafts.drafter))
    inner = sorted(set(parents) - {-1})
    slot, other = (
        x.ravel() for x in np.indices((len(inner), V))
    )  # rows: token 0 against `other`
    row = np.arange(len(slot))
    noise = np.zeros((len(row), len(inner), V), np.float32)
    noise[:, :] = 1e4 * np.arange(V, 0, -1)
    noise[row, slot] = -1e4
    noise[row, slot, other] = 0
    child = np.array([parents.index(node) for node in inner])[slot]
    low, high = np.full(len(row), -60.0), np.full(len(row), 60.0)

    def draft_at(middle: np.ndarray) -> _types.Draft:
        noise[row, slot, 0] = middle
        return jax.tree.map(np.asarray, drafts.draft(text, noise))

    for _ in range(40):
        middle = (low + high) / 2
        is_enough = draft_at(middle).tokens[row, child] == 0
        low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
    odds = np.exp(high.reshape(len(inner), V))
    odds[:, 0] = 1
    proposal = draft_at(high).proposal
    assert proposal is not None
    said = np.exp(proposal.log_q[row, proposal.row[row, child]])
    return odds / odds.sum(1, keepdims=True), said.reshape(len(inner), V, V)[:, 1]
