"""Seeds: whose noise is whose, for rows and for samples of one prompt."""

import naive
import numpy as np
import pytest
from cases import TABLE, TOY, arguments, assert_same, sampling_of, with_limit

import specdec_jax as sd

pytestmark = pytest.mark.usefixtures("quick_compile")

PROMPT = [3, 1, 4]


def test_a_shared_seed_gives_each_row_its_own_noise():
    rows = with_limit([{"temperature": 1.0}] * 3, 20)
    prompts = [[1, 2, 3]] * 3
    generation = sd.generate(
        *arguments("ngram"), prompts, sampling=sampling_of(rows, seed=5)
    )
    logits = naive.toy_logits(TOY, TABLE)
    texts = [
        naive.decode_one_by_one(logits, prompt, row, seed=5, fold=i)
        for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True))
    ]
    assert_same(generation, texts)
    assert len({tuple(text.tokens) for text in texts}) == 3


def test_samples_of_one_prompt():
    """They are what a batch that repeats the prompt says, from one reading of it."""
    sampling = sd.Sampling(temperature=1.0, max_new_tokens=20, seed=5)
    samples = sd.generate(*arguments("ngram"), [PROMPT], sampling=sampling, samples=3)
    apart = sd.generate(*arguments("ngram"), [PROMPT] * 3, sampling=sampling)
    for a, b in zip(samples.tokens, apart.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len({tuple(row) for row in samples.tokens}) == 3


def test_samples_of_a_prompt_with_a_seed_of_its_own():
    """Sample j folds j into it."""
    rows = with_limit([{"temperature": 0.8}], 20)
    sampling = sampling_of(rows, seed=[8])
    generation = sd.generate(
        *arguments("ngram"), [PROMPT], sampling=sampling, samples=3
    )
    logits = naive.toy_logits(TOY, TABLE)
    texts = [
        naive.decode_one_by_one(logits, PROMPT, rows[0], seed=8, fold=j)
        for j in range(3)
    ]
    assert_same(generation, texts)


def test_samples_of_a_conversation():
    """From a state as from the beginning; what they leave are rows of their own."""
    short = sd.Sampling(temperature=1.0, max_new_tokens=5, seed=[9])
    begun = sd.generate(*arguments("ngram"), [PROMPT], sampling=short)
    prompt = [*PROMPT, *begun.tokens[0].tolist(), 2]
    options = {"sampling": short, "samples": 3}
    going_on = sd.generate(*arguments("ngram"), [prompt], state=begun.state, **options)
    fresh = sd.generate(*arguments("ngram"), [prompt], **options)
    rows = [row.tolist() for row in going_on.tokens]
    assert rows == [row.tolist() for row in fresh.tokens]
    prompts = [[*prompt, *row, 0] for row in rows]
    again = sd.Sampling(temperature=1.0, max_new_tokens=5, seed=[1, 2, 3])
    last = sd.generate(
        *arguments("ngram"), prompts, sampling=again, state=going_on.state
    )
    alone = sd.generate(*arguments("ngram"), prompts, sampling=again)
    for a, b in zip(last.tokens, alone.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
