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
from specdec_jax.nn._layers import MLP, Linear, RMSNorm, RoPE


@dataclasses.dataclass(frozen=True)
class EagleConfig:
    """Sizes of a head, whose width is its target's.

    `rope` is the head's own: published heads do not inherit their target's.
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
    dtype: str = "float32"


class EagleHead(nnx.Module):
    """EAGLE's: the layer has no norm before its attention, and none comes after it."""

    def __init__(self, config: EagleConfig, *, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.fusion = Linear(
            2 * width, width, bias=config.fusion_bias, dtype=dtype, rngs=rngs
        )
        self.attention = Attention(config, config.rope, rngs=rngs)
        self.mlp_norm = RMSNorm(width, epsilon=config.norm_epsilon, dtype=dtype)
        self.mlp = MLP(width, config.mlp_width, dtype=dtype, rngs=rngs)

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
        x = x + self.attention(x, positions, 0, attend)
        return x + self.mlp(self.mlp_norm(x))


@dataclasses.dataclass(frozen=True)
class Eagle3Config(EagleConfig):
    """Sizes of an EAGLE-3 head, and the switches of published ones.

    Args:
        feature_width: of all taps together.
        draft_vocab_size: how many tokens it knows; None for all of the target's.
        num_layers: after the first, plain decoder layers.
        norm_before_fusion: norm the taps together first.
        norm_each_tap: norm each of so many taps first; 0 for none.
        norm_before_residual: the residual stream starts from the normed state.
        recycle_normed: what goes on is the state after the last norm.
    """

    feature_width: int = 0
    draft_vocab_size: int | None = None
    fusion_bias: bool = False
    norm_before_fusion: bool = False
    norm_each_tap: int = 0
    norm_before_residual: bool = False
    recycle_normed: bool = False


class Eagle3Layer(nnx.Module):
    """A decoder layer; the first reads the token beside the state."""

    def __init__(self, config: Eagle3Config, *, is_first: bool, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.norm_before_residual = config.norm_before_residual and is_first
        self.state_norm = _norm(config, width)
        self.token_norm = _norm(config, width) if is_first else None
        inputs = 2 * width if is_first else width
        self.attention = Attention(config, config.rope, inputs=inputs, rngs=rngs)
        self.mlp_norm = _norm(config, width)
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
        taps = config.norm_each_tap
        self.fusion_norm = (
            _norm(config, config.feature_width) if config.norm_before_fusion else None
        )
        self.tap_norms = nnx.List(
            [_norm(config, config.feature_width // taps) for _ in range(taps)]
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
        self.norm = _norm(config, width)
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
        weight = self.head.weight[...]
        return jnp.einsum(
            "btd,vd->btv", normed, weight, preferred_element_type=jnp.float32
        )


def _norm(config: EagleConfig, width: int) -> RMSNorm:
    return RMSNorm(width, epsilon=config.norm_epsilon, dtype=jnp.dtype(config.dtype))
