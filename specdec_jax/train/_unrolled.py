"""EAGLE-3's objective, the training-time test (Li et al. 2025, arXiv 2503.01840,
§3.2).
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specdec_jax._lesson import Lesson, Loss
from specdec_jax._types import Params, Target
from specdec_jax.drafters import Eagle3
from specdec_jax.nn import TOKENS, Rows, chunked_sum, cross_entropy, next_states

_READOUT = ("norm", "head")  # what of the parameters makes logits of a state


@dataclasses.dataclass(frozen=True)
class TrainingTimeTest:
    """The target's law at each of several depths, the head reading its own states, but
    the tokens of the text.

    Args:
        steps: depths.
        decay: what each depth counts of the one before.
        chunk: positions whose logits are there at once.
        remat: compute a depth anew for its gradient, rather than keep it.
    """

    steps: int = 7
    decay: float = 0.8
    chunk: int = 64
    remat: bool = False

    def loss(
        self,
        target: Target,
        drafter: Any,
        params: Params,
        lesson: Lesson,
        key: Key[Array, ""],
    ) -> Loss:
        """At depth i, row t reads its own state and token t + 1 + i, and foretells
        token t + 2 + i.
        """
        if not isinstance(drafter, Eagle3):
            raise ValueError("TrainingTimeTest trains Eagle3, no other drafter")
        chunk = math.gcd(self.chunk, lesson.tokens.shape[1])
        teacher = _teach(target, drafter, params, lesson.hidden, chunk)
        readout = {name: params.drafter[name] for name in _READOUT}
        others = {k: v for k, v in params.drafter.items() if k not in _READOUT}

        def advance(own, embedded, states, rows):
            head = drafter.head(own)
            return next_states(
                head, embedded, states, lesson.positions, lesson.sees(), rows
            )

        def part(readout, others, states, rest):
            laws, best, is_label = rest
            logits = drafter.head(others | readout).logits(states)
            said = jnp.take_along_axis(logits, best[..., None], axis=-1)[..., 0]
            is_hit = said >= logits.max(-1)
            total = jnp.where(is_label, cross_entropy(logits, laws), 0.0).sum()
            return total, (is_label & is_hit).sum(dtype=jnp.float32)

        advance = jax.checkpoint(advance) if self.remat else advance
        states = drafter.head(params.drafter).fuse(lesson.features)
        rows, total = Rows(), jnp.zeros((), jnp.float32)
        hits, counts = [], []
        for depth in range(self.steps):
            ahead = 1 + depth
            tokens = jnp.pad(lesson.tokens[:, ahead:], ((0, 0), (0, ahead)))
            embedded = drafter.embed(target, params, tokens)
            states, rows = advance(params.drafter, embedded, states, rows)
            is_label = lesson.labels(back=ahead) & teacher.is_known
            of_depth, hit = chunked_sum(
                part,
                chunk,
                readout,
                others,
                jnp.pad(states[:, :-ahead], ((0, 0), (ahead, 0), (0, 0))),
                (teacher.laws, teacher.best, is_label),
            )
            total = total + self.decay**depth * of_depth
            hits.append(hit)
            counts.append(is_label.sum(dtype=jnp.float32))
        return Loss(total, counts[0], jnp.stack(hits), jnp.stack(counts))


class _Teacher(NamedTuple):
    """What the target says after each token, over the tokens that the head knows."""

    laws: Float[Array, "B T W"]
    best: Int[Array, "B T"]  # the likeliest of them
    is_known: Bool[Array, "B T"]  # it is the target's likeliest of all


def _teach(
    target: Target,
    drafter: Eagle3,
    params: Params,
    hidden: Float[Array, "B T D"],
    chunk: int,
) -> _Teacher:
    """Made once for all depths, some positions at a time."""

    def some(hidden: Float[Array, "B C D"]) -> _Teacher:
        logits = known = target.logits(params.target, hidden)
        if drafter.config.draft_vocab_size is not None:
            known = jnp.take(logits, params.drafter[TOKENS], axis=-1)
        best = known.argmax(-1).astype(jnp.int32)
        return _Teacher(
            jax.nn.softmax(known, axis=-1), best, known.max(-1) >= logits.max(-1)
        )

    batch, size = hidden.shape[:2]
    parts = hidden.reshape(batch, size // chunk, chunk, -1).swapaxes(0, 1)
    said = jax.lax.map(some, parts)
    teacher = jax.tree.map(
        lambda x: x.swapaxes(0, 1).reshape(batch, size, *x.shape[3:]), said
    )
    return jax.lax.stop_gradient(teacher)
