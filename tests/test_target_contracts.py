"""The contract of `Target`: every one of them through the same behaviours.

A new one is a line in `TARGETS`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DECODER, TABLE, TOY, poisoned_cache
from flax import nnx
from jaxtyping import Array

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax._types import Block, Cache, Pending, Target, TargetOutput, check
from specdec_jax.targets import ModuleTarget

pytestmark = pytest.mark.usefixtures("quick_compile")

V = TOY.vocab_size


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    vocab_size: int = V
    width: int = 12
    num_layers: int = 2
    num_kv_heads: int = 3
    head_width: int = 4
    max_length: int = 64
    dtype: str = "float32"


class Own(nnx.Module):
    """A user's own network: learned positions, no norm, one call for attention."""

    def __init__(self, config: OwnConfig, *, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(config.vocab_size, config.width, rngs=rngs)
        self.positions = nnx.Embed(config.max_length, config.width, rngs=rngs)
        linear = functools.partial(nnx.Linear, config.width, 3 * config.width)
        self.maps = nnx.List([linear(rngs=rngs) for _ in range(config.num_layers)])

    def embed(self, tokens):
        return self.tokens(tokens)

    def logits(self, hidden):
        return self.tokens.attend(hidden)

    def __call__(self, tokens, positions, attend, tap):
        x = self.tokens(tokens) + self.positions(positions)
        tap(-1, x)
        for layer, linear in enumerate(self.maps):
            query, key, value = jnp.split(linear(x).reshape(*x.shape[:2], 3, 12), 3, -1)
            x = x + attend(layer, query, key, value).reshape(x.shape)
            tap(layer, x)
        return x


OWN = ModuleTarget(Own, OwnConfig())
TARGETS = {
    "toy": (TOY, TABLE),
    "decoder": (DECODER, DECODER.init_params(jax.random.key(5))),
    "own": (OWN, OWN.init_params(jax.random.key(7))),
}
every_target = pytest.mark.parametrize(
    ("target", "params"), TARGETS.values(), ids=TARGETS.keys()
)
T = 5
TOKENS = np.random.default_rng(8).integers(0, V, (3, 2 * T)).astype(np.int32)
LENGTHS = (5, 2, 0)  # of the prefixes that targets are tried after
TREES = ((-1, 0, 0, 1, 2), (-1, 0, 1, 1, 0), (-1, 0, 0, 0, 3))  # one per row


@functools.partial(jax.jit, static_argnames=("target", "taps"))
def tapped(target, params, cache, block, taps) -> Array:
    """Features alone, of any taps."""
    return target.forward(params, cache, block, taps).features


@functools.partial(jax.jit, static_argnames="target")
def read(target, params, cache, block, length) -> tuple[TargetOutput, Array, Cache]:
    """A forward, its logits, and the cache with the first tokens of the block."""
    taps = (*range(-1, target.num_layers), "final")
    output = check(target.forward(params, check(cache), check(block), taps))
    steps = jnp.arange(block.tokens.shape[1], dtype=jnp.int32)
    path = jnp.broadcast_to(steps, block.tokens.shape)
    cache = check(target.commit(cache, check(output.pending), path, length))
    return output, target.logits(params, output.hidden), cache


def after_prefixes(target, params, slots: int = 16) -> Cache:
    """A cache whose rows hold the first 5, 2 and 0 of `TOKENS`."""
    block = _tree.causal_block(jnp.asarray(TOKENS[:, :T]))
    cache = target.init_cache(3, slots)
    return read(target, params, cache, block, jnp.asarray(LENGTHS, jnp.int32))[2]


def assert_close(one: Any, other: Any) -> None:
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), one, other)


@every_target
def test_a_target_is_a_static_value(target, params):
    again = dataclasses.replace(target)
    assert isinstance(again, Target)
    assert again == target and hash(again) == hash(target)
    cache = target.init_cache(2, 16)
    assert cache.keys[0].shape[:3:2] == (2, 16)
    assert not any(x.any() for x in jax.tree.leaves(cache))
    shapes = jax.eval_shape(target.init_params, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)


