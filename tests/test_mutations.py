"""What must break the theorem does: each change, to the shipped source or to how drafts
are drawn, moves the enumerated law by more than a thousandth.

A test that cannot fail is a defect; these are the proof that `test_lossless` can.
"""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from enumeration import PROMPTS, Game, Play, begin, errors, reference, rows, token_cells
from scripted import CHAIN, STAR, TREE, Drafts, Text, V, all_drafts, q_law

import specdec_jax as sd
from specdec_jax import _sampling, _types, _verify

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def play() -> Play:
    temperatures = (1.0, 1.6, 0.7)
    laws = [
        reference(prompt, temperature=temperature)
        for prompt, temperature in zip(PROMPTS, temperatures, strict=True)
    ]
    return begin(PROMPTS, laws, sd.Sampling(temperature=temperatures))


def mutant(function: Callable, *changes: tuple[str, str]) -> Callable:
    """The function as its source reads after the changes."""
    source = inspect.getsource(function)
    for old, new in changes:
        assert source.count(old) == 1, f"the source no longer has {old!r} once"
        source = source.replace(old, new)
    names = dict(vars(_verify))
    exec(source, names)
    return names[function.__name__]


# --- Changes to the source ------------------------------------------------------------

CHANGES = {
    # rejection
    "residual dropped": (
        Game("rejection", CHAIN, "iid"),
        ("residual = jnp.maximum(p - q, 0.0)", "residual = p"),
    ),
    "coin against p, not p / q": (
        Game("rejection", CHAIN, "iid"),
        ("coins[:, i] < p_x / jnp.where(q_x > 0, q_x, 1.0)", "coins[:, i] < p_x"),
    ),
    "duplicates skipped, q as it was": (
        Game("rejection", STAR, "iid"),
        (
            "is_tried = draft.valid[:, i] &",
            "is_tried = draft.valid[:, i] & ~("
            "earlier[:, i] & (draft.tokens == token[:, None])).any(-1) &",
        ),
    ),
    "earlier siblings left in q": (
        Game("rejection", STAR, "without_replacement"),
        ("draft, i, earlier[:, i],", "draft, i, earlier[:, i] & False,"),
    ),
    "bonus from the root": (
        Game("rejection", TREE, "points"),
        ("jnp.exp(log_p[:, i])", "jnp.exp(log_p[:, 0])"),
    ),
    "nodes that are not valid tried": (
        Game("rejection", TREE, "iid"),
        ("is_tried = draft.valid[:, i] & (", "is_tried = ("),
    ),
    # block
    "prefix accepted by its weight": (
        Game("block", CHAIN, "iid"),
        (
            "jnp.where(whole > 0, mass / jnp.where(whole > 0, whole, 1.0), 0.0)",
            "weight",
        ),
    ),
    "weight not carried on": (
        Game("block", CHAIN, "iid"),
        ("jnp.minimum(weight * ratio, 1.0)", "jnp.minimum(ratio, 1.0)"),
    ),
    "residual of p, not of its weight": (
        Game("block", CHAIN, "iid"),
        ("weight[:, None] * p - q", "p - q"),
    ),
    # match
    "nodes held against the root's token": (
        Game("match", CHAIN, "points"),
        ("jnp.maximum(draft.parents, 0)", "jnp.minimum(draft.parents + 1, 0)"),
    ),
    "next token from the root": (
        Game("match", CHAIN, "points"),
        ("jnp.take_along_axis(tokens, last[:, None], axis=1)[:, 0]", "tokens[:, 0]"),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_source(name, play):
    game, change = CHANGES[name]
    changed = mutant(getattr(_verify, game.rule), change)
    assert errors(dataclasses.replace(game, judge=changed), play).max() > 1e-3


def test_more_children_than_the_law_has_tokens(play):
    """A node drawn from nothing may say that it is valid: it is passed over. Were it
    tried, its token would come from nowhere.
    """

    def certain(text: Text) -> np.ndarray:
        return np.eye(V)[text[-1]]

    drafts = functools.partial(all_drafts, law=certain, is_valid_beyond=True)
    game = Game("rejection", STAR, "without_replacement", drafts=drafts)
    assert errors(game, play).max() < 1e-6
    tried = mutant(_verify.rejection, ("is_tried & (", "is_tried & (1 + "))
    assert errors(dataclasses.replace(game, judge=tried), play).max() > 1e-3


def test_coin_of_zero():
    """No coin lets a token of no probability through. `<=` would, without the second
    guard; either of them alone will do.
    """
    draft = _types.Draft(
        jnp.array([[0, 1]]), jnp.array([[-1, 0]]), jnp.array([[True, True]])
    )
    log_p = jnp.log(jnp.array([[[1.0, 0.0], [0.5, 0.5]]]))

    def accepts(*changes: tuple[str, str]) -> bool:
        judge = mutant(_verify.rejection, *changes)
        _, length, _ = judge(draft, log_p, jnp.zeros((1, 2)), kind="points", size=2)
        return int(length[0]) > 1

    at_most = ("(coins[:, i] < ", "(coins[:, i] <= ")
    unguarded = ("& (p_x > 0)", "")
    assert not accepts()
    assert not accepts(at_most)
    assert not accepts(unguarded)
    assert accepts(at_most, unguarded)


# --- Drafts that came about otherwise than is said ------------------------------------


def chosen(parents: Sequence[int], kind: _types.Kind, text: Text) -> Drafts:
    """The likeliest draft, and no other."""
    draft = all_drafts(parents, kind, text)
    best = rows(draft, draft.weight.argsort()[-1:])
    return best._replace(weight=np.ones(1))


def resorted(parents: Sequence[int], kind: _types.Kind, text: Text) -> Drafts:
    """Siblings put in order of probability after they were drawn."""
    draft = all_drafts(parents, kind, text)
    q = np.where(draft.valid, q_law(text)[draft.tokens], -1)
    order = np.argsort(-q[:, 1:], axis=1, stable=True) + 1
    tokens = draft.tokens.copy()
    tokens[:, 1:] = np.take_along_axis(draft.tokens, order, axis=1)
    return draft._replace(tokens=tokens)


def pruned(parents: Sequence[int], kind: _types.Kind, text: Text) -> Drafts:
    """Nodes left out because they turned out unlikely."""
    draft = all_drafts(parents, kind, text)
    valid = draft.valid.copy()
    valid[:, 1] &= q_law(text)[draft.tokens[:, 1]] > 0.5
    return draft._replace(valid=valid)


LIES = {
    "an argmax chain, said to be drawn": Game("rejection", CHAIN, "iid", drafts=chosen),
    "the same, for block": Game("block", CHAIN, "iid", drafts=chosen),
    "the top two, said to be drawn": Game(
        "rejection", STAR, "without_replacement", drafts=chosen
    ),
    "the top two, said to be i.i.d.": Game(
        "rejection", STAR, "iid", drafts=chosen, drawn="without_replacement"
    ),
    "drawn without replacement, said to be i.i.d.": Game(
        "rejection", STAR, "iid", drawn="without_replacement"
    ),
    "siblings re-sorted": Game(
        "rejection", STAR, "without_replacement", drafts=resorted
    ),
    "pruned by what was drawn": Game("rejection", CHAIN, "iid", drafts=pruned),
}


@pytest.mark.parametrize("name", LIES)
def test_lies(name, play):
    assert errors(LIES[name], play).max() > 1e-3


def test_nodes_of_one_path_say_one_token(play):
    """Under `match`, duplicates that hear noise of their own bias the text: the one
    whose child is right goes deeper.
    """

    def twins(parents: Sequence[int], kind: _types.Kind, text: Text) -> Drafts:
        draft = all_drafts(parents, kind, text)
        _, one, other, child, another = draft.tokens.T
        draft = rows(draft, (one == other) & (child == 0) & (another == 1))
        return draft._replace(group=np.arange(len(draft.weight)))

    game = Game("match", (-1, 0, 0, 1, 2), "points", drafts=twins)
    each = functools.partial(token_cells, prefix=lambda path, node: node)
    assert errors(game, play).max() < 1e-6
    assert errors(game, play, cells=each).max() > 1e-3


def test_history_along_the_path():
    """Options that look at the root's history only are caught, row by row."""
    laws = [
        reference((1, 0), repetition_penalty=2.5),
        reference((0, 0, 0, 1), presence_penalty=1.1),
        reference((1,), min_new_tokens=1, stop_ids=[1]),
    ]
    sampling = sd.Sampling(
        temperature=1.0,
        repetition_penalty=[2.5, 1.0, 1.0],
        presence_penalty=[0.0, 1.1, 0.0],
        min_new_tokens=[0, 0, 1],
        stop_ids=[[], [], [1]],
    )
    play = begin([(1, 0), (0, 0, 0, 1), (1,)], laws, sampling)
    adjust = _sampling.adjust

    def forgetful(sampler, logits, path_tokens):
        return adjust(sampler, logits, path_tokens[:, :, :1])

    # Another object, or jit would not look at the patch.
    game = Game("rejection", CHAIN, "iid", judge=functools.partial(_verify.rejection))
    with mock.patch.object(_sampling, "adjust", forgetful):
        assert errors(game, play).min() > 1e-3


# --- Schedules ------------------------------------------------------------------------
# How many nodes a row verifies must depend on nothing drawn at those nodes or below.


def scheduled(
    parents: Sequence[int],
    kind: _types.Kind,
    text: Text,
    *,
    speeds: tuple[float, float, float],
    early_stop: bool,
) -> Drafts:
    """A chain of two cut to the width of most tokens per second, where `speeds` are
    steps per second at widths 0, 1, 2 and the confidence of the second node reads the
    first one's token: the best width of all, or the last before the first loss.
    """
    draft = all_drafts(parents, kind, text)
    valid = draft.valid.copy()
    for case, token in enumerate(draft.tokens[:, 1].tolist()):
        survival = 0.8 * np.cumprod([1.0, q_law((*text, token)).max()])
        rate = (1 + np.cumsum([0.0, *survival])) * speeds
        losses = np.flatnonzero(rate[1:] <= rate[:-1])
        width = rate.argmax()
        if early_stop:
            width = losses[0] if len(losses) else 2
        valid[case, 1 + width :] = False
    return draft._replace(valid=valid)


@pytest.mark.parametrize("speeds", [(1.0, 0.5, 0.45), (1.0, 0.6, 0.45)], ids=str)
def test_early_stop(speeds, play):
    drafts = functools.partial(scheduled, speeds=speeds, early_stop=True)
    game = Game("rejection", CHAIN, "iid", drafts=drafts)
    assert errors(game, play).max() < 1e-6


def test_argmax_over_current_confidences(play):
    """It looks at the first node's token before it decides on the first node."""
    drafts = functools.partial(scheduled, speeds=(1.0, 0.5, 0.45), early_stop=False)
    assert errors(Game("rejection", CHAIN, "iid", drafts=drafts), play).max() > 1e-3


def test_noise_of_the_slots_own_position_under_a_stale_budget():
    """A budget from the step before has seen a draft of this very position. With noise
    of the position, the draft is the same again and the budget has leaked it; with the
    shipped noise, of step and slot, it is another.
    """
    rows, p, q = 4096, [0.7, 0.3], [0.5, 0.5]
    keys = jax.vmap(jax.random.key)(np.arange(rows))

    def of_step(base: int, slot: int) -> np.ndarray:
        options = _types.Options(jnp.ones(rows), jnp.zeros((rows, 1), jnp.int32))
        at = jnp.full(rows, base, jnp.int32)
        sampler = _types.Sampler(options, keys, at, at, None, None, None)
        noise = _sampling.step_noise(sampler, _sampling.DRAFT, slot, vocab_size=2)
        return np.asarray(noise).argmax(-1)

    def of_position(base: int, slot: int) -> np.ndarray:
        at = jnp.full((rows, 1), base + 1 + slot, jnp.int32)
        noise = _sampling.position_noise(keys, at, vocab_size=2)
        return np.asarray(noise)[:, 0].argmax(-1)

    # P(0) by the shipped rule, given the draft and whether it is verified: coins on
    # either side of the one breakpoint there is, p / q = 0.6 of token 1.
    token, seen, coin = np.moveaxis(
        np.array(list(itertools.product((0, 1), (0, 1), (0.3, 0.8)))), 1, 0
    )
    draft = _types.Draft(
        jnp.asarray(np.stack([0 * token, token], 1), jnp.int32),
        jnp.tile(jnp.array([[-1, 0]], jnp.int32), (8, 1)),
        jnp.asarray(np.stack([1 + 0 * seen, seen], 1) > 0),
        _types.Proposal(
            jnp.tile(jnp.log(jnp.array([[q]])), (8, 1, 1)), jnp.zeros((8, 2), jnp.int32)
        ),
    )
    log_p = jnp.tile(jnp.log(jnp.array([[p, p]])), (8, 1, 1))
    coins = jnp.asarray(np.stack([coin, coin], 1), jnp.float32)
    _, length, law = _verify.rejection(draft, log_p, coins, kind="iid", size=2)
    is_drafted = np.asarray(length) > 1
    p_of_0 = np.where(is_drafted, token == 0, np.exp(law)[:, 0])
    p_of_0 = p_of_0.reshape(2, 2, 2) @ [0.6, 0.4]

    def law_of_0(noise: Callable[[int, int], np.ndarray]) -> float:
        """Verified where the draft of one step earlier, one slot further, was 0."""
        return p_of_0[noise(6, 0), (noise(5, 1) == 0).astype(int)].mean()

    # 0.02 is four standard deviations of these means.
    assert abs(law_of_0(of_step) - 0.7) < 0.02
    assert abs(law_of_0(of_position) - 0.85) < 0.02
