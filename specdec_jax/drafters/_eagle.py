"""EAGLE and EAGLE-2 (Li et al. 2024, arXiv 2401.15077 and 2406.16858)."""

import dataclasses
import functools
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from specdec_jax._types import Params, Target
from specdec_jax.nn import EagleConfig, EagleHead
from specdec_jax.nn._features import FeatureDrafter


@dataclasses.dataclass(frozen=True)
class Eagle(FeatureDrafter):
    """A head that foretells the target's next feature, read by the target's own output
    layer.

    Args:
        config: an `EagleConfig`.
        tree: a `StaticTree`, or a `GrownTree` (EAGLE-2).
        kind: "points" takes the likeliest children (under `match`, with the target's
            own noise); "without_replacement" draws them, in a static tree.
    """

    taps: tuple[int | str, ...] = dataclasses.field(default=("final",), init=False)

    def check(self, target: Target) -> None:
        """Raise `ValueError` where this is no head of that target."""
        if self.config.width != target.width:
            raise ValueError(
                f"{self} is a head for states of {self.config.width} numbers, but the "
                f"target's have {target.width}: it was made for another model"
            )

    def init_params(self, key: Key[Array, ""], target: Target) -> PyTree:
        """Random parameters for a head of this target: a pure dict."""
        head = EagleHead(self.config, vocab_size=target.vocab_size, rngs=nnx.Rngs(key))
        return nnx.to_pure_dict(nnx.split(head)[1])

    def head(self, params: PyTree) -> Any:
        """The network around its parameters."""
        return nnx.merge(_graph(self.config), params)

    def logits(
        self, target: Target, params: Params, states: Float[Array, "B W D"]
    ) -> Float[Array, "B W V"]:
        """A state is a feature: the target reads it."""
        return target.logits(params.target, states)


@functools.cache
def _graph(config: EagleConfig) -> nnx.GraphDef:
    def build() -> EagleHead:  # of any vocabulary: sizes are the parameters'
        return EagleHead(config, vocab_size=1, rngs=nnx.Rngs(0))

    return nnx.split(nnx.eval_shape(build))[0]
