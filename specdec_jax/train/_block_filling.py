"""DFlash's objective (Chen et al. 2026, arXiv 2602.06036, §3.3; D-PACE: arXiv
2605.18810).
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from specdec_jax import _sampling
from specdec_jax._lesson import Lesson, Loss
from specdec_jax._types import Params, Target
from specdec_jax.drafters import DFlash
from specdec_jax.nn import chunked_sum, cross_entropy
from specdec_jax.train._block_lesson import (
    SlotSums,
    decayed,
    flat,
    in_blocks,
    read_blocks,
    split_readout,
)


@dataclasses.dataclass(frozen=True)
class BlockFilling:
    """What stands in the slots of blocks that begin anywhere in an answer.

    Args:
        kind: "dpace" weighs a slot by how far the drafts before it are likely to come,
            "decay" by a constant that falls along the block; both take the text's own
            token. "law" is "decay" with the target's whole law instead of one token.
        blocks: of each row.
        decay: slots in which the constant falls by e.
        floor: below which no token's probability falls in the weights of "dpace", the
            rest scaled (the paper's α).
        chunk: blocks of each row whose logits are there at once.
    """

    kind: Literal["dpace", "decay", "law"] = "dpace"
    blocks: int = 64
    decay: float = 4.0
    floor: float = 0.5
    chunk: int = 8

    def __post_init__(self):
        if self.kind not in ("dpace", "decay", "law"):
            raise ValueError(f'kind is "dpace", "decay" or "law", not {self.kind!r}')
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
        """Slot k of a block holds the k-th token after its anchor."""
        if not isinstance(drafter, DFlash):
            raise ValueError("BlockFilling trains DFlash, no other drafter")
        readout, others = split_readout(params.drafter)
        slots = drafter.config.num_drafts

        def part(readout, constants, states, rest):
            target_params, others = constants
            labels, is_label, hidden = rest
            now = Params(target_params, others | readout)
            known = drafter.known(now.drafter)
            logits = drafter.logits(target, now, states)
            log_q = _sampling.log_softmax(logits)
            label, is_known = drafter.index(now.drafter, labels)
            is_label = is_label & is_known
            said = jnp.take_along_axis(log_q, label[..., None], axis=-1)[..., 0]
            weight, count = self._weights(
                in_blocks(said, slots), in_blocks(is_label, slots)
            )
            losses = -said
            if self.kind == "law":
                teacher = target.logits(target_params, hidden)
                if known is not None:
                    teacher = jnp.take(teacher, known, axis=-1)
                losses = cross_entropy(logits, jax.nn.softmax(teacher, axis=-1))
            losses = in_blocks(jnp.where(is_label, losses, 0.0), slots)
            is_hit = is_label & (said >= log_q.max(-1))
            return (weight * losses).sum(), SlotSums(
                count.sum(),
                in_blocks(is_hit, slots).sum((0, 1), dtype=jnp.float32),
                in_blocks(is_label, slots).sum((0, 1), dtype=jnp.float32),
            )

        blocks = read_blocks(target, drafter, params, lesson, self.blocks, key)
        total, sums = chunked_sum(
            part,
            self.chunk * slots,
            readout,
            (params.target, others),
            flat(blocks.states),
            (flat(blocks.labels), flat(blocks.is_label), flat(blocks.hidden)),
        )
        return Loss(total, sums.weight, sums.hits, sums.labels)

    def _weights(
        self, said: Float[Array, "B J K"], is_label: Bool[Array, "B J K"]
    ) -> tuple[Float[Array, "B J K"], Float[Array, "B J K"]]:
        """Of each slot, and what it counts in the mean."""
        if self.kind == "dpace":
            weight = dpace_weights(said, is_label, self.floor)
            return weight, is_label.astype(jnp.float32)
        weight = decayed(is_label, self.decay)
        return weight, weight


def dpace_weights(
    log_q: Float[Array, "... K"], is_label: Bool[Array, "... K"], floor: float
) -> Float[Array, "... K"]:
    """How many slots, from this one on, the drafts are likely to reach; constants to
    the gradient.

    Args:
        log_q: log-probability of each slot's label.
        is_label: slots that are none count as certain.
        floor: see `BlockFilling`.
    """
    chance = jnp.where(is_label, (1 - floor) * jnp.exp(log_q) + floor, 1.0)
    reached = jnp.where(is_label, jnp.cumprod(chance, axis=-1), 0.0)
    ahead = jnp.flip(jnp.cumsum(jnp.flip(reached, -1), axis=-1), -1)
    return jax.lax.stop_gradient(jnp.where(is_label, ahead, 0.0))
