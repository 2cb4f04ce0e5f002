"""The optimiser of a recipe, as optax makes it."""

import dataclasses

import optax


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """AdamW under a warm-up and a decay to zero.

    Args:
        peak: learning rate after the warm-up.
        warmup: steps from zero to the peak, linearly.
        decay: how it falls from there to the last step.
        weight_decay: of AdamW.
        betas: of AdamW.
        clip: the gradient's global norm is at most this; 0 is off.
    """

    peak: float = 1e-3
    warmup: int = 100
    decay: str = "cosine"  # or "linear", "constant"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 0.5

    def __post_init__(self):
        if self.decay not in ("cosine", "linear", "constant"):
            raise ValueError(
                f'decay is "cosine", "linear" or "constant", not {self.decay!r}'
            )
        if self.peak <= 0 or self.warmup < 0 or self.clip < 0 or self.weight_decay < 0:
            raise ValueError(
                f"{self}: numbers below zero make no sense, nor a peak of 0"
            )

    def schedule(self, steps: int) -> optax.Schedule:
        """The learning rate of each of `steps` steps."""
        rest = max(steps - self.warmup, 1)
        falls = {
            "cosine": optax.cosine_decay_schedule(self.peak, rest),
            "linear": optax.linear_schedule(self.peak, 0.0, rest),
            "constant": optax.constant_schedule(self.peak),
        }
        rises = optax.linear_schedule(0.0, self.peak, max(self.warmup, 1))
        if self.warmup == 0:
            return falls[self.decay]
        return optax.join_schedules([rises, falls[self.decay]], [self.warmup])

    def make(self, steps: int) -> optax.GradientTransformation:
        """The transformation of gradients for a run of `steps` steps."""
        adam = optax.adamw(
            self.schedule(steps),
            b1=self.betas[0],
            b2=self.betas[1],
            weight_decay=self.weight_decay,
        )
        if self.clip == 0:
            return adam
        return optax.chain(optax.clip_by_global_norm(self.clip), adam)
