"""benchmarks/exactness.py: three prompts, and that it tells when tokens differ."""

import dataclasses
import importlib
import json
import os
from pathlib import Path
from typing import Any, cast

import jax
import pytest

import specdec_jax as sd

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PROMPTS = Path(__file__).parents[2] / "shared" / "data" / "eval"
NEW_TOKENS = 24


@pytest.fixture
def exactness(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("exactness")


@pytest.fixture
def decoding(exactness):
    toy, nothing = sd.Toy(vocab_size=7), cast(Any, None)
    model = sd.LanguageModel(toy, toy.init_params(jax.random.key(0)), nothing)
    return exactness.Decoding(model, NEW_TOKENS, slots=64)


@pytest.fixture
def rows(exactness):
    prompts = [exactness.Prompt(f"p{n}", "toy", [1, 2, 3, 4][:n]) for n in (1, 4)]
    return [
        exactness.Row(prompt, sampling, seed=7)
        for sampling in exactness.SAMPLINGS
        for prompt in prompts
    ]


def test_scores_choose_the_token(exactness, decoding, rows):
    """What ties are judged by is what `generate` chooses by."""
    for row in rows:
        tally = exactness.Tally("NGram", 1, row.sampling)
        tokens = decoding.generate(sd.Plain(), [row]).tokens[0].tolist()
        for at in (0, 1, NEW_TOKENS - 1):
            parting = decoding.part(tally, "divergence", row, tokens[:at])
            assert parting.tokens[0] == tokens[at]


def test_a_changed_token_is_found(exactness, decoding, rows):
    """In a batch, the row and the position, and that it is no tie."""
    generation = decoding.generate(sd.NGram(), rows)
    plain = [decoding.generate(sd.Plain(), [row]).tokens[0] for row in rows]
    changed = [tokens.copy() for tokens in generation.tokens]
    changed[3][5] = (changed[3][5] + 1) % 7
    generation = dataclasses.replace(generation, tokens=changed)
    for index, row in enumerate(rows):
        tally = exactness.Tally("NGram", len(rows), row.sampling)
        partings = list(
            exactness.compare(decoding, tally, row, plain[index], generation, index)
        )
        if index != 3:
            assert (partings, tally.divergences) == ([], 0)
            assert tally.tokens == NEW_TOKENS
            continue
        [parting] = partings
        assert parting.position == 5
        assert set(parting.tokens) == {plain[3][5], changed[3][5]}
        assert not parting.is_near
        assert (tally.divergences, tally.tokens) == (1, 6)


def test_rejections(exactness):
    """Two drafts a step: kept both; kept one; kept none; cut by the limit."""
    kept = [True, True, False, True, False, False, True]
    assert exactness.rejections(kept, 2) == [4, 5]


@pytest.mark.slow
@pytest.mark.skipif(not PROMPTS.is_dir(), reason="no ../shared/data/eval here")
@pytest.mark.skipif(
    bool(os.environ.get("PIP_NO_INDEX")),
    reason="PIP_NO_INDEX is set: pip cannot download the model",
)
def test_three_prompts(exactness, tmp_path):
    arguments = exactness.Arguments(
        prompts=3,
        max_prompt=96,
        new_tokens=NEW_TOKENS,
        batches=(3,),
        data=PROMPTS,
        output=tmp_path / "exactness.json",
    )
    assert exactness.main(arguments) == 0
    result = json.loads(arguments.output.read_text())
    assert result["is_exact"]
    assert result["rows"] == 2 * 3 * 3
    assert result["tokens"] == result["rows"] * NEW_TOKENS or result["divergences"]
