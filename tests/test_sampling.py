"""The law of the next token, against what its options say, and its noise."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import _sampling, _tree
from specdec_jax._types import History, Options, Penalties, Sampler

pytestmark = pytest.mark.usefixtures("quick_compile")

law, draw, adjust, sample = (
    jax.jit(x)
    for x in (_sampling.law, _sampling.draw, _sampling.adjust, _sampling.sample)
)
position_noise = jax.jit(_sampling.position_noise, static_argnames="vocab_size")
step_noise = jax.jit(_sampling.step_noise, static_argnames=("role", "vocab_size"))


def sampler_of(
    temperature: Sequence[float],
    *,
    base: Sequence[int] | None = None,
    generated: Sequence[int] | None = None,
    history: History | None = None,
    noise: bool = False,
    **options: Any,
) -> Sampler:
    """Row r has key r; `options` are those of `Options`, as arrays."""
    batch = len(temperature)
    options.setdefault("stop_ids", jnp.full((batch, 1), 99, jnp.int32))
    keys = jax.vmap(jax.random.key)(np.arange(batch))
    return Sampler(
        Options(jnp.asarray(temperature, jnp.float32), **options),
        keys,
        jnp.asarray(base or [5] * batch, jnp.int32),
        jnp.asarray(generated or [0] * batch, jnp.int32),
        history,
        None,
        keys if noise else None,
    )


def roots(batch: int) -> jax.Array:
    """Path tokens of one node per row: the root, token 0."""
    return jnp.zeros((batch, 1, 1), jnp.int32)


def law_of(probabilities: list[float], temperature: float = 1, **options: Any):
    """The law of one row whose model gives these probabilities."""
    scores = jnp.log(jnp.asarray([[probabilities]], jnp.float32))
    return np.exp(law(sampler_of([temperature], **options), scores, roots(1)))[0, 0]


# --- Order ----------------------------------------------------------------------------


def test_top_k_renormalises_before_top_p():
    """Hugging Face's order keeps three; without renormalising it would be four."""
    p = [0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]
    found = law_of(p, top_k=jnp.array([4]), top_p=jnp.array([0.82]))
    np.testing.assert_allclose(
        found, [0.4375, 0.3125, 0.25, 0, 0, 0, 0, 0, 0], atol=1e-6
    )


def test_top_p_before_min_p():
    """top-p leaves three, .5 .3 .2; min-p is a share of the likeliest of them."""
    p = [0.4, 0.24, 0.16, 0.1, 0.1]
    found = law_of(p, top_p=jnp.array([0.75]), min_p=jnp.array([0.3]))
    np.testing.assert_allclose(found, [0.5, 0.3, 0.2, 0, 0], atol=1e-6)


def test_temperature_before_top_p():
    """At temperature 1/2, .5 .3 .2 is .66 .24 .11: two tokens are .85, not three."""
    found = law_of([0.5, 0.3, 0.2], temperature=0.5, top_p=jnp.array([0.85]))
    np.testing.assert_allclose(found, [25 / 34, 9 / 34, 0], atol=1e-6)


def test_bias_before_the_penalty():
    """A bias that makes a logit negative makes the penalty multiply."""
    history = History(jnp.ones((1, 2), jnp.bool_), jnp.zeros((1, 2), jnp.int32))
    penalties = Penalties(jnp.array([2.0]), jnp.zeros(1), jnp.zeros(1))
    sampler = sampler_of(
        [1.0], history=history, penalties=penalties, bias=jnp.array([[-3.0, 0.0]])
    )
    found = adjust(sampler, jnp.array([[[1.0, 1.0]]]), roots(1))
    np.testing.assert_array_equal(found, [[[-4.0, 0.5]]])


def test_filters_see_what_bans_left():
    """top-k 2 of the tokens that may come, not of all."""
    found = law_of(
        [0.5, 0.3, 0.1, 0.1],
        bias=jnp.array([[-np.inf, 0.0, 0.0, -1.0]]),
        top_k=jnp.array([2]),
    )
    np.testing.assert_allclose(found, [0, 0.75, 0.25, 0], atol=1e-6)


