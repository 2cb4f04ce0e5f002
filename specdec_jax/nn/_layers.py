"""The pieces of a decoder layer: linear map, RMS norm, gated MLP, rotary positions."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from specdec_jax.nn._product import product

Activation = Literal["silu", "gelu_tanh"]


class Linear(nnx.Module):
    """A linear map whose weight is stored (out, in): on a CPU the faster layout for
    blocks, and the one of published weights.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        scale = inputs**-0.5
        self.weight = nnx.Param(
            jax.random.normal(rngs.params(), (outputs, inputs), dtype)
            * jnp.asarray(scale, dtype)
        )
        self.bias = nnx.Param(jnp.zeros((outputs,), dtype)) if bias else None

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        y = product(x, self.weight[...]).astype(x.dtype)
        return y if self.bias is None else y + _like(self.bias[...], y)


class RMSNorm(nnx.Module):
    """Root-mean-square norm, computed in float32.

    With `unit_offset` it multiplies by 1 + weight, in float32 too (Gemma).
    """

    def __init__(
        self,
        width: int,
        *,
        epsilon: float,
        unit_offset: bool = False,
        dtype: DTypeLike,
    ):
        self.epsilon = epsilon
        self.unit_offset = unit_offset
        start = jnp.zeros if unit_offset else jnp.ones
        self.weight = nnx.Param(start((width,), dtype))

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(
            jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon
        )
        weight = _like(self.weight[...], x)
        if self.unit_offset:
            return (normed * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)
        return normed.astype(x.dtype) * weight


class MLP(nnx.Module):
    """Gated MLP: down(activation(gate(x)) · up(x))."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: Activation = "silu",
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.activation: Activation = activation
        self.gate = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.up = Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.down = Linear(hidden, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return self.down(activate(self.gate(x), self.activation) * self.up(x))


def activate(x: Float[Array, "..."], activation: Activation) -> Float[Array, "..."]:
    """The activation of that name."""
    if activation == "silu":
        return jax.nn.silu(x)
    return jax.nn.gelu(x, approximate=True)


class Llama3Stretch(NamedTuple):
    """How Llama 3.1 stretches its positions, in the words of its files."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclasses.dataclass(frozen=True)
class RoPE:
    """Rotary position embedding, half-rotated as in Hugging Face's Llama; phases are
    float32 whatever the model's dtype.

    `divisors` divide the frequencies, one each, where a model stretches its positions;
    `stretch` is the rule that they come from, where a file will have to say it again.
    """

    base: float = 10000.0
    divisors: tuple[float, ...] = ()
    stretch: Llama3Stretch | None = None

    def __call__(
        self, x: Float[Array, "B T Q H"], positions: Int[Array, "B T"]
    ) -> Float[Array, "B T Q H"]:
        half = x.shape[-1] // 2
        frequency = self.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        if self.divisors:
            frequency = frequency / jnp.asarray(self.divisors, jnp.float32)
        angle = positions.astype(jnp.float32)[:, :, None, None] * frequency.reshape(
            1, 1, 1, half
        )
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate(
            [left * cos - right * sin, right * cos + left * sin], axis=-1
        ).astype(x.dtype)


def _like(vector: Float[Array, " D"], x: Float[Array, "... D"]) -> Float[Array, "..."]:
    """A vector with the leading axes that x has."""
    return vector.reshape(*[1] * (x.ndim - 1), -1)
