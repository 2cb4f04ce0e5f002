"""`generate` against text decoded one token at a time."""

import itertools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
from cases import (
    DECODER,
    DRAFTERS,
    FULL_ROWS,
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
from specdec_jax import _door

pytestmark = pytest.mark.usefixtures("quick_compile")

LIMITS = (40, 2 * N + 1, N + 1, N, 2, 1)
MATCHING = [name for name in DRAFTERS if name != "iid"]
LONG = [[(i * i + row) % 7 for i in range(n)] for row, n in enumerate((200, 3, 131))]


@pytest.mark.parametrize("rows", [PLAIN_ROWS, FULL_ROWS], ids=["plain", "full"])
@pytest.mark.parametrize("drafter", MATCHING)
def test_same_text_as_one_by_one(drafter, rows):
    """At every limit around the size of a block, with other options in every row."""
    for limit in LIMITS:
        limited = with_limit(rows, limit)
        generation = sd.generate(
            *arguments(drafter), PROMPTS, sampling=sampling_of(limited, seed=SEEDS)
        )
        assert_same(generation, expected_texts(limited))


@pytest.mark.parametrize(
    "rows",
    [PLAIN_ROWS, pytest.param(FULL_ROWS, marks=pytest.mark.slow)],
    ids=["plain", "full"],
)
@pytest.mark.parametrize(
    "drafter",
    [
        "ngram",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("plain", "near", "tree")),
    ],
)
def test_each_row_alone_says_the_same(drafter, rows):
    proposed = steps = 0
    for limit, i in itertools.product(LIMITS, range(3)):
        limited = with_limit(rows, limit)[i : i + 1]
        alone = sd.generate(
            *arguments(drafter),
            PROMPTS[i : i + 1],
            sampling=sampling_of(limited, seed=SEEDS[i : i + 1]),
        )
        seeds = SEEDS[i : i + 1]
        assert_same(alone, expected_texts(limited, PROMPTS[i : i + 1], seeds=seeds))
        proposed += int(alone.stats.proposed[0, 1:2].sum())
        steps += int(alone.stats.steps[0])
    if drafter == "ngram":  # now and then it passes, and the root is read alone
        assert 0 < proposed < steps


@pytest.mark.parametrize("weights", [jnp.nan, -jnp.inf, 0.0], ids=str)
def test_a_broken_drafter_changes_nothing(weights):
    rows = with_limit(PLAIN_ROWS, 40)
    broken = {"logits": jnp.full_like(TABLE["logits"], weights)}
    generation = sd.generate(
        TOY,
        sd.Params(TABLE, broken),
        DRAFTERS["near"][0],
        PROMPTS,
        sampling=sampling_of(rows, seed=SEEDS),
    )
    assert_same(generation, expected_texts(rows))


@pytest.mark.parametrize("drafter", ["plain", "near", "tree"])
def test_ties_go_to_the_lowest_id(drafter):
    """With logits that are whole numbers, most rows of the table have one."""
    table = {"logits": jnp.round(TABLE["logits"])}
    top = np.sort(table["logits"], axis=1)[:, -2:]
    assert (top[:, 0] == top[:, 1]).sum() > 5
    rows = with_limit([{"temperature": 0.0}] * 3, 40)
    target, params, drafter = arguments(drafter)
    generation = sd.generate(
        target,
        params._replace(target=table),
        drafter,
        PROMPTS,
        sampling=sampling_of(rows, seed=SEEDS),
    )
    logits = naive.toy_logits(TOY, table)
    texts = [
        naive.decode_one_by_one(logits, prompt, row, seed=seed)
        for prompt, row, seed in zip(PROMPTS, rows, SEEDS, strict=True)
    ]
    assert_same(generation, texts)


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        ("tree", "rejection"),
        ("iid", "rejection"),
        ("iid", "block"),
        pytest.param("near", "rejection", marks=pytest.mark.slow),
        pytest.param("near", "block", marks=pytest.mark.slow),
    ],
)
def test_every_rule_is_greedy_at_temperature_0(drafter, rule):
    """The draft model's law may be anything, NaN included."""
    rows = with_limit([{"temperature": 0.0}] * 3, 40)
    target, params, drafter = arguments(drafter)
    for scale in (1.0, jnp.nan):
        drafter_params = jax.tree.map(lambda x, scale=scale: x * scale, params.drafter)
        generation = sd.generate(
            target,
            sd.Params(TABLE, drafter_params),
            drafter,
            PROMPTS,
            sampling=sampling_of(rows, seed=SEEDS),
            rule=rule,
        )
        assert_same(generation, expected_texts(rows))


@pytest.mark.parametrize(
    "drafter",
    [
        "tree",
        pytest.param("ngram", marks=pytest.mark.slow),
        pytest.param("model", marks=pytest.mark.slow),
    ],
)
def test_a_decoder_says_the_same_as_its_full_forward(drafter, monkeypatch):
    """With a real cache, prompts of more than one chunk, and every option."""
    monkeypatch.setattr(_door, "MOST", 0)  # 64 tokens at once
    params = DECODER.init_params(jax.random.key(3))
    far = jax.tree.map(
        lambda a, b: a + 0.3 * b, params, DECODER.init_params(jax.random.key(4))
    )
    logits = naive.module_logits(DECODER, params, size=256)
    rows = with_limit(FULL_ROWS, 40)
    texts = [
        naive.decode_one_by_one(logits, prompt, row, seed=seed, slots=256)
        for prompt, row, seed in zip(LONG, rows, SEEDS, strict=True)
    ]
    drafters = {**DRAFTERS, "model": (sd.DraftModel(DECODER, num_nodes=N), far)}
    drafter, drafter_params = drafters[drafter]
    generation = sd.generate(
        DECODER,
        sd.Params(params, drafter_params),
        drafter,
        LONG,
        sampling=sampling_of(rows, seed=SEEDS),
    )
    assert_same(generation, texts)
    assert generation.stats.acceptance_length() > 1.1  # or nothing was shown