def test_min_new_tokens_counts_the_path():
    """Of two new tokens at least, one is generated: the root's next may not be the
    stop, the one after may. Another row has none to wait for.
    """
    sampler = sampler_of(
        [1.0, 1.0],
        generated=[1, 0],
        min_new_tokens=jnp.array([2, 0]),
        stop_ids=jnp.array([[1, 3], [1, 3]]),
    )
    paths = jnp.array([[[0, -1], [0, 2]]] * 2, jnp.int32)
    found = np.exp(law(sampler, jnp.zeros((2, 2, 3)), paths))
    third = [1 / 3] * 3
    np.testing.assert_allclose(
        found, [[[0.5, 0, 0.5], third], [third, third]], atol=1e-6
    )


# --- Temperature 0, NaN, nothing left -------------------------------------------------


def test_ties_go_to_the_lowest_id():
    scores = jnp.array([[[1.0, 3.0, 3.0, 2.0]], [[2.0, 2.0, 2.0, 2.0]]])
    for noise in (False, True):
        sampler = sampler_of([0.0, 0.0], noise=noise, top_k=jnp.array([3, 1]))
        tokens, score = draw(sampler, scores, roots(2))
        np.testing.assert_array_equal(tokens, [[1], [0]])
        np.testing.assert_array_equal(score, [[3.0], [2.0]])
    found = np.exp(law(sampler, scores, roots(2)))
    np.testing.assert_array_equal(found[:, 0], [[0, 1, 0, 0], [1, 0, 0, 0]])


FILTERS: list[Mapping[str, Any]] = [
    {},
    {"top_k": np.full(4, 2, np.int32)},
    {"top_p": np.full(4, 0.5, np.float32)},
    {"min_p": np.full(4, 0.5, np.float32)},
]


@pytest.mark.parametrize("filters", FILTERS, ids=lambda x: next(iter(x), "none"))
def test_broken_logits_are_seen(filters):
    """A NaN among the logits, of either sign, or no token left: neither law nor score
    is finite, at temperature 0 or not, and a good row is none the worse for it.
    """
    scores = jnp.tile(jnp.array([0.0, 1.0, 2.0, 3.0]), (4, 1, 1))
    scores = scores.at[1, 0, 1].set(jnp.nan).at[2, 0, 1].set(-jnp.nan)
    scores = scores.at[3].set(-jnp.inf)
    for temperature in (0.0, 1.0):
        sampler = sampler_of([temperature] * 4, noise=True, **filters)
        log_law = np.asarray(law(sampler, scores, roots(4)))[:, 0]
        tokens, score = map(np.asarray, draw(sampler, scores, roots(4)))
        assert np.exp(log_law[0]).sum() == pytest.approx(1)
        assert np.isnan(log_law[1:3]).any(-1).all() and np.isneginf(log_law[3]).all()
        assert np.isfinite(score[0]) and np.isnan(score[1:3]).all()
        assert np.isneginf(score[3])
        assert ((tokens >= 0) & (tokens < 4)).all()
        _, score = map(np.asarray, sample(log_law, np.zeros((4, 4), np.float32)))
        assert np.isfinite(score[0]) and np.isnan(score[1:3]).all()
        assert np.isneginf(score[3])


# --- Penalties ------------------------------------------------------------------------


def test_penalties_are_the_naive_ones():
    """Every node of a tree with its own history, duplicates on a path and a logit of
    exactly 0 included; three rows of different penalties.
    """
    random = np.random.default_rng(0)
    batch, vocab_size, size = 3, 6, 4
    parents = np.tile(np.array([-1, 0, 1, 2, 0, 4], np.int32), (batch, 1))
    tokens = np.array(
        [[0, 3, 3, 3, 2, 0], [5, 1, 2, 1, 1, 4], [2, 2, 2, 2, 0, 2]], np.int32
    )
    scores = random.normal(0, 2, (batch, 6, vocab_size)).astype(np.float32)
    scores[:, :, 3] = 0.0
    prompted = random.random((batch, vocab_size)) < 0.4
    counts = random.integers(0, 3, (batch, vocab_size), dtype=np.int32)
    penalties = np.array([[1.3, 0.0, 0.0], [1.0, 0.7, 0.4], [0.6, -0.5, 1.1]])
    sampler = sampler_of(
        [1.0] * batch,
        history=History(jnp.asarray(prompted), jnp.asarray(counts)),
        penalties=Penalties(*jnp.asarray(penalties.T, jnp.float32)),
    )
    path_tokens = _tree.path_tokens(
        jnp.asarray(tokens), _tree.paths(jnp.asarray(parents), size=size)
    )
    found = np.asarray(adjust(sampler, jnp.asarray(scores), path_tokens))
    for row, node, token in itertools.product(range(batch), range(6), range(6)):
        repetition, presence, frequency = penalties[row]
        path = [x for x in np.asarray(path_tokens)[row, node, 1:] if x >= 0]
        said = counts[row, token] + path.count(token)
        x = float(scores[row, node, token])
        if prompted[row, token] or said:
            x = x / repetition if x > 0 else x * repetition
        x -= presence * (said > 0) + frequency * said
        assert found[row, node, token] == pytest.approx(x, abs=1e-5), (row, node, token)


