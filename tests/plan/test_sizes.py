"""How large published models are on how many chips."""

import jax
import pytest

from specdec_jax import nn, plan, targets


def test_llama():
    """The published 8.03 billion parameters; 128 KiB of cache per token."""
    target = targets.preset("llama-3.1-8b")
    size = plan.sizes(target, batch=8, slots=4096)
    assert size.parameters == 8_030_261_248
    assert size.weights == 2 * size.parameters
    assert size.embedding == 2 * 128256 * 4096
    assert plan.token_bytes(target) == 2**17
    assert size.cache == 8 * 4096 * 2**17
    assert (size.experts, size.copies) == (0, 1)
    assert size.layer == 8 * 8 * 4096 * 128


def test_on_a_mesh():
    """Eight chips hold an eighth each, norms apart; rows divide over "data"."""
    target = targets.preset("llama-3.1-8b")
    whole = plan.sizes(target, batch=8, slots=64)
    part = plan.sizes(target, batch=8, slots=64, mesh={"data": 2, "model": 8})
    norms = 65 * 4096 * 2
    assert part.weights == (whole.weights - norms) // 8 + norms
    assert part.cache == whole.cache // 16 and part.layer == whole.layer // 16


def test_more_chips_than_kv_heads():
    """Each then holds the cache of all heads."""
    target = targets.preset("llama-3.3-70b")
    part = plan.sizes(target, batch=2, slots=64, mesh={"data": 1, "model": 16})
    assert part.copies == 16
    assert part.cache == 2 * 64 * plan.token_bytes(target)


def test_what_a_step_must_read():
    """All weights but the table that rows are taken from, and the cache, as full as it
    is.
    """
    target = targets.preset("llama-3.1-8b")
    size = plan.sizes(target, batch=8, slots=64)
    rows = 8 * 16 * 4096 * 2
    weights = size.weights - size.embedding + rows
    assert plan.step_bytes(target, size, rows=8, nodes=16) == weights + size.cache
    half = plan.step_bytes(target, size, rows=8, nodes=16, filled=0.5)
    assert half == weights + size.cache / 2


@pytest.mark.parametrize(("tokens", "share"), [(1, 8 / 128), (8, 64 / 128), (16, 1)])
def test_experts(tokens, share):
    """A step reads as many experts as its tokens can have, at most all."""
    target = targets.preset("qwen3-30b-a3b")
    size = plan.sizes(target, batch=1, slots=64)
    assert size.experts == 48 * 3 * 128 * 768 * 2048 * 2
    others = size.weights - size.embedding - size.experts
    rows = tokens * 2048 * 2
    assert plan.step_bytes(target, size, rows=1, nodes=tokens) == pytest.approx(
        others + rows + share * size.experts + size.cache
    )


@pytest.mark.parametrize("name", sorted(targets.PRESETS))
def test_every_preset_has_sizes(name):
    target = targets.preset(name)
    size = plan.sizes(target, batch=1, slots=128)
    assert size.cache == 128 * plan.token_bytes(target)
    assert size.weights == 2 * size.parameters


def test_sizes_are_those_of_arrays():
    """The same as of a model that is really there."""
    config = nn.DecoderConfig(
        vocab_size=64,
        width=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_width=8,
        mlp_width=48,
        max_length=64,
    )
    target = targets.ModuleTarget(nn.Decoder, config)
    size = plan.sizes(target, batch=3, slots=16)
    params = target.init_params(jax.random.key(0))
    cache = target.init_cache(3, 16)
    assert size.weights == sum(x.nbytes for x in jax.tree.leaves(params))
    assert size.cache == sum(x.nbytes for x in cache.keys + cache.values)
    assert size.embedding == 0  # tied: the head reads all of it
