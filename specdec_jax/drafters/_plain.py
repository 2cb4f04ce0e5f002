"""The drafter that proposes nothing: plain decoding is `generate` with it."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_jax import _tree
from specdec_jax._types import Accepted, Draft, Kind, Params, Sampler, Target


@dataclasses.dataclass(frozen=True)
class Plain:
    """A tree that is the root alone."""

    taps: tuple[int | str, ...] = dataclasses.field(default=(), init=False)
    num_nodes: int = dataclasses.field(default=1, init=False)
    max_depth: int = dataclasses.field(default=0, init=False)
    kind: Kind = dataclasses.field(default="points", init=False)
    can_pass: bool = dataclasses.field(default=False, init=False)

    def init(self, batch: int, slots: int) -> tuple[()]:
        """There is nothing to remember."""
        return ()

    def draft(
        self,
        target: Target,
        params: Params,
        state: Any,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, Any]:
        """The root."""
        return Draft(
            root[:, None],
            _tree.chain(root.shape[0], 1),
            jnp.ones((root.shape[0], 1), jnp.bool_),
        ), state

    def update(
        self, target: Target, params: Params, state: Any, accepted: Accepted
    ) -> Any:
        """Nothing to do."""
        return state
