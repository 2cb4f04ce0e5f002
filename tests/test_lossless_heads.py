"""The theorem with the drafters that read features, and every draft of theirs: see
`feature_heads`.

What they draw is enumerated through the shipped `draft`, so a wrong law, a wrong order
of siblings or a wrong word on which nodes are proposals shows in the text's law.
"""

from typing import Any

import pytest
from enumeration import PROMPTS, Game, Play, begin, errors, reference
from feature_heads import HEADS, HeadDrafts, params_of, parents_of, slots_of

import specdec_jax as sd
from specdec_jax import _types

pytestmark = pytest.mark.usefixtures("quick_compile")

ROWS: dict[str, list[dict[str, Any]]] = {
    "tempered": [{"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 0.7}],
    # Laws of one token, of two at most and of fewer than three, for all children.
    "filtered": [
        {"temperature": 1.0, "top_k": 1, "top_p": 1.0},
        {"temperature": 1.3, "top_k": 2, "top_p": 1.0},
        {"temperature": 0.9, "top_k": 0, "top_p": 0.6},
    ],
}


def sampling_of(rows: list[dict[str, Any]]) -> sd.Sampling:
    columns: dict[str, Any] = {x: [row[x] for row in rows] for x in rows[0]}
    return sd.Sampling(**columns)


SAMPLINGS = {name: sampling_of(rows) for name, rows in ROWS.items()}


@pytest.fixture(scope="module")
def plays() -> dict[str, Play]:
    return {
        name: begin(
            PROMPTS,
            [reference(x, **row) for x, row in zip(PROMPTS, rows, strict=True)],
            SAMPLINGS[name],
        )
        for name, rows in ROWS.items()
    }


def game_of(name: str, rule: _types.Rule, rows: str) -> Game:
    drafter = HEADS[name]
    drafts = HeadDrafts(
        drafter, params_of(drafter), PROMPTS, SAMPLINGS[rows], slots_of(drafter)
    )
    return Game(rule, parents_of(drafter), drafter.kind, drafts=drafts)


GAMES: list[tuple[str, _types.Rule, str]] = [
    ("eagle", "match", "tempered"),
    ("eagle", "rejection", "filtered"),
    ("eagle, drawn", "rejection", "tempered"),
    ("eagle, drawn", "rejection", "filtered"),
    ("eagle, drawn wide", "rejection", "tempered"),
    ("eagle, drawn wide", "rejection", "filtered"),
    ("eagle 2", "match", "filtered"),
    ("eagle 2", "rejection", "tempered"),
    ("eagle 3", "match", "tempered"),
    ("eagle 3", "rejection", "filtered"),
    ("eagle 3 of few", "match", "tempered"),
    ("eagle 3 of few", "rejection", "tempered"),
    ("eagle 3, tree", "match", "filtered"),
    ("eagle 3, tree", "rejection", "filtered"),
    ("eagle 3, chain", "match", "tempered"),
    ("eagle 3, chain", "rejection", "tempered"),
    ("eagle 3, chain", "block", "filtered"),
    ("eagle 3, drawn chain", "rejection", "filtered"),
    ("eagle 3, drawn chain", "block", "tempered"),
    ("eagle 3, drawn wide", "rejection", "tempered"),
    ("eagle 3, drawn wide", "rejection", "filtered"),
    ("dflash", "match", "tempered"),
    ("dflash", "rejection", "filtered"),
    ("dflash, drawn", "rejection", "tempered"),
    ("dflash, drawn", "block", "filtered"),
    ("dflash, tree", "match", "filtered"),
    ("dflash, tree", "rejection", "tempered"),
    ("dspark", "match", "filtered"),
    ("dspark, drawn", "rejection", "tempered"),
    ("dspark, drawn", "block", "tempered"),
    ("dspark of few, drawn", "rejection", "filtered"),
    ("dspark pruned, drawn", "rejection", "tempered"),
]
FAST = (3, 6, 23, 28)


@pytest.mark.parametrize(
    "game",
    [
        pytest.param(
            game, id="-".join(game), marks=[] if i in FAST else [pytest.mark.slow]
        )
        for i, game in enumerate(GAMES)
    ],
)
def test_the_law_is_the_targets(game, plays):
    assert errors(game_of(*game), plays[game[2]]).max() < 1e-6
