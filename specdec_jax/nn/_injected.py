"""The body of DFlash and DSpark: a block read in one pass, with the target's features
as keys and values of every layer (Chen et al. 2026, arXiv 2602.06036, §3).
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specdec_jax import _sharding
from specdec_jax.nn._decoder import Attend, Attention
from specdec_jax.nn._head_parts import norm_of, own_table
from specdec_jax.nn._layers import MLP, Linear, RoPE
from specdec_jax.nn._markov import ConfidenceHead, MarkovConfig, MarkovHead
from specdec_jax.nn._product import product

# What a slot of the block foretells: the token at its own place, so that the anchor's
# slot says nothing (DFlash); or the token after it (DSpark).
Layout = Literal["anchor_discarded", "anchor_first"]


@dataclasses.dataclass(frozen=True)
class InjectedConfig:
    """Sizes of a body, and what published ones do differently.

    Args:
        width: of its states: that of its target, unless it has an embedding and an
            output layer of its own.
        feature_width: of all taps together.
        block_size: slots of a block, the anchor's included; part of what was learned.
        mask_id: the token that stands in every slot but the anchor's.
        layout: which slots foretell what.
        rope: its own: published bodies do not inherit their target's.
        windows: how many positions each layer sees, itself included (None: all); empty
            where none has a window.
        anchored_windows: a window is so many positions before the anchor, and the
            whole block, for every slot (as speculators trains), instead of so many
            before the slot, itself included, and no further ahead (as z-lab does).
        causal: which layers see no later slot of the block; empty where none is.
        own_embedding: it has a table of tokens of its own (`params["embedding"]`, "V
            D"), instead of the target's.
        own_head: it has an output layer of its own, instead of the target's.
        draft_vocab_size: how many tokens that layer knows; None for all.
        markov: of the head that reads the token before each slot, if there is one.
        confidence: whether a head says how likely each draft is to be accepted, and
            whether that one reads the Markov head's row of the token before, too.
    """

    width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    num_layers: int
    feature_width: int
    block_size: int
    mask_id: int
    layout: Layout = "anchor_discarded"
    rope: RoPE = RoPE()
    norm_epsilon: float = 1e-6
    attention_bias: bool = False
    query_key_norm: bool = True
    windows: tuple[int | None, ...] = ()
    anchored_windows: bool = False
    causal: tuple[bool, ...] = ()
    own_embedding: bool = False
    own_head: bool = False
    draft_vocab_size: int | None = None
    markov: MarkovConfig | None = None
    confidence: Literal["none", "state", "state and markov"] = "none"
    dtype: str = "float32"
    cache_dtype: str | None = None  # of keys and values, if it is another

    def __post_init__(self):
        if self.layout not in ("anchor_discarded", "anchor_first"):
            raise ValueError(
                f'layout is "anchor_discarded" or "anchor_first", not {self.layout!r}'
            )
        if self.num_drafts < 1:
            raise ValueError(
                f"a block of {self.block_size} slots in the layout {self.layout} "
                "foretells nothing"
            )
        for name in ("windows", "causal"):
            found = len(getattr(self, name))
            if found not in (0, self.num_layers):
                raise ValueError(
                    f"{name} speaks of {found} layers; there are {self.num_layers}"
                )
        if self.anchored_windows and not any(self.windows):
            raise ValueError("no layer has a window, so none is anchored")
        if self.draft_vocab_size is not None and not self.own_head:
            raise ValueError("a draft vocabulary needs an output layer of its own")
        if self.confidence == "state and markov" and self.markov is None:
            raise ValueError(
                "a confidence head cannot read a Markov head that is not there (rank "
                '0): it is to read the "state" alone'
            )

    @property
    def num_drafts(self) -> int:
        """How many tokens a block foretells."""
        return self.block_size - (self.layout == "anchor_discarded")

    def sees(self, layer: int) -> Bool[Array, "C C"]:
        """Which slots of the block each slot sees in a layer."""
        seen = jnp.ones((self.block_size, self.block_size), jnp.bool_)
        if self.causal and self.causal[layer]:
            return jnp.tril(seen)
        window = self.windows[layer] if self.windows else None
        if window is None or self.anchored_windows:
            return seen
        return jnp.tril(seen, window - 1)


class InjectedLayer(nnx.Module):
    """A decoder layer; its norm is for the block alone."""

    def __init__(self, config: InjectedConfig, layer: int, *, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        self.attention_norm = norm_of(config, width)
        self.attention = Attention(
            config,
            config.rope,
            window=config.windows[layer] if config.windows else None,
            head_norm=(lambda: norm_of(config, config.head_width))
            if config.query_key_norm
            else None,
            rngs=rngs,
        )
        self.mlp_norm = norm_of(config, width)
        self.mlp = MLP(width, config.mlp_width, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        layer: int,
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        x = x + self.attention(self.attention_norm(x), positions, layer, attend)
        return x + self.mlp(self.mlp_norm(x))


class InjectedBody(nnx.Module):
    """The network of a block drafter, with whatever heads it has."""

    def __init__(self, config: InjectedConfig, *, vocab_size: int, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.dtype), config.width
        known = config.draft_vocab_size or vocab_size
        self.embedding = own_table(config, vocab_size, rngs)
        self.fusion = Linear(config.feature_width, width, dtype=dtype, rngs=rngs)
        self.fusion_norm = norm_of(config, width)
        self.layers = nnx.List(
            [InjectedLayer(config, i, rngs=rngs) for i in range(config.num_layers)]
        )
        self.norm = norm_of(config, width)
        self.head = (
            Linear(width, known, dtype=dtype, rngs=rngs) if config.own_head else None
        )
        self.markov = (
            None
            if config.markov is None
            else MarkovHead(
                config.markov,
                width=width,
                vocab_size=vocab_size,
                known=known,
                dtype=dtype,
                rngs=rngs,
            )
        )
        read = width
        if config.markov is not None and config.confidence == "state and markov":
            read += config.markov.rank
        self.confidence = (
            None
            if config.confidence == "none"
            else ConfidenceHead(read, dtype=dtype, rngs=rngs)
        )

    def context(
        self, features: Float[Array, "B T F"], positions: Int[Array, "B T"]
    ) -> tuple[
        tuple[Float[Array, "B T K H"], ...], tuple[Float[Array, "B T K H"], ...]
    ]:
        """Keys and values of each layer for positions whose taps are known: they depend
        on nothing else, so they are made once.
        """
        fused = self.fusion_norm(self.fusion(_sharding.spread(features)))
        made = [x.attention.keys_and_values(fused, positions) for x in self.layers]
        keys, values = zip(*made, strict=True)
        return keys, values

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        attend: Attend,
    ) -> Float[Array, "B T D"]:
        """The state of every slot, after the last norm."""
        x = embedded
        for i, layer in enumerate(self.layers):
            x = layer(x, positions, i, attend)
        return self.norm(x)

    def logits(self, states: Float[Array, "B T D"]) -> Float[Array, "B T W"]:
        """Float32, by an output layer of its own."""
        assert self.head is not None
        return product(states, self.head.weight[...])
