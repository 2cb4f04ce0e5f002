"""When to draft, and how much of a draft to verify: what every schedule is."""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Int, PyTree

from specdec_jax._types import Draft


class Choice(NamedTuple):
    """What of one draft is verified."""

    chosen: Int[Array, ""]  # into the schedule's widths
    # Closed under parents. Nodes at or beyond the width are left out all the same.
    valid: Bool[Array, "B N"]
    state: PyTree


@runtime_checkable
class Schedule(Protocol):
    """Decides before each step whether to draft at all, and after the draft how many of
    its nodes the target reads. Hashable, a static argument.

    Whatever it decides, the text keeps its law under `match`, where a token is a
    function of prefix, seed and position alone. Under the other rules it does if a node
    is verified or not by what was known before that node was drawn: cost, past steps,
    other rows, what lies above the node, and the confidence of the node itself, which
    reads no more than that. A schedule that looks further says that it `anticipates`.
    """

    @property
    def widths(self) -> tuple[int, ...]: ...  # ascending, the first is 1: the root

    @property
    def anticipates(self) -> bool: ...

    @property
    def needs_confidence(self) -> bool: ...  # of the draft

    def init(self, batch: int) -> PyTree:
        """State before the first step; raises `ValueError` for a batch that it cannot
        schedule.
        """
        ...

    def before(self, state: PyTree) -> Bool[Array, ""]:
        """Whether to draft in this step. If not, the root is read alone."""
        ...

    def choose(
        self, state: PyTree, draft: Draft, is_running: Bool[Array, " B"]
    ) -> Choice:
        """What to verify; called in steps with a draft only."""
        ...

    def after(
        self,
        state: PyTree,
        has_drafted: Bool[Array, ""],
        index: Int[Array, ""],
        length: Int[Array, " B"],
    ) -> PyTree:
        """Take in how a step went: what was read, and how many tokens each row emitted,
        none where it had ended.
        """
        ...
