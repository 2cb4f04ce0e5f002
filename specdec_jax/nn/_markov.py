"""The heads that make DSpark of a block body: one that reads the token before each
slot, and one that says how likely a draft is to be accepted (Cheng et al. 2026, arXiv
2607.05147, §3.1–3.2).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from specdec_jax import _sharding
from specdec_jax.nn._layers import Linear
from specdec_jax.nn._product import product
from specdec_jax.nn._table import look_up

MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclasses.dataclass(frozen=True)
class MarkovConfig:
    """A low-rank table of which token follows which.

    Args:
        rank: of the table.
        kind: "vanilla" looks the token before up; "gated" weighs what it finds by the
            state of the slot; "rnn" remembers the tokens before that one.
        top_k: only so many of a slot's likeliest tokens stay, and are corrected; None
            for all.
    """

    rank: int = 256
    kind: MarkovKind = "vanilla"
    top_k: int | None = None

    def __post_init__(self):
        if self.kind not in ("vanilla", "gated", "rnn"):
            raise ValueError(f'kind is "vanilla", "gated" or "rnn", not {self.kind!r}')
        if self.rank < 1 or (self.top_k is not None and self.top_k < 1):
            raise ValueError(f"{self}: rank and top_k are 1 at least")


class MarkovHead(nnx.Module):
    """Adds to a slot's logits what the token before it says; slot by slot, since that
    token is itself drafted.
    """

    def __init__(
        self,
        config: MarkovConfig,
        *,
        width: int,
        vocab_size: int,
        known: int,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        rank, sizes = config.rank, {"dtype": dtype, "rngs": rngs}
        self.config = config
        table = jax.random.normal(rngs.params(), (vocab_size, rank), dtype)
        self.before = nnx.Param(table * jnp.asarray(rank**-0.5, dtype))
        self.after = Linear(rank, known, **sizes)
        self.gate = (
            Linear(width + rank, rank, bias=True, **sizes)
            if config.kind == "gated"
            else None
        )
        self.joint = (
            Linear(2 * rank + width, 3 * rank, bias=True, **sizes)
            if config.kind == "rnn"
            else None
        )

    def start(self, batch: int) -> Float[Array, "B Y"]:
        """What it remembers before the first slot."""
        return jnp.zeros((batch, self.config.rank), self.before[...].dtype)

    def look_up(self, tokens: Int[Array, "..."]) -> Float[Array, "... Y"]:
        """The row of each token, which the slot after it reads."""
        return look_up(self.before[...], tokens)

    def step(
        self,
        row: Float[Array, "... Y"],
        state: Float[Array, "... D"],
        memory: Float[Array, "... Y"],
    ) -> tuple[Float[Array, "... Y"], Float[Array, "... Y"]]:
        """What of one slot `correct` reads, and what is remembered for the next.

        Args:
            row: of the token before the slot.
            state: the slot's own.
            memory: of the slots before.
        """
        if self.gate is not None:
            gate = self.gate(jnp.concatenate([state, row], axis=-1))
            return jax.nn.sigmoid(gate) * row, memory
        if self.joint is not None:
            joint = self.joint(jnp.concatenate([memory, row, state], axis=-1))
            keep, new, shown = jnp.split(joint, 3, axis=-1)
            keep = jax.nn.sigmoid(keep)
            memory = keep * memory + (1 - keep) * jnp.tanh(new)
            return jnp.tanh(shown), memory
        return row, memory

    def correct(
        self, logits: Float[Array, "... W"], shown: Float[Array, "... Y"]
    ) -> Float[Array, "... W"]:
        """The logits of slots with the bias of what comes before them; float32."""
        count = self.config.top_k
        if count is None or count >= logits.shape[-1]:
            return logits + product(shown, self.after.weight[...])
        kept, tokens = _sharding.top_k(logits, count, axis="vocab")
        rows = look_up(self.after.weight[...], tokens)
        bias = jnp.einsum(
            "...y,...cy->...c", shown, rows, preferred_element_type=jnp.float32
        )
        least = jnp.full_like(logits, -jnp.inf)
        return jnp.put_along_axis(least, tokens, kept + bias, axis=-1, inplace=False)


class ConfidenceHead(nnx.Module):
    """Whether a slot's draft is accepted, where the drafts before it are: of the slot's
    state and, with a Markov head, of the token before, never of the draft itself.
    """

    def __init__(self, inputs: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.projection = Linear(inputs, 1, bias=True, dtype=dtype, rngs=rngs)

    def __call__(self, read: Float[Array, "... I"]) -> Float[Array, "..."]:
        """Logits, float32, of slots' states, each with that row after it if it is
        read.
        """
        bias = self.projection.bias
        assert bias is not None
        logits = product(read, self.projection.weight[...])[..., 0]
        return logits + bias[...].astype(jnp.float32)[0]
