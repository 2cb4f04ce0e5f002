"""What a generation says besides its text: log-probabilities, who supplied a token, and
how much was accepted.
"""

import numpy as np
import pytest
from cases import (
    FULL_ROWS,
    NEAR,
    PLAIN_ROWS,
    PROMPTS,
    SEEDS,
    TABLE,
    TOY,
    N,
    arguments,
    assert_same,
    expected_texts,
    sampling_of,
    with_limit,
)

import specdec_jax as sd

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("of", ["model", "sampled"])
def test_log_probabilities(of):
    """Of drafted tokens in the middle of blocks too, and with every option."""
    rows = with_limit(FULL_ROWS, 40)
    generation = sd.generate(
        *arguments("tree"),
        PROMPTS,
        sampling=sampling_of(rows, seed=SEEDS),
        logprobs=of,
    )
    texts = expected_texts(rows)
    assert_same(generation, texts)
    assert generation.logprobs is not None
    for text, found, is_drafted in zip(
        texts, generation.logprobs, generation.is_drafted, strict=True
    ):
        wanted = text.logprobs if of == "model" else text.sampled
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        assert len(is_drafted) == len(found)
    assert any(is_drafted.any() for is_drafted in generation.is_drafted)


def test_is_drafted_marks_what_the_drafter_supplied():
    """A drafter that is always right leaves the last token of each block to the
    target.
    """
    rows = with_limit(PLAIN_ROWS, 2 * N + 1)
    generation = sd.generate(
        *arguments("self"), PROMPTS, sampling=sampling_of(rows, seed=SEEDS)
    )
    block = [True] * (N - 1) + [False]
    for is_drafted in generation.is_drafted:
        assert is_drafted.tolist() == [*block, *block, True]


def test_rejection_accepts_what_the_laws_share():
    """An i.i.d. draft is accepted with probability Σ min(p, q), node by node."""
    found, chances = 0, []
    for seed in range(12):
        generation = sd.generate(
            *arguments("iid"),
            PROMPTS,
            sampling=sampling_of(with_limit([{"temperature": 1.0}] * 3, 40), seed=seed),
            rule="rejection",
        )
        for prompt, tokens, is_drafted in zip(
            PROMPTS, generation.tokens, generation.is_drafted, strict=True
        ):
            depth = 0
            for i, kept in enumerate(is_drafted):
                if depth < N - 1:  # beyond it nothing is drafted
                    prefix = [*prompt, *tokens[:i].tolist()]
                    p, q = TOY.law(TABLE, prefix), TOY.law(NEAR, prefix)
                    chances.append(np.minimum(p, q).sum())
                    found += int(kept)
                depth = depth + 1 if kept else 0
    spread = np.sqrt(sum(p * (1 - p) for p in chances))
    assert len(chances) > 1000
    assert abs(found - sum(chances)) < 4 * spread
