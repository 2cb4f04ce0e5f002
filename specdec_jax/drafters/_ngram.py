"""Prompt lookup (Saxena 2023): what followed the last time these tokens occurred, in
prompt or output, is proposed again.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_jax import _cache, _tree
from specdec_jax._types import Accepted, Draft, Kind, Params, Sampler, Target


class NGramState(NamedTuple):
    """The tokens that the target has committed."""

    tokens: Int[Array, "B S"]
    length: Int[Array, " B"]


@dataclasses.dataclass(frozen=True)
class NGram:
    """Look up the longest match of the newest tokens, the most recent among equals, and
    propose what followed, on device.

    Where the match runs into the end of the text, the text is taken to be periodic and
    its continuation repeats.

    Args:
        num_nodes: drafted tokens + 1.
        longest: tokens of the longest match looked for.
        shortest: tokens that must match at least; else nothing is proposed.
    """

    num_nodes: int = 8
    longest: int = 4
    shortest: int = 2
    taps: tuple[int | str, ...] = dataclasses.field(default=(), init=False)
    kind: Kind = dataclasses.field(default="points", init=False)
    can_pass: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self):
        sizes = (self.num_nodes, self.shortest, self.longest)
        if (
            not all(isinstance(x, int) for x in sizes)
            or self.num_nodes < 1
            or not 1 <= self.shortest <= self.longest
        ):
            raise ValueError(
                f"NGram needs num_nodes >= 1 and 1 <= shortest <= longest: {self}"
            )

    @property
    def max_depth(self) -> int:
        """A chain."""
        return self.num_nodes - 1

    def init(self, batch: int, slots: int) -> NGramState:
        """An empty text."""
        return NGramState(
            jnp.zeros((batch, slots), jnp.int32), jnp.zeros(batch, jnp.int32)
        )

    def draft(
        self,
        target: Target,
        params: Params,
        state: NGramState,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, NGramState]:
        """A chain, all of it valid or none."""
        batch, slots = state.tokens.shape
        tokens = _cache.write(
            state.tokens, root[:, None], state.length, jnp.ones_like(state.length)
        )
        here = jnp.arange(slots, dtype=jnp.int32)[None, :]
        last = state.length[:, None]  # the root's index
        matched = jnp.zeros((batch, slots), jnp.int32)
        unbroken = jnp.ones((batch, slots), jnp.bool_)
        for back in range(self.longest):
            wanted = jnp.take_along_axis(tokens, jnp.maximum(last - back, 0), axis=1)
            shifted = jnp.pad(tokens, ((0, 0), (back, 0)))[:, :slots]
            unbroken &= (shifted == wanted) & (here >= back) & (here < last)
            matched += unbroken.astype(jnp.int32)
        score = matched * slots + here
        end = (
            jnp.where(matched >= self.shortest, score, -1)
            .argmax(-1, keepdims=True)
            .astype(jnp.int32)
        )
        found = jnp.take_along_axis(matched, end, axis=1) >= self.shortest
        period = jnp.maximum(last - end, 1)
        ahead = jnp.arange(self.max_depth, dtype=jnp.int32)[None, :]
        drafted = jnp.take_along_axis(
            tokens, jnp.minimum(end + 1 + ahead % period, slots - 1), axis=1
        )
        drafted = jnp.where(found, drafted, root[:, None])
        nodes = jnp.concatenate([root[:, None], drafted], axis=1)
        valid = jnp.broadcast_to(found, nodes.shape).at[:, 0].set(True)
        return Draft(nodes, _tree.chain(batch, self.num_nodes), valid), state

    def update(
        self, target: Target, params: Params, state: NGramState, accepted: Accepted
    ) -> NGramState:
        """Append what was committed."""
        tokens = _cache.write(
            state.tokens, accepted.tokens, state.length, accepted.length
        )
        return NGramState(tokens, state.length + accepted.length)
