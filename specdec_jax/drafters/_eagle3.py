"""EAGLE-3 (Li et al. 2025, arXiv 2503.01840)."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key, PyTree

from specdec_jax._types import Params, Target
from specdec_jax.nn import Eagle3Config, Eagle3Head
from specdec_jax.nn._features import FeatureDrafter
from specdec_jax.nn._head_parts import TOKENS


@dataclasses.dataclass(frozen=True)
class Eagle3(FeatureDrafter):
    """A head over several taps of the target, with an output layer of its own.

    Its parameters are those of `Eagle3Head`, and under "tokens" int32 "W", the target's
    id of each token that it knows, ascending, where it does not know them all.

    Args:
        config: an `Eagle3Config`.
        tree: a `StaticTree` or a `GrownTree`.
        kind: as for `Eagle`.
        taps: three layers (0-based, after them) in the order of the head's input.
    """

    taps: tuple[int | str, ...] = ()

    def check(self, target: Target) -> None:
        """Raise `ValueError` where this is no head of that target."""
        taps, found = len(self.taps), self.config.feature_width
        if not taps:
            raise ValueError("an EAGLE-3 head needs taps, layers of the target to read")
        if found != taps * target.width:
            raise ValueError(
                f"{self} reads {found} numbers, but {taps} taps of the target have "
                f"{taps * target.width}: it was made for another model, or other taps"
            )
        if self.config.width != target.width and not self.config.own_embedding:
            raise ValueError(
                f"{self} is a head for states of {self.config.width} numbers, but the "
                f"target's have {target.width}: such a head needs an embedding of its "
                "own"
            )

    def init_params(self, key: Key[Array, ""], target: Target) -> PyTree:
        """Random parameters for a head of this target; the tokens that it knows are the
        first ones.
        """
        vocab_size = target.vocab_size
        head = Eagle3Head(self.config, vocab_size=vocab_size, rngs=nnx.Rngs(key))
        params = nnx.to_pure_dict(nnx.split(head)[1])
        size = self.config.draft_vocab_size
        if size is not None:
            params[TOKENS] = jnp.arange(size, dtype=jnp.int32)
        return params

    def head(self, params: PyTree) -> Any:
        """The network around its parameters."""
        own = {name: value for name, value in params.items() if name != TOKENS}
        return nnx.merge(_graph(self.config), own)

    def logits(
        self, target: Target, params: Params, states: Float[Array, "B W D"]
    ) -> Float[Array, "B W L"]:
        """By the head's own output layer."""
        return self.head(params.drafter).logits(states)

    def known(self, params: PyTree) -> Int[Array, " L"] | None:
        """Which tokens of the target's that output layer has."""
        return params.get(TOKENS)


@functools.cache
def _graph(config: Eagle3Config) -> nnx.GraphDef:
    def build() -> Eagle3Head:  # of any vocabulary: sizes are the parameters'
        return Eagle3Head(config, vocab_size=1, rngs=nnx.Rngs(0))

    return nnx.split(nnx.eval_shape(build))[0]
