"""DSpark's objective (Cheng et al. 2026, arXiv 2607.05147, §3.4)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from specdec_jax._lesson import Lesson, Loss
from specdec_jax._types import Params, Target
from specdec_jax.drafters import DSpark
from specdec_jax.nn import chunked_sum
from specdec_jax.train._block_lesson import (
    SlotSums,
    decayed,
    flat,
    in_blocks,
    read_blocks,
    split_readout,
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
        if self.chunk < 1 or self.blocks % self.chunk:
            raise ValueError(
                f"chunks of {self.chunk} blocks do not divide {self.blocks} blocks"
            )

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
        readout, others = split_readout(params.drafter)
        slots = drafter.config.num_drafts

        def part(readout, constants, states, rest):
            target_params, others = constants
            before, labels, is_label, hidden = rest
            now = Params(target_params, others | readout)
            logits, confidence = drafter.foretell(
                target, now, in_blocks(states, slots), in_blocks(before, slots)
            )
            log_q = jax.nn.log_softmax(logits, axis=-1)
            q = jnp.exp(log_q)
            teacher = target.logits(target_params, hidden)
            p = in_blocks(jax.nn.softmax(teacher, axis=-1), slots)
            known = drafter.known(now.drafter)
            distance = jnp.abs(q - p if known is None else q - p[..., known]).sum(-1)
            if known is not None:  # what the drafter cannot say is at a distance, too
                distance += jnp.maximum(1.0 - p[..., known].sum(-1), 0.0)
            label, is_known = drafter.index(now.drafter, in_blocks(labels, slots))
            said = jnp.take_along_axis(log_q, label[..., None], axis=-1)[..., 0]
            losses = self.law_weight * distance - self.token_weight * jnp.where(
                is_known, said, 0.0
            )
            if confidence is not None:
                accepted = jax.lax.stop_gradient(1.0 - 0.5 * distance)
                losses = losses + self.confidence_weight * _binary_cross_entropy(
                    confidence, accepted
                )
            is_label = in_blocks(is_label, slots)
            weight = decayed(is_label, self.decay)
            is_hit = is_label & is_known & (said >= log_q.max(-1))
            return (weight * losses).sum(), SlotSums(
                weight.sum(),
                is_hit.sum((0, 1), dtype=jnp.float32),
                is_label.sum((0, 1), dtype=jnp.float32),
            )

        blocks = read_blocks(target, drafter, params, lesson, self.blocks, key)
        total, sums = chunked_sum(
            part,
            self.chunk * slots,
            readout,
            (params.target, others),
            flat(blocks.states),
            (
                flat(blocks.before),
                flat(blocks.labels),
                flat(blocks.is_label),
                flat(blocks.hidden),
            ),
        )
        return Loss(total, sums.weight, sums.hits, sums.labels)


def _binary_cross_entropy(
    logits: Float[Array, "..."], chance: Float[Array, "..."]
) -> Float[Array, "..."]:
    return jax.nn.softplus(logits) - chance * logits
