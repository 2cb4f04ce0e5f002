"""Drafters that continue the target's features: what EAGLE, EAGLE-2 and EAGLE-3 share.

Row i of such a drafter reads the feature of position i and the token of position i + 1,
and foretells the token after that. Only rows of the target's own features stay in its
cache (Li et al. 2024, arXiv 2401.15077, §4.1).
"""

import abc
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from specdec_jax import _cache, _sampling, _sharding, _tree
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax._types import (
    Accepted,
    Draft,
    Kind,
    Params,
    Pending,
    Sampler,
    Target,
)
from specdec_jax.nn._head_parts import embed, in_target_vocabulary
from specdec_jax.nn._levels import FeatureState, draft_grown, draft_static, empty, read


@dataclasses.dataclass(frozen=True)
class FeatureDrafter(abc.ABC):
    """Drafts a tree from the target's features; a subclass brings the head, whose
    parameters are `params.drafter`.
    """

    config: Any
    tree: StaticTree | GrownTree = StaticTree()
    kind: Kind = "points"
    can_pass: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        if not isinstance(self.tree, StaticTree | GrownTree):
            raise ValueError(
                f"the tree is a StaticTree or a GrownTree, not {self.tree!r}"
            )
        if self.kind not in ("points", "without_replacement"):
            raise ValueError(
                f'Eagle drafts "points" or "without_replacement", not {self.kind!r}'
            )
        if self.kind != "points" and isinstance(self.tree, GrownTree):
            raise ValueError(
                "a grown tree keeps children for what they are, so they cannot be "
                'drawn: it needs kind="points"'
            )

    @abc.abstractmethod
    def head(self, params: PyTree) -> Any:
        """The network around its parameters: called on embedded tokens, states,
        positions and `attend`, it says the next states; `fuse` makes a state of a
        feature.
        """

    @abc.abstractmethod
    def logits(
        self, target: Target, params: Params, states: Float[Array, "B W D"]
    ) -> Float[Array, "B W L"]:
        """Of the token that a state foretells, over those that the head knows."""

    def known(self, params: PyTree) -> Int[Array, " L"] | None:
        """The target's ids of the tokens that the head knows, ascending; None: all."""
        return None

    def check(self, target: Target) -> None:
        """Raise `ValueError` where this is no head of that target."""
        return

    @property
    def num_nodes(self) -> int:
        """The root included."""
        return self.tree.num_nodes

    @property
    def max_depth(self) -> int:
        """Of the deepest node."""
        return self.tree.max_depth

    def init(self, batch: int, slots: int) -> FeatureState:
        """Nothing read yet."""
        config = self.config
        dtype = jnp.dtype(config.dtype)
        cache = _cache.cache_of(config, batch, slots)
        return FeatureState(cache, jnp.zeros((batch, config.width), dtype))

    def draft(
        self,
        target: Target,
        params: Params,
        state: FeatureState,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, FeatureState]:
        """A tree, level by level, over the newest genuine row."""
        head = self.head(params.drafter)
        embed = functools.partial(self.embed, target, params)
        draw = functools.partial(self._children, target, params, sampler)
        if isinstance(self.tree, StaticTree):
            draft = draft_static(self.tree, head, draw, embed, state, root)
        else:
            draft = draft_grown(self.tree, head, draw, embed, state, root)
        # Before the first genuine row there is nothing to go on from.
        has_row = (state.cache.length > 0)[:, None]
        is_root = jnp.arange(self.num_nodes, dtype=jnp.int32)[None, :] == 0
        return draft._replace(valid=draft.valid & (has_row | is_root)), state

    def update(
        self, target: Target, params: Params, state: FeatureState, accepted: Accepted
    ) -> FeatureState:
        """Read the accepted rows with the target's true features; each row's token is
        the one after its feature.
        """
        size = accepted.tokens.shape[1]
        steps = jnp.arange(size, dtype=jnp.int32)[None, :]
        following = jnp.pad(accepted.tokens[:, 1:], ((0, 0), (0, 1)))
        is_last = steps == accepted.length[:, None] - 1
        following = jnp.where(is_last, accepted.next[:, None], following)
        block = _tree.causal_block(following)
        head, scratch = self.head(params.drafter), empty(state.cache)
        output, scratch = read(
            head,
            self.embed(target, params, following),
            head.fuse(accepted.features),
            state.cache,
            scratch,
            block.depths,
            block.mask,
        )
        path = jnp.broadcast_to(steps, following.shape)
        pending = Pending(scratch.keys, scratch.values)
        cache = _cache.commit(state.cache, pending, path, accepted.length)
        last = jnp.maximum(accepted.length - 1, 0)[:, None, None]
        newest = jnp.take_along_axis(output, last, axis=1)[:, 0]
        newest = newest.astype(state.output.dtype)
        has_new = (accepted.length > 0)[:, None]
        return FeatureState(cache, jnp.where(has_new, newest, state.output))

    def embed(
        self, target: Target, params: Params, tokens: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """What the head reads of tokens: its own table of them, or the target's."""
        return embed(self.config, target, params, tokens)

    def _children(
        self,
        target: Target,
        params: Params,
        sampler: Sampler,
        outputs: Float[Array, "B W D"],
        paths: Int[Array, "B W P"],
        count: int,
        slot: int,
    ) -> tuple[
        Int[Array, "B W C"], Float[Array, "B W C"], Float[Array, "B W V"] | None
    ]:
        """The best or the drawn tokens after each node of one level, in order, what the
        path to each gains in log-probability (-inf: there is no such token), and the
        law that they are drawn from.
        """
        logits = self.logits(target, params, outputs)
        known, size = self.known(params.drafter), target.vocab_size
        if self.kind != "points":
            whole = in_target_vocabulary(logits, known, size)
            log_q = _sampling.law(sampler, whole, paths)
            noise = jnp.stack(
                [
                    _sampling.step_noise(
                        sampler, _sampling.DRAFT, slot + i, vocab_size=size
                    )
                    for i in range(log_q.shape[1])
                ],
                axis=1,
            )
            scores, tokens = _sharding.top_k(log_q + noise, count, axis="vocab")
            return tokens, jnp.where(jnp.isneginf(scores), -jnp.inf, 0.0), log_q
        if known is not None and _sampling.is_adjusted(sampler.options):
            whole = in_target_vocabulary(logits, known, size)
            scores = _sampling.adjust(sampler, whole, paths)[:, :, known]
        else:
            scores = _sampling.adjust(sampler, logits, paths)
        if (keys := sampler.noise) is not None:

            def perturbed() -> Array:
                depth = (paths[:, :1] >= 0).sum(-1, dtype=jnp.int32)  # all nodes' own
                at = sampler.base[:, None] + depth
                noise = _sampling.position_noise(keys, at, vocab_size=size)
                if known is not None:
                    noise = noise[:, :, known]
                return jnp.where(
                    _sampling.samples(sampler)[:, None, None],
                    _sampling.noisy(sampler, scores, noise),
                    scores,
                )

            does_sample = _sampling.samples(sampler).any()
            scores = jax.lax.cond(does_sample, perturbed, lambda: scores)
        log_q = _sampling.log_softmax(scores)
        if (missing := count - log_q.shape[-1]) > 0:  # more children than tokens
            log_q = jnp.pad(
                log_q, ((0, 0), (0, 0), (0, missing)), constant_values=-jnp.inf
            )
        gains, tokens = _sharding.top_k(log_q, count, axis="vocab")
        tokens = jnp.where(jnp.isneginf(gains), 0, tokens)
        return tokens if known is None else known[tokens], gains, None