@every_target
def test_a_block_reads_as_its_tokens_one_by_one(target, params):
    """After prefixes of 5, 2 and no tokens; features and cache included."""
    cache = after_prefixes(target, params)
    tokens = jnp.asarray(TOKENS[:, T:])
    whole, logits, after = read(
        target, params, cache, _tree.causal_block(tokens), jnp.full(3, T, jnp.int32)
    )
    assert logits.shape == (3, T, V) and logits.dtype == jnp.float32
    for i in range(T):
        block = _tree.causal_block(tokens[:, i : i + 1])
        one, one_logits, cache = read(
            target, params, cache, block, jnp.ones(3, jnp.int32)
        )
        assert_close(one_logits, logits[:, i : i + 1])
        assert_close(one.hidden, whole.hidden[:, i : i + 1])
        assert_close(one.features, whole.features[:, i : i + 1])
    assert_close(cache, after)
    assert np.std(logits, axis=(0, 1)).max() > 0.01  # not the same everywhere


@every_target
def test_a_node_of_a_tree_reads_as_its_path_alone(target, params):
    """Another tree in every row."""
    cache, nothing = after_prefixes(target, params), jnp.zeros(3, jnp.int32)
    parents = jnp.asarray(TREES, jnp.int32)
    tokens = jnp.asarray(TOKENS[:, T:])
    above = _tree.ancestors(parents)
    tree = Block(tokens, _tree.depths(parents), above)
    output, logits, _ = read(target, params, cache, tree, nothing)
    paths = np.asarray(_tree.paths(parents, size=T))
    for node in range(T):
        own = np.maximum(paths[:, node], 0)  # beyond a path the root fills up
        chain = _tree.causal_block(jnp.take_along_axis(tokens, jnp.asarray(own), 1))
        alone, alone_logits, _ = read(target, params, cache, chain, nothing)
        for row in range(3):
            depth = int((paths[row, node] >= 0).sum()) - 1
            assert_close(logits[row, node], alone_logits[row, depth])
            assert_close(output.features[row, node], alone.features[row, depth])


@every_target
def test_taps_are_what_they_are_called(target, params):
    """In the order asked for; -1 enters layer 0, "final" is the hidden state."""
    cache = after_prefixes(target, params)
    block = _tree.causal_block(jnp.asarray(TOKENS[:, T:]))
    width, last = target.width, target.num_layers - 1
    output = read(target, params, cache, block, jnp.zeros(3, jnp.int32))[0]
    assert output.features.shape[-1] == (target.num_layers + 2) * width
    parts = jnp.split(output.features, target.num_layers + 2, axis=-1)
    np.testing.assert_array_equal(parts[-1], output.hidden)
    if target is not OWN:  # its positions are added before layer 0
        np.testing.assert_array_equal(parts[0], target.embed(params, block.tokens))
    mixed = tapped(target, params, cache, block, ("final", last, -1))
    assert_close(mixed, jnp.concatenate([parts[-1], parts[-2], parts[0]], -1))
    none = jax.eval_shape(
        functools.partial(tapped, target, taps=()), params, cache, block
    )
    assert none.shape == (3, T, 0)


class Probe(nnx.Module):
    """The residual stream after layer i is i."""

    def __init__(self, config, *, rngs):
        self.unused = nnx.Param(jnp.zeros(()))

    def embed(self, tokens):
        return jnp.full((*tokens.shape, 2), -1.0)

    def logits(self, hidden):
        return hidden

    def __call__(self, tokens, positions, attend, tap):
        x = self.embed(tokens)
        tap(-1, x)
        for layer in range(4):
            attend(layer, x[:, :, None], x[:, :, None], x[:, :, None])
            x = jnp.full_like(x, layer)
            tap(layer, x)
        return jnp.full_like(x, 99.0)


