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
from specdec_jax.nn import cross_entropy
from specdec_jax.train._block_lesson import (
    Blocks,
    Judged,
    check_chunk,
    decayed,
    loss_over_blocks,
    teacher_logits,
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
        check_chunk(self.blocks, self.chunk)

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

        def judge(params: Params, some: Blocks) -> Judged:
            logits, _ = drafter.foretell(target, params, some.states, some.before)
            log_q = _sampling.log_softmax(logits)
            label, is_known = drafter.index(params.drafter, some.labels)
            is_label = some.is_label & is_known
            said = jnp.take_along_axis(log_q, label[..., None], axis=-1)[..., 0]
            is_hit = said >= log_q.max(-1)
            if self.kind == "dpace":
                weights = dpace_weights(said, is_label, self.floor)
                shares = is_label.astype(jnp.float32)
                return Judged(-said, weights, shares, is_hit, is_label)
            weights, losses = decayed(is_label, self.decay), -said
            if self.kind == "law":
                teacher = teacher_logits(target, params, some.hidden)
                known = drafter.known(params.drafter)
                if known is not None:
                    teacher = jnp.take(teacher, known, axis=-1)
                losses = cross_entropy(logits, jax.nn.softmax(teacher, axis=-1))
            return Judged(losses, weights, weights, is_hit, is_label)

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
