"""What a drafter learns from, and what a loss says."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specdec_jax._types import Drafter, Params, Target


class Lesson(NamedTuple):
    """Texts, several to a row, and what the target made of them.

    Texts of one row know nothing of each other: whoever reads a lesson compares
    `texts`. Padding has text 0, and says nothing.
    """

    tokens: Int[Array, "B T"]
    positions: Int[Array, "B T"]  # within the text
    texts: Int[Array, "B T"]  # which of the row's, from 1
    is_answer: Bool[Array, "B T"]  # a token that is worth foretelling
    features: Float[Array, "B T F"]  # the drafter's taps
    hidden: Float[Array, "B T D"]  # the target's, after its last norm

    def sees(self) -> Bool[Array, "B T T"]:
        """Who sees whom: a token itself and what comes before in its text."""
        size = self.tokens.shape[1]
        at = jnp.arange(size, dtype=jnp.int32)
        is_same = self.texts[:, :, None] == self.texts[:, None, :]
        return is_same & (at[None, :, None] >= at[None, None, :])

    def labels(self, back: int) -> Bool[Array, "B T"]:
        """Where the state at u, made from the row `back` before, foretells an answer:
        the token after u, in the same text.
        """
        following = _shifted(self.texts, -1)
        is_one_text = (_shifted(self.texts, back) == following) & (following > 0)
        return is_one_text & _shifted(self.is_answer, -1)


def _shifted(x: Array, by: int) -> Array:
    """Moved right by so many places (left if negative), 0 where nothing comes from."""
    size = x.shape[1]
    if by < 0:
        return jnp.pad(x[:, -by:], ((0, 0), (0, min(-by, size))))
    return jnp.pad(x[:, : size - by], ((0, 0), (by, 0)))


class Loss(NamedTuple):
    """Sums, so that parts of a batch can be added; the trainer divides by `known`."""

    total: Float[Array, ""]
    known: Float[Array, ""]  # labels of the first depth
    hits: Float[Array, " P"]  # labels that the drafter's best token meets, by depth
    labels: Float[Array, " P"]  # by depth


@runtime_checkable
class Objective(Protocol):
    """What a drafter is trained for. Frozen dataclasses satisfy it."""

    def loss(
        self,
        target: Target,
        drafter: Any,
        params: Params,
        lesson: Lesson,
        key: Key[Array, ""],
    ) -> Loss:
        """Of a lesson; gradients go to `params.drafter` only.

        Raises:
            ValueError: the objective is not one for this drafter.
        """
        ...


@runtime_checkable
class TrainableDrafter(Drafter, Protocol):
    """A drafter that can be made from nothing."""

    def init_params(self, key: Key[Array, ""], target: Target) -> Any:
        """Random parameters: a pure dict."""
        ...