# --- Noise ----------------------------------------------------------------------------


def test_position_noise_knows_seed_and_position_only():
    keys = jax.vmap(jax.random.key)(np.array([3, 4]))
    positions = jnp.array([[7, 8, 9], [8, 7, 100]], jnp.int32)
    noise = np.asarray(position_noise(keys, positions, vocab_size=5))
    for row, at in np.ndindex(2, 3):
        alone = position_noise(
            keys[row : row + 1], positions[row : row + 1, at : at + 1], vocab_size=5
        )
        np.testing.assert_array_equal(alone[0, 0], noise[row, at])
    assert len(np.unique(noise)) == noise.size  # nothing twice


def test_noise_never_repeats():
    """Roles, slots, steps and rows have noise of their own, and a step's coins are
    nobody's noise.
    """
    roles = (_sampling.NOISE, _sampling.DRAFT, _sampling.ACCEPT, _sampling.NEXT)
    assert len(set(roles)) == 4
    drawn = []
    for base in (5, 6, 7):
        sampler = sampler_of([1.0, 0.0], base=[base, base + 1])
        for slot in range(3):
            drawn.append(step_noise(sampler, _sampling.DRAFT, slot, vocab_size=4))
        drawn.append(step_noise(sampler, _sampling.NEXT, 0, vocab_size=4))
        coins = _sampling.accept_coins(sampler, num_nodes=4)
        assert ((coins >= 0) & (coins < 1)).all()
        drawn.append(-jnp.log(-jnp.log(coins)))  # as Gumbel noise is made of them
    positions = jnp.arange(12, dtype=jnp.int32).reshape(1, 12) * jnp.ones((2, 1), int)
    at = position_noise(sampler.keys, positions, vocab_size=4)
    every = np.concatenate([np.ravel(x) for x in (*drawn, at)])
    assert len(np.unique(every)) == every.size


def test_no_noise_where_nobody_samples():
    sampler = sampler_of([0.0, 0.0])
    noise = step_noise(sampler, _sampling.NEXT, 0, vocab_size=4)
    np.testing.assert_array_equal(noise, np.zeros((2, 4)))


@pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, 0, 0, 1, 3, 1]], ids=str)
def test_draw_is_the_argmax_of_law_and_noise(parents):
    """On chains and on trees, whose nodes share the noise of their depth; the score is
    the token's own.
    """
    random, batch, vocab_size = np.random.default_rng(1), 6, 9
    tiled = jnp.tile(jnp.asarray([parents], jnp.int32), (batch, 1))
    size = int(_tree.depths(tiled).max()) + 1
    tokens = jnp.asarray(random.integers(0, vocab_size, tiled.shape), jnp.int32)
    path_tokens = _tree.path_tokens(tokens, _tree.paths(tiled, size=size))
    scores = jnp.asarray(random.normal(0, 2, (*tiled.shape, vocab_size)), jnp.float32)
    sampler = sampler_of(
        [0.0, 0.3, 1.0, 1.0, 1.7, 0.0],
        base=[3, 3, 4, 5, 90, 7],
        noise=True,
        top_k=jnp.array([9, 9, 3, 9, 9, 2]),
        top_p=jnp.array([1.0, 1.0, 1.0, 0.6, 0.9, 0.5]),
        min_p=jnp.array([0.0, 0.0, 0.0, 0.0, 0.1, 0.0]),
    )
    found, score = map(np.asarray, draw(sampler, scores, path_tokens))
    log_law = np.asarray(law(sampler, scores, path_tokens))
    positions = sampler.base[:, None] + 1 + _tree.depths(tiled)
    noise = position_noise(sampler.keys, positions, vocab_size=vocab_size)
    np.testing.assert_array_equal(found, (log_law + np.asarray(noise)).argmax(-1))
    np.testing.assert_array_equal(
        score, np.take_along_axis(np.asarray(scores), found[:, :, None], 2)[:, :, 0]
    )