def test_taps_of_a_model_whose_layer_i_says_i():
    config = OwnConfig(width=2, num_layers=4, num_kv_heads=1, head_width=2)
    target = ModuleTarget(Probe, config)
    block = _tree.causal_block(jnp.zeros((1, 1), jnp.int32))
    features = tapped(
        target,
        {"unused": jnp.zeros(())},
        target.init_cache(1, 4),
        block,
        (2, "final", -1, 0),
    )
    assert features[0, 0].tolist() == [2, 2, 99, 99, -1, -1, 0, 0]


@every_target
def test_unused_slots_change_nothing(target, params):
    cache, nothing = after_prefixes(target, params), jnp.zeros(3, jnp.int32)
    block = _tree.causal_block(jnp.asarray(TOKENS[:, T:]))
    clean = read(target, params, cache, block, nothing)
    dirty = read(target, params, poisoned_cache(cache), block, nothing)
    assert np.isnan(poisoned_cache(cache).keys[0]).any()
    assert np.isfinite(clean[1]).all()
    for a, b in zip(
        jax.tree.leaves(clean[:2]), jax.tree.leaves(dirty[:2]), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@every_target
def test_commit_appends_a_path_and_drops_what_does_not_fit(target, params):
    """In any order of nodes, only the first `length`, and never over old entries."""
    slots = 6
    cache = after_prefixes(target, params, slots)
    block = _tree.causal_block(jnp.asarray(TOKENS[:, T:]))
    output, _, _ = read(target, params, cache, block, jnp.zeros(3, jnp.int32))
    path = jnp.asarray([[0, 2, 4], [0, 1, 3], [0, 4, 0]], jnp.int32)
    length = jnp.asarray([3, 2, 0], jnp.int32)  # row 0 has room for one
    after = target.commit(cache, output.pending, path, length)
    np.testing.assert_array_equal(after.length[1:], [4, 0])
    for old, new, kept in zip(
        jax.tree.leaves(cache[:2]),
        jax.tree.leaves(after[:2]),
        jax.tree.leaves(tuple(output.pending)),
        strict=True,
    ):
        wanted = np.array(old)
        wanted[0, :, 5] = kept[0, :, 0]
        wanted[1, :, 2:4] = np.asarray(kept)[1][:, [0, 1]]
        np.testing.assert_array_equal(new, wanted)


def test_toy_is_exact_to_its_last_slot():
    """Sums over thousands of tokens are whole numbers still."""
    toy, slots = sd.Toy(), sd.Toy().max_length
    tokens = np.random.default_rng(9).integers(0, 13, slots).astype(np.int32)
    positions = np.arange(1, slots + 1, dtype=np.float32)
    cache = Cache(
        (jnp.asarray(positions).reshape(1, 1, slots, 1),),
        (jnp.asarray(tokens + 1, jnp.float32).reshape(1, 1, slots, 1),),
        jnp.asarray([slots - 1], jnp.int32),
    )
    block = _tree.causal_block(jnp.asarray(tokens[None, -1:]))
    hidden = toy.forward({}, cache, block, ()).hidden
    assert int(hidden.argmax()) == toy.context(tokens.tolist())


# --- `check` itself -------------------------------------------------------------------


def test_check_names_the_field():
    block = _tree.causal_block(jnp.zeros((2, 3), jnp.int32))
    with pytest.raises(TypeError, match=r"Block\.mask"):
        check(block._replace(mask=block.mask.astype(jnp.int32)))
    with pytest.raises(TypeError, match=r"Block\.depths"):
        check(block._replace(depths=jnp.zeros((2, 4), jnp.int32)))
    pending = Pending((jnp.zeros((1, 2, 3, 4)),), (jnp.zeros((1, 2, 3, 5)),))
    with pytest.raises(TypeError, match=r"TargetOutput\.pending\.values"):
        check(TargetOutput(jnp.zeros((1, 3, 2)), jnp.zeros((1, 3, 0)), pending))
