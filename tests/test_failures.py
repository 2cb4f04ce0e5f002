"""Rows that cannot go on: they end, say why, and disturb nobody."""

import jax.numpy as jnp
import naive
import numpy as np
import pytest
from cases import PROMPTS, SEEDS, TABLE, TOY, Broken, arguments, sampling_of

import specdec_jax as sd
from specdec_jax._types import Constraint

pytestmark = pytest.mark.usefixtures("quick_compile")

BROKEN = Broken(vocab_size=7)
ENDS = {7: "nan", 9: "no_token", 11: "nan", 13: "nan"}
FILTERS = {"top_k": 5, "top_p": 0.95, "min_p": 0.02}
ROWS = [{"temperature": x, "max_new_tokens": 10} for x in (0.0, 0.9, 0.9)]
SAMPLING = sampling_of(ROWS, seed=SEEDS, **FILTERS)


def broken_logits(prefix) -> np.ndarray:
    """The reference of `Broken`."""
    raw, context = naive.toy_logits(TOY, TABLE)(prefix), BROKEN.context(prefix)
    if context in (7, 11):
        raw = np.where(np.arange(7) == 3, {7: np.nan, 11: np.inf}[context], raw)
    return raw + {9: -np.inf, 13: np.nan}.get(context, 0.0)


def one_by_one(prompts, filters=None) -> list[naive.Text]:
    return [
        naive.decode_one_by_one(
            broken_logits, prompt, {**row, **(filters or {})}, seed=seed
        )
        for prompt, row, seed in zip(prompts, ROWS, SEEDS, strict=True)
    ]


@pytest.mark.parametrize(
    ("drafter", "filters"),
    [("tree", FILTERS), pytest.param("near", {}, marks=pytest.mark.slow)],
    ids=["tree", "near"],
)
def test_a_row_ends_where_its_law_does(drafter, filters):
    """At any slot of a block, with what was good before it; others go on to their own
    end, and the state knows what was said. No filter hides a NaN.
    """
    reasons = set()
    for shift in range(7):
        prompts = [[shift, *prompt] for prompt in PROMPTS]
        texts = one_by_one(prompts, filters)
        generation = sd.generate(
            *arguments(drafter, BROKEN),
            prompts,
            sampling=sampling_of(ROWS, seed=SEEDS, **filters),
            raise_on_failure=False,
        )
        assert [row.tolist() for row in generation.tokens] == [x.tokens for x in texts]
        assert generation.reasons == [text.reason for text in texts]
        for i, text in enumerate(texts):
            known = len(prompts[i]) + len(text.tokens)
            assert generation.state.length[i] == known
            assert generation.state.cache.length[i] == known - 1
        kept = generation.stats.accepted @ np.arange(generation.stats.accepted.shape[1])
        np.testing.assert_array_equal(
            generation.stats.steps + kept, [len(text.tokens) for text in texts]
        )
        reasons |= set(generation.reasons)
    assert {"nan", "no_token", "length"} <= reasons


@pytest.mark.parametrize(
    "rule", ["rejection", pytest.param("block", marks=pytest.mark.slow)]
)
def test_a_row_ends_under_every_rule(rule):
    """Each text ends right before the first prefix without a law."""
    for seed in range(5):
        generation = sd.generate(
            *arguments("iid", BROKEN),
            PROMPTS,
            sampling=sampling_of(ROWS, seed=seed, **FILTERS),
            rule=rule,
            raise_on_failure=False,
        )
        for prompt, row, reason in zip(
            PROMPTS, generation.tokens, generation.reasons, strict=True
        ):
            contexts = [
                BROKEN.context([*prompt, *row[:i].tolist()])
                for i in range(len(row) + 1)
            ]
            assert not set(contexts[:-1]) & set(ENDS)
            wanted = "length" if len(row) == 10 else ENDS.get(contexts[-1])
            assert reason == wanted


# Prompts after which there is no number at once, a text, and no token at once.
FAILING = ([0, 1, 1], [0, 3, 1], [0, 0, 1])


def failing_call(call, drafter="tree", **options):
    return call(*arguments(drafter, BROKEN), FAILING, sampling=SAMPLING, **options)


def test_the_failing_prompts_are_what_they_are_said_to_be():
    assert [text.reason for text in one_by_one(FAILING, FILTERS)] == [
        "nan",
        "length",
        "no_token",
    ]


def test_generate_raises_after_the_call_and_keeps_what_there_is():
    with pytest.raises(
        sd.GenerationError, match="row 0 ended after 0 tokens.*NaN"
    ) as e:
        failing_call(sd.generate)
    kept = failing_call(sd.generate, raise_on_failure=False)
    assert kept.reasons[0] == "nan" and kept.reasons[2] == "no_token"
    assert len(kept.tokens[0]) == len(kept.tokens[2]) == 0 < len(kept.tokens[1])
    assert e.value.generation.reasons == kept.reasons
    np.testing.assert_array_equal(e.value.generation.tokens[1], kept.tokens[1])


def test_stream_raises_at_its_end():
    stream, pieces = failing_call(sd.stream, "plain"), []
    with pytest.raises(sd.GenerationError, match="2 of 3 rows"):
        for piece in stream:
            pieces.append(piece)
    kept = failing_call(sd.generate, raise_on_failure=False)
    text = np.concatenate([piece.tokens[1] for piece in pieces])
    np.testing.assert_array_equal(text, kept.tokens[1])
    assert list(failing_call(sd.stream, "plain", raise_on_failure=False))


def test_options_that_leave_no_token_are_named():
    """Nothing wrong at first: the grammar runs dry after two tokens."""
    dry = Constraint(
        initial=jnp.int32(0),
        mask=lambda said: jnp.broadcast_to(said < 2, (7,)),
        advance=lambda said, token: said + 1,
    )
    with pytest.raises(sd.GenerationError, match="after 2 tokens.*constrain") as error:
        sd.generate(
            *arguments("plain"),
            PROMPTS,
            sampling=sd.Sampling(max_new_tokens=9, constrain=dry),
        )
    assert error.value.generation.reasons == ["no_token"] * 3
