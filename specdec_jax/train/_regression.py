"""EAGLE's objective (Li et al. 2024, arXiv 2401.15077, §4.2)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from specdec_jax._lesson import Lesson, Loss
from specdec_jax._types import Params, Target
from specdec_jax.drafters import Eagle
from specdec_jax.nn import Rows, chunked_sum, cross_entropy, next_states


@dataclasses.dataclass(frozen=True)
class FeatureRegression:
    """The next feature, by smooth L1, and what the target's output layer says of it, by
    the cross-entropy of the target's own law.

    Args:
        feature_weight: of the first.
        token_weight: of the second.
        noise: features that are read are moved by up to so much, uniformly.
        chunk: positions whose logits are there at once.
    """

    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.1
    chunk: int = 64

    def loss(
        self,
        target: Target,
        drafter: Any,
        params: Params,
        lesson: Lesson,
        key: Key[Array, ""],
    ) -> Loss:
        """Row t reads feature t and token t + 1; its state is held against feature
        t + 1, which foretells token t + 2.
        """
        if not isinstance(drafter, Eagle):
            raise ValueError("FeatureRegression trains Eagle, no other drafter")
        features = lesson.features
        if self.noise:
            moved = jax.random.uniform(
                key, features.shape, jnp.float32, -self.noise, self.noise
            )
            features = features + moved.astype(features.dtype)
        head = drafter.head(params.drafter)
        following = jnp.pad(lesson.tokens[:, 1:], ((0, 0), (0, 1)))
        states, _ = next_states(
            head,
            drafter.embed(target, params, following),
            head.fuse(features),
            lesson.positions,
            lesson.sees(),
            Rows(),
        )
        states = jnp.pad(states[:, :-1], ((0, 0), (1, 0), (0, 0)))

        def part(none, target_params, states, rest):
            hidden, is_label = rest
            teacher = target.logits(target_params, hidden)
            logits = target.logits(target_params, states)
            law = jax.nn.softmax(teacher, axis=-1)
            distance = optax.huber_loss(
                states.astype(jnp.float32), hidden.astype(jnp.float32)
            ).mean(-1)
            losses = self.feature_weight * distance + self.token_weight * cross_entropy(
                logits, law
            )
            best = teacher.argmax(-1)[..., None]
            said = jnp.take_along_axis(logits, best, axis=-1)[..., 0]
            is_hit = said >= logits.max(-1)
            total = jnp.where(is_label, losses, 0.0).sum()
            return total, (is_label & is_hit).sum(dtype=jnp.float32)

        labels = lesson.labels(back=1)
        total, hits = chunked_sum(
            part,
            math.gcd(self.chunk, lesson.tokens.shape[1]),
            (),
            params.target,
            states,
            (lesson.hidden, labels),
        )
        count = labels.sum(dtype=jnp.float32)
        return Loss(total, count, hits[None], count[None])
