"""The theorem: whatever is drafted, the text has the target's own law.

The joint law of two tokens, enumerated exactly (see `enumeration`), in batches of
greedy and sampled rows of different lengths. The options are in
`test_lossless_options`, what must break the theorem in `test_mutations`.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from enumeration import PROMPTS, Game, Play, begin, errors, judge_all, reference, rows
from scripted import CHAIN, STAR, TREE, V, all_drafts, q_law

import specdec_jax as sd

TEMPERATURES = (1.0, 0.0, 0.7)
LAWS = [
    reference(prompt, temperature=temperature)
    for prompt, temperature in zip(PROMPTS, TEMPERATURES, strict=True)
]


@pytest.fixture(scope="module")
def play() -> Play:
    return begin(PROMPTS, LAWS, sd.Sampling(temperature=TEMPERATURES))


GAMES = [
    Game("match", CHAIN, "points"),
    Game("match", (*STAR, 1), "points"),
    Game("rejection", CHAIN, "points"),
    Game("rejection", CHAIN, "iid"),
    Game("rejection", CHAIN, "without_replacement"),
    Game("rejection", TREE, "points"),
    Game("rejection", TREE, "iid"),
    Game("rejection", TREE, "without_replacement"),
    Game("block", CHAIN, "points"),
    Game("block", CHAIN, "iid"),
]


@pytest.mark.parametrize("game", GAMES, ids=str)
def test_the_law_is_the_targets(game, play):
    assert errors(game, play).max() < 1e-6


# --- Hostile drafters -----------------------------------------------------------------


def perfect(text):
    """The target's law, of the row that begins with this token."""
    return LAWS[[prompt[0] for prompt in PROMPTS].index(text[0])](text)


def nearly_perfect(text):
    """A unit in the last place off: residuals of next to no mass."""
    p = perfect(text).astype(np.float32)
    towards = np.resize(np.array([2, 0], np.float32), V)
    return np.where(p > 0, np.nextafter(p, towards), 0).astype(np.float64)


def adversarial(text):
    """Certain of what the target likes least."""
    return np.eye(V)[perfect(text).argmin()]


def uniform(text):
    return np.full(V, 1 / V)


def nan(text):
    return np.full(V, np.nan)


def nan_after_1(text):
    return nan(text) if text[-1] == 1 else q_law(text)


def nothing(text):
    """Every log-probability is -inf."""
    return np.zeros(V)


def nothing_after_1(text):
    return nothing(text) if text[-1] == 1 else q_law(text)


@pytest.mark.parametrize(
    "law",
    [
        perfect,
        nearly_perfect,
        adversarial,
        uniform,
        nan,
        nan_after_1,
        nothing,
        nothing_after_1,
    ],
    ids=lambda law: law.__name__,
)
@pytest.mark.parametrize(
    "game",
    [
        Game("rejection", TREE, "iid"),
        Game("rejection", TREE, "without_replacement"),
        Game("block", CHAIN, "iid"),
    ],
    ids=str,
)
def test_hostile_drafters(game, law, play):
    drafts = functools.partial(all_drafts, law=law, is_valid_beyond=True)
    assert errors(dataclasses.replace(game, drafts=drafts), play).max() < 1e-6


def test_finished_rows(play):
    """They emit nothing, keep everything, and change nothing for the others."""
    game = Game("rejection", TREE, "iid")
    reason = np.array([0, 1, 0], np.int32)
    play = play._replace(run=play.run._replace(reason=reason))
    assert errors(game, play)[reason == 0].max() < 1e-6
    draft = all_drafts(TREE, "iid", PROMPTS[1])
    which = np.ones(len(draft.weight), int)
    coins = np.zeros(draft.tokens.shape, np.float32)  # accept whatever can be
    run = judge_all(game, play, which, draft, coins, forced=which).run
    before, after = (
        (x.state.cache, x.state.tokens, x.state.length, x.reason)
        for x in (rows(play.run, which), run)
    )
    jax.tree.map(np.testing.assert_array_equal, after, before)
