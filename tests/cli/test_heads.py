"""Trees in a word."""

import dataclasses
from typing import Any

import pytest
from small import DFLASH, DSPARK, EAGLE, EAGLE3

import specdec_jax as sd
from specdec_jax.cli._heads import with_tree


@pytest.mark.parametrize(
    ("drafter", "word", "expected"),
    [
        (EAGLE, "static", {"tree": sd.StaticTree()}),
        (EAGLE, "chain:3", {"tree": sd.GrownTree(num_nodes=4, depth=3, width=1)}),
        (EAGLE3, "grown:9,3,4", {"tree": sd.GrownTree(num_nodes=9, depth=3, width=4)}),
        (EAGLE3, None, {"tree": sd.GrownTree(num_nodes=8, depth=4, width=3)}),
        (DFLASH, None, {}),
        (DFLASH, "chain:2", {"drafts": 2}),
        (DFLASH, "slots:5", {"tree": sd.MarginalTree(5)}),
        (DSPARK, "chain:2", {"drafts": 2}),
    ],
)
def test_a_tree_is_a_word(drafter: Any, word: str | None, expected: dict[str, Any]):
    assert with_tree(drafter, word) == dataclasses.replace(drafter, **expected)


@pytest.mark.parametrize(
    ("drafter", "word", "message"),
    [
        (EAGLE, "slots:5", "Eagle drafts no tree 'slots:5': write chain:DEPTH"),
        (EAGLE3, "x", "Eagle3 drafts no tree 'x'"),
        (EAGLE3, "chain:x", "Eagle3 drafts no tree 'chain:x'"),
        (DSPARK, "slots:5", "DSpark drafts no tree"),
        (DFLASH, "static", "DFlash drafts no tree"),
        (DFLASH, "chain:9", "so drafts is 1 … 3, not 9"),
        (EAGLE, "grown:90,2,2", "num_nodes must be 2 … 7"),
    ],
)
def test_what_is_no_tree(drafter: Any, word: str, message: str):
    with pytest.raises(ValueError, match=message):
        with_tree(drafter, word)