def test_draft_model_of_itself_is_always_right():
    """Whatever the options, only the last block of a row may keep less than it has."""
    rows = with_limit(FULL_ROWS, 40)
    generation = sd.generate(
        *arguments("self"), PROMPTS, sampling=sampling_of(rows, seed=SEEDS)
    )
    stats = generation.stats
    np.testing.assert_array_equal(
        stats.steps, [-(-len(tokens) // N) for tokens in generation.tokens]
    )
    assert (stats.accepted[:, -1] >= stats.steps - 1).all()


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_law_that_is_the_targets_own_is_always_accepted(rule):
    """Though the residual has no mass then."""
    rows = with_limit([{"temperature": 1.0}] * 3, 40)
    target, _, drafter = arguments("iid")
    generation = sd.generate(
        target,
        sd.Params(TABLE, TABLE),
        drafter,
        PROMPTS,
        sampling=sampling_of(rows, seed=SEEDS),
        rule=rule,
    )
    assert generation.stats.steps.tolist() == [40 // N] * 3
    assert generation.stats.histogram().tolist() == [0] * (N - 1) + [30]


# --- Prompts --------------------------------------------------------------------------


def test_prompts_of_any_length_in_turn(monkeypatch):
    """One token, one chunk, several chunks, and back, on the same objects."""
    monkeypatch.setattr(_door, "MOST", 0)  # 64 tokens at once
    middle = [[(i * i + row) % 7 for i in range(50)] for row in range(3)]
    turns = (
        (PROMPTS, 64),
        ([[2], [0], [6]], 64),
        (LONG, 256),
        (middle, 256),
        (PROMPTS, 64),
    )
    rows = with_limit(PLAIN_ROWS, 10)
    for prompts, slots in turns:
        generation = sd.generate(
            *arguments("ngram"),
            prompts,
            sampling=sampling_of(rows, seed=SEEDS),
            max_length=slots,
        )
        assert_same(generation, expected_texts(rows, prompts, slots=slots))


def test_ngram_on_random_repetitive_prompts():
    """Matches everywhere, right and wrong, at the start and the end of the text."""
    random, rows = np.random.default_rng(0), with_limit(PLAIN_ROWS, 8)
    accepted = 0
    for _ in range(40):
        prompts = [random.integers(0, 3, random.integers(1, 33)).tolist() for _ in rows]
        generation = sd.generate(
            *arguments("ngram"), prompts, sampling=sampling_of(rows, seed=SEEDS)
        )
        assert_same(generation, expected_texts(rows, prompts))
        accepted += int(generation.stats.accepted[:, 1:].sum())
    assert accepted > 10


def test_prompts_that_leave_hardly_any_room():
    """A draft's length less, a token less, than all of the slots."""
    prompts = [
        [(i * i + row) % 7 for i in range(256 - n)] for row, n in enumerate((N, 1, 2))
    ]
    generation = sd.generate(
        *arguments("ngram"),
        prompts,
        sampling=sampling_of(PLAIN_ROWS, seed=SEEDS),
        max_length=256,
    )
    assert_same(generation, expected_texts(PLAIN_ROWS, prompts, slots=256))
    assert generation.reasons == ["full"] * 3


def test_a_prompt_of_stop_ids_is_a_prompt():
    rows = with_limit([{**row, "stop_ids": [2, 6]} for row in PLAIN_ROWS], 40)
    prompts = [[2, 2, 6], [6], [2, 6]]
    generation = sd.generate(
        *arguments("near"), prompts, sampling=sampling_of(rows, seed=SEEDS)
    )
    texts = expected_texts(rows, prompts)
    assert_same(generation, texts)
    assert {"stop_id"} == set(generation.reasons)
    assert max(map(len, generation.tokens)) > 1


def test_arrays_do_as_prompts():
    prompts = np.array([[1, 2], [3, 4], [5, 6]])
    rows = with_limit(PLAIN_ROWS, 10)
    sampling = sampling_of(rows, seed=np.array(SEEDS).tolist())
    generation = sd.generate(*arguments("near"), prompts, sampling=sampling)
    assert_same(generation, expected_texts(rows, prompts.tolist()))


# --- Limits ---------------------------------------------------------------------------


def test_each_row_has_its_own_limit():
    rows = [
        {**row, "max_new_tokens": limit}
        for row, limit in zip(PLAIN_ROWS, (2, 33, 7), strict=True)
    ]
    generation = sd.generate(
        *arguments("near"), PROMPTS, sampling=sampling_of(rows, seed=SEEDS)
    )
    assert_same(generation, expected_texts(rows))
    assert list(map(len, generation.tokens)) == [2, 33, 7]


@pytest.mark.parametrize("drafter", MATCHING)
def test_text_fills_the_cache_exactly(drafter):
    """Without a limit a row ends with the last slot, a draft running past it or not;
    with one that just fits, for its limit.
    """
    limits = (None, None, 60)
    rows = [
        {**row, "max_new_tokens": limit}
        for row, limit in zip(PLAIN_ROWS, limits, strict=True)
    ]
    generation = sd.generate(
        *arguments(drafter),
        PROMPTS,
        sampling=sampling_of(rows, seed=SEEDS),
        max_length=64,
    )
    assert_same(generation, expected_texts(rows))
    assert generation.reasons == ["full", "full", "length"]
    np.testing.assert_array_equal(generation.state.length, [64, 64, 64])
    np.testing.assert_array_equal(generation.state.cache.length, [63, 63, 63])
