"""The decoder that the Llama family shares, as a flax.nnx module whose only contact
with caches and trees is one call, `attend`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specdec_jax.nn._layers import MLP, Linear, RMSNorm, RoPE

# (layer, query "B T Q H", key "B T K H", value "B T K H") -> read "B T Q H"; keys come
# rotated.
Attend = Callable[
    [int, Float[Array, "B T Q H"], Float[Array, "B T K H"], Float[Array, "B T K H"]],
    Float[Array, "B T Q H"],
]
# (layer, residual stream after it); -1 is the embedding output.
Tap = Callable[[int, Float[Array, "B T D"]], None]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes and constants of a Llama-family decoder."""

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    max_length: int
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5
    tied: bool = True  # the head is the embedding
    dtype: str = "float32"


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions; where keys and values are kept is
    the caller's business.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        heads, kv_heads = (
            config.num_heads * config.head_width,
            config.num_kv_heads * config.head_width,
        )
        dtype = jnp.dtype(config.dtype)
        self.head_width = config.head_width
        self.rope = RoPE(config.rope_base)
        self.query = Linear(config.width, heads, dtype=dtype, rngs=rngs)
        self.key = Linear(config.width, kv_heads, dtype=dtype, rngs=rngs)
        self.value = Linear(config.width, kv_heads, dtype=dtype, rngs=rngs)
        self.output = Linear(heads, config.width, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        layer: int,
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        query, key, value = (
            part(x).reshape(*x.shape[:2], -1, self.head_width)
            for part in (self.query, self.key, self.value)
        )
        read = attend(
            layer, self.rope(query, positions), self.rope(key, positions), value
        )
        return self.output(read.reshape(*x.shape[:2], -1))


class DecoderLayer(nnx.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.attention_norm = RMSNorm(
            config.width, epsilon=config.norm_epsilon, dtype=dtype
        )
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = RMSNorm(config.width, epsilon=config.norm_epsilon, dtype=dtype)
        self.mlp = MLP(config.width, config.mlp_width, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        layer: int,
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        x = x + self.attention(self.attention_norm(x), positions, layer, attend)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nnx.Module):
    """A decoder-only language model."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        table = jax.random.normal(
            rngs.params(), (config.vocab_size, config.width), dtype
        )
        self.embedding = nnx.Param(table * jnp.asarray(config.width**-0.5, dtype))
        self.layers = nnx.List(
            [DecoderLayer(config, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.norm = RMSNorm(config.width, epsilon=config.norm_epsilon, dtype=dtype)
        self.head = (
            None
            if config.tied
            else Linear(config.width, config.vocab_size, dtype=dtype, rngs=rngs)
        )

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """What enters layer 0."""
        return self.embedding[...][tokens]

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        attend: Attend,
        tap: Tap,
    ) -> Float[Array, "B T D"]:
        """The state after the last norm."""
        x = self.embed(tokens)
        tap(-1, x)
        for i, layer in enumerate(self.layers):
            with jax.named_scope(f"layer_{i}"):
                x = layer(x, positions, i, attend)
            tap(i, x)
        return self.norm(x)

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Float32 logits of the next token."""
        weight = (self.embedding if self.head is None else self.head.weight)[...]
        return jnp.einsum(
            "btd,vd->btv", hidden, weight, preferred_element_type=jnp.float32
        )
