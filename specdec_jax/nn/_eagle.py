"""The networks of EAGLE: one decoder layer over a feature of the target and the token
that follows it.

EAGLE (Li et al. 2024, arXiv 2401.15077, §4.1) predicts the target's next feature.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specdec_jax.nn._decoder import Attend
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
    dtype: str = "float32"


class EagleHead(nnx.Module):
    """EAGLE's: the layer has no norm before its attention, and none comes after it."""

    def __init__(self, config: EagleConfig, *, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.fusion = Linear(
            2 * width, width, bias=config.fusion_bias, dtype=dtype, rngs=rngs
        )
        self.attention = HeadAttention(config, width, rngs=rngs)
        self.mlp_norm = RMSNorm(width, epsilon=config.norm_epsilon, dtype=dtype)
        self.mlp = MLP(width, config.mlp_width, dtype=dtype, rngs=rngs)

    def fuse(self, features: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """A feature is a state already."""
        return features

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        """The feature of the position after each row's."""
        x = self.fusion(jnp.concatenate([embedded, hidden], axis=-1))
        x = x + self.attention(x, positions, attend)
        return x + self.mlp(self.mlp_norm(x))


class HeadAttention(nnx.Module):
    """Grouped-query attention over an input that may be wider than the model."""

    def __init__(self, config: EagleConfig, inputs: int, *, rngs: nnx.Rngs):
        dtype, bias = jnp.dtype(config.dtype), config.attention_bias
        heads = config.num_heads * config.head_width
        kv_heads = config.num_kv_heads * config.head_width
        self.head_width = config.head_width
        self.rope = config.rope
        self.query = Linear(inputs, heads, bias=bias, dtype=dtype, rngs=rngs)
        self.key = Linear(inputs, kv_heads, bias=bias, dtype=dtype, rngs=rngs)
        self.value = Linear(inputs, kv_heads, bias=bias, dtype=dtype, rngs=rngs)
        self.output = Linear(heads, config.width, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T I"],
        positions: Int[Array, "B T"],
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        query, key, value = (
            part(x).reshape(*x.shape[:2], -1, self.head_width)
            for part in (self.query, self.key, self.value)
        )
        read = attend(0, self.rope(query, positions), self.rope(key, positions), value)
        return self.output(read.reshape(*x.shape[:2], -1))
