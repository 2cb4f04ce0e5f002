"""Everything that decides how a drafter is trained."""

import dataclasses
from typing import Any, Literal

from specdec_jax.train._optimizer import Optimizer


@dataclasses.dataclass(frozen=True)
class Data:
    """What is learned from.

    Args:
        corpus: files of texts (npz) that the target has answered, or patterns of such.
        fraction: of the texts that are not held out, so much is learned from.
        held_out: so many texts at the end are never learned from; their prompts are
            what drafts are judged by.
        length: tokens of a row; what a text has beyond them is left out.
        rows: of a batch.
        accumulate: batches whose gradients are added before a step.
        features: "cached" on disk before the first step, or computed "online".
    """

    corpus: tuple[str, ...] = ()
    fraction: float = 1.0
    held_out: int = 32
    length: int = 512
    rows: int = 8
    accumulate: int = 1
    features: Literal["cached", "online"] = "cached"

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is above 0 and at most 1, not {self.fraction}")
        if min(self.held_out, self.length, self.rows, self.accumulate) < 1:
            raise ValueError("held_out, length, rows and accumulate are at least 1")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How drafts are judged while the training goes on: by the tokens that a
    verification emits (τ) when answering held-out prompts, by the code that serves.

    Args:
        every: steps from one to the next.
        prompts: that are answered; no more than are held out.
        new_tokens: of each answer.
        temperature: of the answers.
        patience: end after so many without a better τ; 0 never does.
    """

    every: int = 200
    prompts: int = 16
    new_tokens: int = 64
    temperature: float = 0.0
    patience: int = 0

    def __post_init__(self):
        if min(self.every, self.prompts, self.new_tokens) < 1 or self.patience < 0:
            raise ValueError("every, prompts and new_tokens are at least 1")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A run of the trainer.

    Args:
        target: a name or path, as `load` takes it.
        drafter: that is trained, with the tree that it is judged by.
        objective: what for.
        data: what from.
        optimizer: and its schedule.
        evaluation: when and how it is judged, and whether it ends early.
        steps: at most.
        dtype: of the arithmetic of target and drafter; the drafter's parameters are
            float32 while they are trained.
        seed: of parameters, noise and order.
    """

    target: str
    drafter: Any  # a TrainableDrafter
    objective: Any  # an Objective
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    steps: int = 1000
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError("steps is at least 1")
        if self.evaluation.prompts > self.data.held_out:
            raise ValueError(
                f"evaluation.prompts is {self.evaluation.prompts}, but data.held_out "
                f"is {self.data.held_out}"
            )


def described(recipe: Any) -> dict[str, Any]:
    """A recipe, or a part of one, as dotted names and plain values, for people, files
    and comparisons.
    """
    said: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            said[field.name] = type(value).__name__
            for name, part in described(value).items():
                said[f"{field.name}.{name}"] = part
        else:
            said[field.name] = list(value) if isinstance(value, tuple) else value
    return said


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What two described recipes do not share, in words."""
    missing = "nothing"
    return [
        f"{name} was {before.get(name, missing)!r}, is {now.get(name, missing)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name, missing) != now.get(name, missing)
    ]
