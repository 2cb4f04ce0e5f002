"""The networks of EAGLE: one decoder layer over a feature of the target and the token
that follows it.

EAGLE (Li et al. 2024, arXiv 2401.15077, §4.1) foretells the target's next feature.
EAGLE-3 (Li et al. 2025, arXiv 2503.01840, §3) fuses several taps, recycles its own
state, and has an output layer of its own, over the tokens that matter.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specdec_jax import _sharding
from specdec_jax.nn._decoder import Attend, Attention
from specdec_jax.nn._head_parts import norm_of, own_table
from specdec_jax.nn._layers import MLP, Linear, RoPE
from specdec_jax.nn._product import product


@dataclasses.dataclass(frozen=True)
class EagleConfig:
    """Sizes of a head, and what published ones do differently.

    Args:
        width: of its states: that of its target, whose features they are.
        rope: its own: published heads do not inherit their target's.
        fusion_bias: of the map that joins token and state.
        attention_bias: of queries, keys and values.
        num_layers: the first reads what is fused, the others are plain decoder layers.
        own_embedding: it has a table of tokens of its own (`params["embedding"]`, "V
            D"), instead of the target's.
        window: how many positions a row sees, its own included; None for all.
    """

    width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    rope: RoPE = RoPE()
    norm_epsilon: float = 1e-5
    fusion_bias: bool = True
    attention_bias: bool = False
    num_layers: int = 1
    own_embedding: bool = False
    window: int | None = None
    dtype: str = "float32"
    cache_dtype: str | None = None  # of keys and values, if it is another


class EagleLayer(nnx.Module):
    """A decoder layer; the first has no norm before its attention."""

    def __init__(self, config: EagleConfig, *, is_first: bool, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.attention_norm = None if is_first else norm_of(config, width)
        self.attention = Attention(config, config.rope, window=config.window, rngs=rngs)
        self.mlp_norm = norm_of(config, width)
        self.mlp = MLP(width, config.mlp_width, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        layer: int,
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        normed = x if self.attention_norm is None else self.attention_norm(x)
        x = x + self.attention(normed, positions, layer, attend)
        return x + self.mlp(self.mlp_norm(x))


class EagleHead(nnx.Module):
    """EAGLE's: no norm comes after its layer, whose output is a feature."""

    def __init__(self, config: EagleConfig, *, vocab_size: int, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.embedding = own_table(config, vocab_size, rngs)
        self.fusion = Linear(
            2 * width, width, bias=config.fusion_bias, dtype=dtype, rngs=rngs
        )
        self.layers = nnx.List(
            [
                EagleLayer(config, is_first=i == 0, rngs=rngs)
                for i in range(config.num_layers)
            ]
        )

    def fuse(self, features: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """A feature is a state already."""
        return features

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        state: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        """The feature of the position after each row's."""
        both = jnp.concatenate([embedded, state], axis=-1)
        x = self.fusion(_sharding.spread(both))
        for i, layer in enumerate(self.layers):
            x = layer(x, positions, i, attend)
        return x


@dataclasses.dataclass(frozen=True)
class Eagle3Config(EagleConfig):
    """Sizes of an EAGLE-3 head, and the switches of published ones. With an embedding
    of its own, its width need not be its target's.

    Args:
        feature_width: of all taps together, as many times the target's width.
        draft_vocab_size: how many tokens it knows; None for all of the target's.
        query_key_norm: of each head, before the rotation (as in Qwen3).
        norm_before_fusion: norm the taps together first.
        norm_each_tap: norm each of so many taps first; 0 for none.
        norm_before_residual: the residual stream starts from the normed state.
        recycle_normed: what goes on is the state after the last norm.
    """

    feature_width: int = 0
    draft_vocab_size: int | None = None
    fusion_bias: bool = False
    query_key_norm: bool = False
    norm_before_fusion: bool = False
    norm_each_tap: int = 0
    norm_before_residual: bool = False
    recycle_normed: bool = False


class Eagle3Layer(nnx.Module):
    """A decoder layer; the first reads the token beside the state."""

    def __init__(self, config: Eagle3Config, *, is_first: bool, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.norm_before_residual = config.norm_before_residual and is_first
        self.state_norm = norm_of(config, width)
        self.token_norm = norm_of(config, width) if is_first else None
        inputs = 2 * width if is_first else width
        self.attention = Attention(
            config,
            config.rope,
            inputs=inputs,
            window=config.window,
            head_norm=(lambda: norm_of(config, config.head_width))
            if config.query_key_norm
            else None,
            rngs=rngs,
        )
        self.mlp_norm = norm_of(config, width)
        self.mlp = MLP(width, config.mlp_width, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        state: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        layer: int,
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        normed = self.state_norm(state)
        x = normed if self.norm_before_residual else state
        if self.token_norm is not None:
            normed = jnp.concatenate([self.token_norm(embedded), normed], axis=-1)
        x = x + self.attention(normed, positions, layer, attend)
        return x + self.mlp(self.mlp_norm(x))


class Eagle3Head(nnx.Module):
    """EAGLE-3's: genuine rows are fused taps, drafted rows its own states."""

    def __init__(self, config: Eagle3Config, *, vocab_size: int, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.recycle_normed = config.recycle_normed
        self.embedding = own_table(config, vocab_size, rngs)
        taps = config.norm_each_tap
        self.fusion_norm = (
            norm_of(config, config.feature_width) if config.norm_before_fusion else None
        )
        self.tap_norms = nnx.List(
            [norm_of(config, config.feature_width // taps) for _ in range(taps)]
        )
        self.fusion = Linear(
            config.feature_width,
            width,
            bias=config.fusion_bias,
            dtype=dtype,
            rngs=rngs,
        )
        self.layers = nnx.List(
            [
                Eagle3Layer(config, is_first=i == 0, rngs=rngs)
                for i in range(config.num_layers)
            ]
        )
        self.norm = norm_of(config, width)
        size = config.draft_vocab_size or vocab_size
        self.head = Linear(width, size, dtype=dtype, rngs=rngs)

    def fuse(self, features: Float[Array, "B T F"]) -> Float[Array, "B T D"]:
        """A state of a position whose taps are known."""
        if self.fusion_norm is not None:
            features = self.fusion_norm(features)
        if len(self.tap_norms):
            parts = jnp.split(features, len(self.tap_norms), axis=-1)
            parts = [norm(x) for norm, x in zip(self.tap_norms, parts, strict=True)]
            features = jnp.concatenate(parts, axis=-1)
        return self.fusion(_sharding.spread(features))

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        state: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        """The state of the position after each row's."""
        for i, layer in enumerate(self.layers):
            state = layer(embedded, state, positions, i, attend)
        return self.norm(state) if self.recycle_normed else state

    def logits(self, state: Float[Array, "B T D"]) -> Float[Array, "B T W"]:
        """Float32, over the tokens that it knows."""
        normed = state if self.recycle_normed else self.norm(state)
        return product(normed, self.head.weight[...])
