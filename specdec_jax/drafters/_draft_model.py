"""A smaller language model as drafter (Leviathan et al. 2023, Chen et al. 2023)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_jax import _tree
from specdec_jax._types import (
    Accepted,
    Cache,
    Draft,
    Kind,
    Params,
    Sampler,
    Target,
)
from specdec_jax.nn._choose import chain_of, choose


class DraftModelState(NamedTuple):
    """The draft model's own cache. Of its entries the newest `ahead` are drafts not yet
    judged; one committed token may be missing.
    """

    cache: Cache
    ahead: Int[Array, " B"]
    missing: Int[
        Array, " B"
    ]  # the newest committed token, where it has not been read yet
    is_missing: Bool[Array, " B"]


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """Any target with the same vocabulary, drafting a chain token by token.

    Args:
        model: the draft model; its parameters are `params.drafter`.
        num_nodes: drafted tokens + 1.
        kind: "points" drafts the model's best token (under `match`, with the target's
            own noise), "iid" samples from its law.
    """

    model: Target
    num_nodes: int = 5
    kind: Kind = "points"
    taps: tuple[int | str, ...] = dataclasses.field(default=(), init=False)
    can_pass: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        if self.num_nodes < 2 or self.kind not in ("points", "iid"):
            raise ValueError(
                'DraftModel needs num_nodes >= 2 and kind "points" or "iid", not '
                f'{self.num_nodes} and "{self.kind}"'
            )

    @property
    def max_depth(self) -> int:
        """A chain."""
        return self.num_nodes - 1

    def init(self, batch: int, slots: int) -> DraftModelState:
        """An empty cache, with room for the drafts beyond the last token."""
        zeros = jnp.zeros(batch, jnp.int32)
        cache = self.model.init_cache(batch, slots + self.max_depth)
        return DraftModelState(cache, zeros, zeros + 0, jnp.zeros(batch, jnp.bool_))

    def draft(
        self,
        target: Target,
        params: Params,
        state: DraftModelState,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, DraftModelState]:
        """Read the missing token and the root as one block, then draft one by one."""
        batch = root.shape[0]
        extra = state.is_missing.astype(jnp.int32)
        first = jnp.where(state.is_missing, state.missing, root)
        cache, hidden = self._read(
            params, state.cache, jnp.stack([first, root], 1), 1 + extra
        )
        hidden = jnp.take_along_axis(hidden, extra[:, None, None], axis=1)
        path = jnp.full((batch, 1, self.num_nodes), -1, jnp.int32).at[:, 0, 0].set(root)

        def next_token(
            depth: Int[Array, ""], path: Array, hidden: Array
        ) -> tuple[Array, Array, Array | None]:
            logits = self.model.logits(params.drafter, hidden)
            token, log_q = choose(sampler, self.kind, logits, path, depth)
            return token, path.at[:, 0, depth + 1].set(token), log_q

        def extend(carry, depth):
            cache, path, token = carry
            cache, hidden = self._read(
                params, cache, token[:, None], jnp.ones(batch, jnp.int32)
            )
            token, path, log_q = next_token(depth, path, hidden)
            return (cache, path, token), log_q

        token, path, log_q = next_token(jnp.int32(0), path, hidden)
        (cache, path, token), more = jax.lax.scan(
            extend, (cache, path, token), jnp.arange(1, self.max_depth, dtype=jnp.int32)
        )
        laws = None
        if log_q is not None and more is not None:
            laws = jnp.concatenate([log_q[None], more]).swapaxes(0, 1)
        draft = chain_of(path[:, 0], laws)
        ahead = jnp.full_like(root, self.max_depth)  # the root and all but one draft
        return draft, DraftModelState(cache, ahead, root, jnp.zeros(batch, jnp.bool_))

    def update(
        self, target: Target, params: Params, state: DraftModelState, accepted: Accepted
    ) -> DraftModelState:
        """Keep what was read ahead and accepted, drop the rest, read what is new.

        A single new token can wait for the next draft.
        """
        kept = jnp.minimum(accepted.length, state.ahead)
        cache = state.cache._replace(length=state.cache.length - state.ahead + kept)
        new = accepted.length - kept
        unread = state.is_missing.astype(jnp.int32) + new
        tokens = jnp.concatenate([state.missing[:, None], accepted.tokens], axis=1)
        # Whoever misses a token has read nothing ahead.
        first = jnp.where(state.is_missing, 0, 1 + kept)
        source = first[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        tokens = jnp.take_along_axis(
            tokens, jnp.minimum(source, tokens.shape[1] - 1), axis=1
        )

        def read(cache: Cache) -> DraftModelState:
            cache, _ = self._read(params, cache, tokens, unread)
            zeros = jnp.zeros_like(unread)
            return DraftModelState(cache, zeros, zeros + 0, zeros > 0)

        def wait(cache: Cache) -> DraftModelState:
            return DraftModelState(
                cache, jnp.zeros_like(unread), tokens[:, 0], unread > 0
            )

        return jax.lax.cond((unread > 1).any(), read, wait, cache)

    def _read(
        self,
        params: Params,
        cache: Cache,
        tokens: Int[Array, "B T"],
        length: Int[Array, " B"],
    ) -> tuple[Cache, Array]:
        """Read the first `length` tokens of each row into the cache."""
        output = self.model.forward(
            params.drafter, cache, _tree.causal_block(tokens), ()
        )
        path = jnp.broadcast_to(
            jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape
        )
        return self.model.commit(cache, output.pending, path, length), output.hidden
