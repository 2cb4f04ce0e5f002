"""What a run tells while it goes on."""

from typing import NamedTuple


class Filled(NamedTuple):
    """Features are being computed."""

    done: int
    total: int


class Trained(NamedTuple):
    """Some steps are done."""

    step: int
    loss: float
    accuracy: tuple[float, ...]  # by depth
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    epoch: float


class Evaluated(NamedTuple):
    """Drafts were judged."""

    step: int
    tau: float
    acceptance_by_depth: tuple[float, ...]
    is_best: bool


Event = Filled | Trained | Evaluated


class TrainingError(RuntimeError):
    """The loss is no number any more."""
