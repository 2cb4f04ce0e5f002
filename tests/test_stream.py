"""`stream`: the same text as `generate`, a step at a time, and free to stop."""

import numpy as np
import pytest
from cases import PLAIN_ROWS, PROMPTS, SEEDS, arguments, sampling_of, with_limit

import specdec_jax as sd

pytestmark = pytest.mark.usefixtures("quick_compile")

SAMPLING = sampling_of(with_limit(PLAIN_ROWS, 30), seed=SEEDS)


def test_pieces_add_up_to_what_generate_says():
    whole = sd.generate(*arguments("ngram"), PROMPTS, sampling=SAMPLING)
    stream = sd.stream(*arguments("ngram"), PROMPTS, sampling=SAMPLING)
    pieces = list(stream)
    for row in range(3):
        for name in ("tokens", "is_drafted"):
            parts = [getattr(piece, name)[row] for piece in pieces]
            np.testing.assert_array_equal(
                np.concatenate(parts), getattr(whole, name)[row]
            )
    assert len(pieces) == max(whole.stats.steps)
    assert [[len(row) for row in piece.tokens] for piece in pieces] != [[1] * 3] * 30
    assert stream.generation.reasons == whole.reasons
    for a, b in zip(stream.generation.stats, whole.stats, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_cancelled_stream_goes_on_from_its_state():
    whole = sd.generate(*arguments("ngram"), PROMPTS, sampling=SAMPLING)
    stream = sd.stream(*arguments("ngram"), PROMPTS, sampling=SAMPLING)
    next(stream)
    next(stream)
    so_far = stream.generation
    assert "" in so_far.reasons
    prompts = [
        [*prompt, *tokens.tolist()]
        for prompt, tokens in zip(PROMPTS, so_far.tokens, strict=True)
    ]
    for prompt, old, text in zip(prompts, PROMPTS, whole.tokens, strict=True):
        assert prompt[len(old) :] == text[: len(prompt) - len(old)].tolist()
    sampling = sampling_of(with_limit(PLAIN_ROWS, 12), seed=SEEDS)
    going_on = sd.generate(
        *arguments("ngram"), prompts, sampling=sampling, state=so_far.state
    )
    fresh = sd.generate(*arguments("ngram"), prompts, sampling=sampling)
    for a, b in zip(going_on.tokens, fresh.tokens, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_stream_has_given_stays():
    """Later steps overwrite the run, never pieces or generations handed out before."""
    stream = sd.stream(*arguments("ngram"), PROMPTS, sampling=SAMPLING)
    piece = next(stream)
    generation = stream.generation
    tokens = [row.tolist() for row in piece.tokens]
    steps = generation.stats.steps.tolist()
    for _ in stream:
        pass
    assert [row.tolist() for row in piece.tokens] == tokens
    assert [row.tolist() for row in generation.tokens] == tokens
    assert generation.stats.steps.tolist() == steps == [1, 1, 1]


def test_a_stream_whose_state_went_elsewhere_says_so():
    stream = sd.stream(*arguments("ngram"), PROMPTS, sampling=SAMPLING)
    next(stream)
    generation = stream.generation
    prompts = [
        [*prompt, *tokens.tolist()]
        for prompt, tokens in zip(PROMPTS, generation.tokens, strict=True)
    ]
    sd.generate(*arguments("ngram"), prompts, sampling=SAMPLING, state=generation.state)
    with pytest.raises(ValueError, match="consumed"):
        next(stream)


def test_a_finished_stream_stays_finished():
    stream = sd.stream(*arguments("ngram"), PROMPTS, sampling=SAMPLING)
    list(stream)
    assert next(stream, None) is None
