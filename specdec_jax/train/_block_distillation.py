"""DSpark's objective (Cheng et al. 2026, arXiv 2607.05147, §3.4)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from specdec_jax._lesson import Lesson, Loss
from specdec_jax._types import Params, Target
from specdec_jax.drafters import DSpark
from specdec_jax.train._block_lesson import (
    Blocks,
    Judged,
    check_chunk,
    decayed,
    loss_over_blocks,
    teacher_logits,
)


@dataclasses.dataclass(frozen=True)
class BlockDistillation:
    """The target's law in every slot, the tokens before it being the text's; and how
    often that law and the drafter's agree, which is what the confidence head foretells.

    Args:
        token_weight: of the cross-entropy of the text's own token.
        law_weight: of the L1 distance between the two laws.
        confidence_weight: of the confidence's cross-entropy.
        blocks: of each row.
        decay: slots in which the weight of a slot falls by e.
        chunk: blocks of each row whose logits are there at once.
    """

    token_weight: float = 0.1
    law_weight: float = 0.9
    confidence_weight: float = 1.0
    blocks: int = 64
    decay: float = 4.0
    chunk: int = 8

    def __post_init__(self):
        check_chunk(self.blocks, self.chunk)

    def loss(
        self,
        target: Target,
        drafter: Any,
        params: Params,
        lesson: Lesson,
        key: Key[Array, ""],
    ) -> Loss:
        """Slot k of a block foretells the k-th token after its anchor, and reads the
        one before that.
        """
        if not isinstance(drafter, DSpark):
            raise ValueError("BlockDistillation trains DSpark, no other drafter")

        def judge(params: Params, some: Blocks) -> Judged:
            logits, confidence = drafter.foretell(
                target, params, some.states, some.before
            )
            log_q = jax.nn.log_softmax(logits, axis=-1)
            teacher = teacher_logits(target, params, some.hidden)
            p, q = jax.nn.softmax(teacher, axis=-1), jnp.exp(log_q)
            known = drafter.known(params.drafter)
            distance = jnp.abs(q - p if known is None else q - p[..., known]).sum(-1)
            if known is not None:  # what the drafter cannot say is at a distance, too
                distance += jnp.maximum(1.0 - p[..., known].sum(-1), 0.0)
            label, is_known = drafter.index(params.drafter, some.labels)
            said = jnp.take_along_axis(log_q, label[..., None], axis=-1)[..., 0]
            # A pruned Markov head leaves some tokens no chance at all.
            is_known = is_known & (said > -jnp.inf)
            losses = self.law_weight * distance - self.token_weight * jnp.where(
                is_known, said, 0.0
            )
            if confidence is not None:
                accepted = jax.lax.stop_gradient(1.0 - 0.5 * distance)
                losses = losses + self.confidence_weight * _binary_cross_entropy(
                    confidence, accepted
                )
            weights = decayed(some.is_label, self.decay)
            is_hit = is_known & (said >= log_q.max(-1))
            return Judged(losses, weights, weights, is_hit, some.is_label)

        return loss_over_blocks(
            judge,
            target,
            drafter,
            params,
            lesson,
            key,
            count=self.blocks,
            chunk=self.chunk,
        )


def _binary_cross_entropy(
    logits: Float[Array, "..."], chance: Float[Array, "..."]
) -> Float[Array, "..."]:
    return jax.nn.softplus(logits) - chance * logits
