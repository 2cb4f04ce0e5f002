"""What becomes of a text for every draft and every length that a schedule may leave of
it, enumerated once; the law under any schedule is then a sum.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from enumeration import Game, Play, coin_cells, judge_all, rows, token_cells
from scripted import Drafts, Text, V, all_drafts

from specdec_jax import _types
from specdec_jax._schedule_types import Schedule

CHAIN = (-1, 0, 1, 2)
DEPTH = len(CHAIN) - 1


class World(NamedTuple):
    """One row: every draft n that may follow its text."""

    text: Text
    draft: Drafts
    law: np.ndarray  # "n DEPTH+1 V V V": of three tokens, if that many nodes are left
    wanted: np.ndarray  # "V V V": the target's


def world(rule: _types.Rule, kind: _types.Kind, play: Play, which: int) -> World:
    """The next three tokens of one row of `play`: those of one step, and what the
    target says after them.
    """
    game = Game(rule, CHAIN, kind)
    text, target = play.texts[which], play.laws[which]
    draft = all_drafts(CHAIN, kind, text)
    count = len(draft.weight)
    length = np.repeat(np.arange(DEPTH + 1), count)
    cut = rows(draft, np.tile(np.arange(count), DEPTH + 1))
    cut = cut._replace(valid=cut.valid & (np.arange(DEPTH + 1) <= length[:, None]))
    cells = token_cells if rule == "match" else coin_cells
    where = np.full(len(length), which)
    case, given, share = cells(game, play, where, cut)
    drafted = rows(cut, case)
    judged = judge_all(
        game, play, where[case], drafted, given, np.arange(len(case)) % V
    )
    law = np.zeros((len(length), V, V, V))
    for i, kept in enumerate(judged.length):
        said = tuple(drafted.tokens[i, judged.path[i, 1:kept]].tolist())
        law[case[i]] += share[i] * completed(text, said, judged.law[i], target)
    law = law.reshape(DEPTH + 1, count, V, V, V).swapaxes(0, 1)
    return World(text, draft, law, completed(text, (), target(text), target))


def completed(
    text: Text, said: Text, following: np.ndarray, target: Callable
) -> np.ndarray:
    """The law of three tokens that begin with `said`, go on with a token of that law,
    and then as the target wants.
    """
    law = np.zeros((V, V, V))
    for token in range(V):
        begun = (*said, token)[:3]
        share = following[token] if len(said) < 3 else 1 / V
        if share > 0:
            law[begun] += share * after((*text, *begun), 3 - len(begun), target)
    return law


def after(text: Text, count: int, target: Callable) -> Any:
    """The target's law of the next `count` tokens."""
    if count == 0:
        return 1.0
    return np.array(
        [p * after((*text, i), count - 1, target) for i, p in enumerate(target(text))]
    )


# --- Schedules ------------------------------------------------------------------------


def survivals(here: World, confidence: np.ndarray, toy: Any) -> np.ndarray:
    """Of each draft's nodes below the root, "n DEPTH": node k's confidence is that of
    the tokens above it.
    """
    each = [
        [
            confidence[toy.context(here.text + tuple(tokens[1 : k + 1]))]
            for k in range(DEPTH)
        ]
        for tokens in here.draft.tokens.tolist()
    ]
    return np.cumprod(np.where(here.draft.valid[:, 1:], each, 0.0), axis=1)


def drafts_of(worlds: Sequence[World], confidence: np.ndarray, toy: Any) -> Any:
    """Every combination of the rows' drafts as `Draft`s "n B N", and their number in
    each world.
    """
    counts = [len(here.draft.weight) for here in worlds]
    which = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1)
    which = which.reshape(-1, len(worlds))
    parts = []
    for here, index in zip(worlds, which.T, strict=True):
        a = survivals(here, confidence, toy)
        above = np.concatenate([np.ones((len(a), 1)), a[:, :-1]], axis=1)
        each = np.divide(a, above, out=np.zeros_like(a), where=above > 0)
        each = np.concatenate([np.ones((len(a), 1)), each], axis=1)
        draft = rows(here.draft, index)
        parts.append((draft.tokens, draft.parents, draft.valid, each[index]))
    tokens, parents, valid, each = (np.stack(x, 1) for x in zip(*parts, strict=True))
    draft = _types.Draft(
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(parents, jnp.int32),
        jnp.asarray(valid),
        None,
        jnp.asarray(each, jnp.float32),
    )
    return which, draft


def lengths(schedule: Schedule, state: Any, draft: Any) -> np.ndarray:
    """How many nodes below the root the shipped rule leaves of each draft, "n B"."""

    def one(draft: Any) -> tuple[jax.Array, jax.Array]:
        batch = draft.tokens.shape[0]
        choice = schedule.choose(state, draft, jnp.ones(batch, jnp.bool_))
        return choice.chosen, choice.valid

    index, valid = map(np.asarray, jax.jit(jax.vmap(one))(draft))
    nodes = np.arange(valid.shape[-1])
    valid = valid & (nodes < np.array(schedule.widths)[index][:, None, None])
    assert (np.sort(~valid, axis=-1) == ~valid).all(), "not closed under parents"
    return valid[..., 1:].sum(-1)


def distance(worlds: Sequence[World], which: np.ndarray, length: np.ndarray) -> float:
    """Total variation between the joint law of all rows and the target's."""
    weights = np.prod(
        [here.draft.weight[i] for here, i in zip(worlds, which.T, strict=True)], 0
    )
    laws = [
        here.law[i, kept].reshape(len(which), -1)
        for here, i, kept in zip(worlds, which.T, length.T, strict=True)
    ]
    wanted = [here.wanted.reshape(-1) for here in worlds]
    if len(worlds) == 1:
        found, target = weights @ laws[0], wanted[0]
    else:
        found = np.einsum("n,na,nb->ab", weights, *laws)
        target = np.einsum("a,b->ab", *wanted)
    return float(np.abs(found - target).sum() / 2)
