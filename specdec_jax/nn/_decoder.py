"""The decoder that all families share, as a flax.nnx module whose only contact with
caches and trees is one call, `attend`.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specdec_jax.nn._experts import Experts, ExpertsConfig
from specdec_jax.nn._layers import MLP, Activation, Linear, RMSNorm, RoPE
from specdec_jax.nn._product import product
from specdec_jax.nn._table import look_up


@runtime_checkable
class Attend(Protocol):
    """Reads the committed prefix and the block; keys come rotated. `window` is how many
    positions a query sees, its own included (None: all); `scale` is of the scores
    (None: the head width to the power -1/2).
    """

    def __call__(
        self,
        layer: int,
        query: Float[Array, "B T Q H"],
        key: Float[Array, "B T K H"],
        value: Float[Array, "B T K H"],
        /,
        *,
        window: int | None = None,
        scale: float | None = None,
    ) -> Float[Array, "B T Q H"]: ...


# (layer, residual stream after it); -1 is the embedding output.
Tap = Callable[[int, Float[Array, "B T D"]], None]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes and constants of a decoder, and what its family does differently from
    Llama, which has none of it.
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    max_length: int
    rope: RoPE = RoPE()
    norm_epsilon: float = 1e-5
    tied: bool = True  # the head is the embedding
    dtype: str = "float32"
    cache_dtype: str | None = None  # of keys and values, if it is another
    attention_bias: bool = False  # of query, key and value (Qwen2)
    query_key_norm: bool = False  # of each head, before the rotation (Qwen3, Gemma 3)
    attention_scale: float | None = None  # None: head_width ** -0.5
    windows: tuple[int | None, ...] = ()  # of each layer; empty where none has one
    local_rope: RoPE | None = None  # of the layers with a window, if it is another
    activation: Activation = "silu"
    unit_offset: bool = False  # norms multiply by 1 + weight (Gemma)
    sandwich: bool = False  # attention and MLP are normed after, too (Gemma)
    embedding_scale: float = 1.0
    experts: ExpertsConfig | None = None  # instead of the MLP

    def window(self, layer: int) -> int | None:
        """How many positions a layer sees; None for all."""
        return self.windows[layer] if self.windows else None


@runtime_checkable
class Heads(Protocol):
    """What a configuration says of attention."""

    @property
    def width(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int: ...
    @property
    def attention_bias(self) -> bool: ...
    @property
    def dtype(self) -> str: ...


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions; where keys and values are kept is
    the caller's business.

    `inputs` is the width that it reads, where that is not the one that it writes;
    `head_norm` makes the norm of queries, and that of keys.
    """

    def __init__(
        self,
        config: Heads,
        rope: RoPE,
        *,
        inputs: int | None = None,
        window: int | None = None,
        scale: float | None = None,
        head_norm: Callable[[], RMSNorm] | None = None,
        rngs: nnx.Rngs,
    ):
        heads, kv_heads = (
            config.num_heads * config.head_width,
            config.num_kv_heads * config.head_width,
        )
        inputs = config.width if inputs is None else inputs
        dtype, bias = jnp.dtype(config.dtype), config.attention_bias
        self.head_width = config.head_width
        self.rope, self.window, self.scale = rope, window, scale
        self.query = Linear(inputs, heads, bias=bias, dtype=dtype, rngs=rngs)
        self.key = Linear(inputs, kv_heads, bias=bias, dtype=dtype, rngs=rngs)
        self.value = Linear(inputs, kv_heads, bias=bias, dtype=dtype, rngs=rngs)
        self.output = Linear(heads, config.width, dtype=dtype, rngs=rngs)
        self.query_norm = None if head_norm is None else head_norm()
        self.key_norm = None if head_norm is None else head_norm()

    def __call__(
        self,
        x: Float[Array, "B T I"],
        positions: Int[Array, "B T"],
        layer: int,
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        query = self._heads(self.query(x))
        if self.query_norm is not None:
            query = self.query_norm(query)
        query = self.rope(query, positions)
        key, value = self.keys_and_values(x, positions)
        read = attend(layer, query, key, value, window=self.window, scale=self.scale)
        return self.output(read.reshape(*x.shape[:2], -1))

    def keys_and_values(
        self, x: Float[Array, "B T I"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]:
        """Of rows at their positions; keys are rotated."""
        key, value = self._heads(self.key(x)), self._heads(self.value(x))
        if self.key_norm is not None:
            key = self.key_norm(key)
        return self.rope(key, positions), value

    def _heads(self, x: Float[Array, "B T E"]) -> Float[Array, "B T Q H"]:
        return x.reshape(*x.shape[:2], -1, self.head_width)


class DecoderLayer(nnx.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, layer: int, *, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.attention_norm = _norm(config, width)
        window = config.window(layer)
        local = None if window is None else config.local_rope
        self.attention = Attention(
            config,
            config.rope if local is None else local,
            window=window,
            scale=config.attention_scale,
            head_norm=(lambda: _norm(config, config.head_width))
            if config.query_key_norm
            else None,
            rngs=rngs,
        )
        self.attention_post_norm = _norm(config, width) if config.sandwich else None
        self.mlp_norm = _norm(config, width)
        how = {"activation": config.activation, "dtype": dtype, "rngs": rngs}
        self.mlp = (
            MLP(width, config.mlp_width, **how)
            if config.experts is None
            else Experts(width, config.experts, **how)
        )
        self.mlp_post_norm = _norm(config, width) if config.sandwich else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        layer: int,
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        read = self.attention(self.attention_norm(x), positions, layer, attend)
        x = x + (
            read if self.attention_post_norm is None else self.attention_post_norm(read)
        )
        y = self.mlp(self.mlp_norm(x))
        return x + (y if self.mlp_post_norm is None else self.mlp_post_norm(y))


def _norm(config: DecoderConfig, width: int) -> RMSNorm:
    return RMSNorm(
        width,
        epsilon=config.norm_epsilon,
        unit_offset=config.unit_offset,
        dtype=jnp.dtype(config.dtype),
    )


class Decoder(nnx.Module):
    """A decoder-only language model."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        table = jax.random.normal(
            rngs.params(), (config.vocab_size, config.width), dtype
        )
        self.embedding = nnx.Param(table * jnp.asarray(config.width**-0.5, dtype))
        self.embedding_scale = config.embedding_scale
        self.layers = nnx.List(
            [DecoderLayer(config, i, rngs=rngs) for i in range(config.num_layers)]
        )
        self.norm = _norm(config, config.width)
        self.head = (
            None
            if config.tied
            else Linear(config.width, config.vocab_size, dtype=dtype, rngs=rngs)
        )

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """What enters layer 0."""
        x = look_up(self.embedding[...], tokens)
        if self.embedding_scale == 1:
            return x
        return x * jnp.asarray(self.embedding_scale, x.dtype)

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
        return product(hidden, weight)
