"""A `Sampling` as arrays: what is off, what a row gets, and whose key is whose."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec_jax as sd
from specdec_jax import _options
from specdec_jax._options import Request, make_request

V = 7


def request(batch: int = 2, samples: int = 1, **options) -> Request:
    sampling = sd.Sampling(**options)
    return make_request(sampling, batch=batch, vocab_size=V, samples=samples)


def assert_same_keys(found: jax.Array, wanted: list[jax.Array]) -> None:
    np.testing.assert_array_equal(
        jax.random.key_data(found), [jax.random.key_data(key) for key in wanted]
    )


def test_what_no_row_uses_is_off():
    """On or off is static, so that an option that is off costs nothing."""
    options = request(top_k=[0, 0], top_p=1.0, bias=[{}, {}], banned_ids=()).options
    for name, value in options._asdict().items():
        assert (value is None) == (name not in ("temperature", "stop_ids")), name
    assert request().max_new_tokens.tolist() == [_options.NO_LIMIT] * 2
    assert request().stops is None


def test_what_one_row_uses_is_neutral_for_the_others():
    options = request(
        top_k=[3, 0],
        top_p=[1.0, 0.5],
        min_p=[0.0, 0.1],
        presence_penalty=[0.0, 1.0],
        min_new_tokens=[0, 2],
        allowed_ids=[None, [1, 2]],
    ).options
    assert options.top_k is not None and options.top_k.tolist() == [3, V]
    assert options.top_p is not None and options.top_p.tolist() == [1.0, 0.5]
    assert options.penalties is not None
    assert options.penalties.repetition.tolist() == [1.0, 1.0]
    assert options.bias is not None
    assert np.isfinite(options.bias).sum(1).tolist() == [V, 2]


def test_a_banned_token_stays_banned():
    """Whatever its bias, and though it is among the allowed."""
    options = request(
        bias={1: 9.0, 2: -1.0}, banned_ids=[1], allowed_ids=[1, 2]
    ).options
    assert options.bias is not None
    assert options.bias[0].tolist() == [-np.inf, -np.inf, -1.0, *[-np.inf] * 4]


def test_stop_ids_are_padded_with_no_id():
    """In eights, so that one more needs no other program."""
    stop_ids = request(stop_ids=[[1, 2], []]).options.stop_ids
    assert stop_ids.tolist() == [[1, 2, *[V] * 6], [V] * 8]
    assert request(stop_ids=[0] * 9).options.stop_ids.shape == (2, 16)


@pytest.mark.usefixtures("unchecked")
def test_arrays_do_for_sequences():
    plain = request(temperature=[0.5, 1.0], seed=[3, 4])
    for kind in (np.array, jnp.array):
        other = request(temperature=kind([0.5, 1.0]), seed=kind([3, 4]))
        assert other.options.temperature.tolist() == [0.5, 1.0]
        assert_same_keys(other.keys, list(plain.keys))
        one = request(seed=kind(3))
        assert_same_keys(one.keys, list(request(seed=3).keys))


# --- Keys -----------------------------------------------------------------------------


def folded(seed: int, number: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(np.uint32(seed)), number)


def test_rows_fold_their_number_into_a_shared_seed():
    assert_same_keys(request(seed=5).keys, [folded(5, 0), folded(5, 1)])
    largest = 2**32 - 1
    assert_same_keys(
        request(seed=largest).keys, [folded(largest, 0), folded(largest, 1)]
    )


def test_a_seed_of_ones_own_is_not_folded():
    """So a row says the same in any batch."""
    keys = request(seed=[5, 2**32 - 1]).keys
    wanted = [jax.random.key(np.uint32(seed)) for seed in (5, 2**32 - 1)]
    assert_same_keys(keys, wanted)


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [
        (5, [(5, 0), (5, 1), (5, 2), (5, 3)]),
        ([5, 6], [(5, 0), (5, 1), (6, 0), (6, 1)]),
    ],
)
def test_samples_have_keys_of_their_own(seed, wanted):
    found = request(seed=seed, samples=2).keys
    assert_same_keys(found, [folded(seed, number) for seed, number in wanted])


def test_samples_share_all_else():
    """Every option of a row is repeated, in the order of the rows."""
    found = request(
        samples=2,
        temperature=[0.1, 0.2],
        max_new_tokens=[3, 4],
        stop_ids=[[1], [2]],
        bias=[{1: 1.0}, {}],
        stop_strings=[["a"], ["b"]],
        token_bytes=[b"a"] * V,
    )
    assert found.options.temperature.shape == (4,)
    np.testing.assert_allclose(found.options.temperature, [0.1, 0.1, 0.2, 0.2])
    assert found.max_new_tokens.tolist() == [3, 3, 4, 4]
    assert found.options.stop_ids[:, 0].tolist() == [1, 1, 2, 2]
    assert found.options.bias is not None
    assert found.options.bias[:, 1].tolist() == [1, 1, 0, 0]
    assert found.stops is not None and found.stops.group.tolist() == [0, 0, 1, 1]


def test_arrays_of_ids_per_row(unchecked):
    found = request(stop_ids=[np.array([1, 2]), np.array([], int)])
    assert found.options.stop_ids[:, :2].tolist() == [[1, 2], [V, V]]
    bias = request(banned_ids=[np.array([0]), {1, 2}]).options.bias
    assert bias is not None
    assert np.isneginf(bias).sum(1).tolist() == [1, 2]


def test_a_huge_top_k_keeps_everything():
    found = request(top_k=[2**40, 3]).options.top_k
    assert found is not None and found.tolist() == [V, 3]


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_the_default_kind_of_random_numbers_is_of_no_matter(kind):
    """Other kinds draw otherwise in a batch than alone, so nothing here uses them."""
    toy = sd.Toy()
    weights = toy.init_params(jax.random.key(0))
    params = sd.Params(weights, weights)
    sampling = sd.Sampling(temperature=1.0, seed=[1, 2], max_new_tokens=12)

    def texts(drafter):
        found = sd.generate(toy, params, drafter, [[1], [2, 0]], sampling=sampling)
        return [row.tolist() for row in found.tokens]

    expected = texts(sd.Plain())
    before = jax.config.values["jax_default_prng_impl"]
    jax.config.update("jax_default_prng_impl", kind)
    try:
        assert texts(sd.Plain()) == texts(sd.DraftModel(toy)) == expected
    finally:
        jax.config.update("jax_default_prng_impl", before)


@pytest.mark.usefixtures("unchecked")
def test_ids_in_an_array():
    ids: Any = np.array([1, 2])
    request = make_request(sd.Sampling(stop_ids=ids), batch=2, vocab_size=5)
    assert request.options.stop_ids[:, :2].tolist() == [[1, 2], [1, 2]]
