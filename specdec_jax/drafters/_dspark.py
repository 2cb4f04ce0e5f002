"""DSpark (Cheng et al. 2026, arXiv 2607.05147)."""

import dataclasses

from specdec_jax.nn import BlockDrafter


@dataclasses.dataclass(frozen=True)
class DSpark(BlockDrafter):
    """A block read in one pass, its tokens drawn left to right by a head that reads the
    token before each, with what the drafter thinks of its chance.

    Args:
        config: an `InjectedConfig` with a Markov head, a confidence head or both.
        taps: layers of the target in the order of the body's input.
        kind: as for every block drafter.
        drafts: as for every block drafter.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.config.markov is None and self.config.confidence == "none":
            raise ValueError("a body with neither head is a DFlash")
