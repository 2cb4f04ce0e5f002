"""The pieces of a decoder layer: linear map, RMS norm, gated MLP, rotary positions."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


class Linear(nnx.Module):
    """A linear map whose weight is stored (out, in): on a CPU the faster layout for
    blocks, and the one of published weights.
    """

    def __init__(self, inputs: int, outputs: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        scale = inputs**-0.5
        self.weight = nnx.Param(
            jax.random.normal(rngs.params(), (outputs, inputs), dtype)
            * jnp.asarray(scale, dtype)
        )

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        return jnp.einsum("...i,oi->...o", x, self.weight[...])


class RMSNorm(nnx.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, width: int, *, epsilon: float, dtype: DTypeLike):
        self.epsilon = epsilon
        self.weight = nnx.Param(jnp.ones((width,), dtype))

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(
            jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon
        )
        return normed.astype(x.dtype) * self.weight[...].reshape(
            *[1] * (x.ndim - 1), -1
        )


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, width: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.gate = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.up = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.down = Linear(hidden, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


@dataclasses.dataclass(frozen=True)
class RoPE:
    """Rotary position embedding, half-rotated as in Hugging Face's Llama; phases are
    float32 whatever the model's dtype.
    """

    base: float = 10000.0

    def __call__(
        self, x: Float[Array, "B T Q H"], positions: Int[Array, "B T"]
    ) -> Float[Array, "B T Q H"]:
        half = x.shape[-1] // 2
        frequency = self.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        angle = positions.astype(jnp.float32)[:, :, None, None] * frequency.reshape(
            1, 1, 1, half
        )
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate(
            [left * cos - right * sin, right * cos + left * sin], axis=-1
        ).astype(x.dtype)
