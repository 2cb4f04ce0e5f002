"""How large published models are on how many chips."""

import dataclasses

import jax
import pytest

import specdec_jax as sd
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
    assert (
        plan.step_bytes(target, size, rows=8, nodes=16, vmem=0) == weights + size.cache
    )
    half = plan.step_bytes(target, size, rows=8, nodes=16, vmem=0, filled=0.5)
    assert half == weights + size.cache / 2


@pytest.mark.parametrize(("tokens", "share"), [(1, 8 / 128), (8, 64 / 128), (16, 1)])
def test_experts(tokens, share):
    """A step reads as many experts as its tokens can have, at most all."""
    target = targets.preset("qwen3-30b-a3b")
    size = plan.sizes(target, batch=1, slots=64)
    assert size.experts == 48 * 3 * 128 * 768 * 2048 * 2
    others = size.weights - size.embedding - size.experts
    rows = tokens * 2048 * 2
    assert plan.step_bytes(target, size, rows=1, nodes=tokens, vmem=0) == pytest.approx(
        others + rows + share * size.experts + size.cache
    )


@pytest.mark.parametrize("name", sorted(targets.PRESETS))
def test_every_preset_has_sizes(name):
    target = targets.preset(name)
    size = plan.sizes(target, batch=1, slots=128)
    assert size.cache == 128 * plan.token_bytes(target)
    assert size.weights == 2 * size.parameters


TREE = sd.GrownTree(num_nodes=60, depth=8, width=10)


def test_a_head_of_eagle_3():
    """Llama-3.1-8B's as published, an eighth on each chip but for norms and ids. What
    fuses the taps is used once, all else for every level.
    """
    target = targets.preset("llama-3.1-8b")
    drafter = plan.eagle3(target, TREE)
    mesh = {"data": 1, "model": 8}
    size = plan.sizes(target, batch=8, slots=4096, mesh=mesh, drafter=drafter)
    layer = 2 * (2 * 4096 + 1024 + 1024) * 4096 - 4096**2 + 3 * 14336 * 4096
    fusion, output, norms = 3 * 4096**2, 32000 * 4096, 4 * 4096
    assert size.drafter_weights == (
        (layer + fusion + output) // 4 + 2 * norms + 4 * 32000
    )
    assert size.draft_again == (layer + output) // 4 + 2 * norms
    assert (size.draft_levels, size.draft_output) == (8, 0)
    assert size.drafter_cache == 8 * 4096 * 2 * 128 * 2
    alone = plan.sizes(target, batch=8, slots=4096, mesh=mesh)
    assert size.held - alone.held == size.drafter_weights + size.drafter_cache
    step = {"rows": 8, "nodes": 60}
    least = plan.step_bytes(target, alone, vmem=0, **step)
    fits = size.draft_again + size.drafter_cache
    assert fits < plan.CHIPS["v5e"].vmem
    once = least + size.drafter_weights + size.drafter_cache
    assert plan.step_bytes(target, size, vmem=fits, **step) == once
    # What VMEM cannot hold comes again for each level after the first.
    assert plan.step_bytes(target, size, vmem=fits - 100, **step) == once + 7 * 100
    assert plan.step_bytes(target, size, vmem=0, **step) == once + 7 * fits


def test_a_head_of_eagle():
    """It is read by the target's own output layer, which drafting reads besides."""
    target = targets.preset("smollm2-135m")
    size = plan.sizes(target, batch=1, slots=64, drafter=plan.eagle(target, TREE))
    assert size.draft_output == 49152 * 576 * 2
    assert size.draft_again == size.drafter_weights + size.draft_output
    alone = plan.sizes(target, batch=1, slots=64)
    step = {"rows": 1, "nodes": 60, "vmem": 2**27}
    assert plan.step_bytes(target, size, **step) == (
        plan.step_bytes(target, alone, **step) + size.draft_again + size.drafter_cache
    )
    # A head that knows all of a small vocabulary has no ids of its own.
    small = dataclasses.replace(
        target, config=dataclasses.replace(target.config, vocab_size=32000)
    )
    assert plan.eagle3(small, TREE).config.draft_vocab_size is None
    assert plan.eagle3(target, TREE).config.draft_vocab_size == plan.HEAD_TOKENS


@pytest.mark.parametrize(("make", "width"), [(plan.dflash, 16), (plan.dspark, 8)])
def test_a_drafter_of_blocks(make, width):
    """Its body once, and the target's output layer, which it shares, once more."""
    target = targets.preset("qwen3-8b")
    drafter = make(target, None) if make is plan.dflash else make(target)
    mesh = {"data": 1, "model": 8}
    size = plan.sizes(target, batch=8, slots=4096, mesh=mesh, drafter=drafter)
    alone = plan.sizes(target, batch=8, slots=4096, mesh=mesh)
    layer = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288)  # bytes
    body = 5 * layer + 2 * 5 * 4096 * 4096
    markov = 2 * 2 * 151936 * 256 if make is plan.dspark else 0
    assert size.drafter_weights == pytest.approx((body + markov) / 8, rel=1e-3)
    assert size.drafter_cache == 5 * 2 * 8 * 4096 * 1024 * 2 // 8
    assert size.draft_output == 2 * 151936 * 4096 // 8
    step = {"rows": 8, "nodes": width, "vmem": 0}
    assert plan.step_bytes(target, size, **step) == (
        plan.step_bytes(target, alone, **step)
        + size.drafter_weights
        + size.drafter_cache
        + size.draft_output
    )


def test_a_small_head_makes_the_proof_stricter():
    """A copy of the smaller layer counts already."""
    target = targets.preset("llama-3.1-8b")
    head = plan.eagle3(target, TREE)
    config = dataclasses.replace(head.config, num_kv_heads=2)
    narrow = dataclasses.replace(head, config=config)
    size = plan.sizes(target, batch=8, slots=64, drafter=narrow)
    assert size.layer == 8 * 2 * 64 * 128


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
