"""A head that knows the toy: whatever EAGLE's machinery hands it, it can tell what
comes next, if the feature, the token and the position are the right ones.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specdec_jax.nn import EagleConfig
from specdec_jax.nn._features import FeatureDrafter


@dataclasses.dataclass(frozen=True)
class OracleHead:
    """From the context after token i and token i + 1 to the context after that.

    What it keeps of a row is its position and its token.
    """

    width: int

    def fuse(self, features: Array) -> Array:
        return features

    def __call__(self, embedded, state, positions, attend) -> Array:
        token = embedded.argmax(-1).astype(jnp.int32)
        key, value = (
            x.astype(jnp.float32)[:, :, None, None] for x in (positions + 1, token + 1)
        )
        attend(0, key, key, value)
        context = state.argmax(-1).astype(jnp.int32) + (positions + 2) * (token + 1)
        return jax.nn.one_hot(context % self.width, self.width, dtype=jnp.float32)


@dataclasses.dataclass(frozen=True)
class Oracle(FeatureDrafter):
    """Reads its contexts by the table in `params.drafter`, or else by the target's
    own.
    """

    config: Any = EagleConfig(
        width=31, num_heads=1, num_kv_heads=1, head_width=1, mlp_width=1
    )
    taps: tuple[int | str, ...] = dataclasses.field(default=("final",), init=False)

    def head(self, params: Any) -> Any:
        return OracleHead(self.config.width)

    def logits(self, target, params, states) -> Array:
        return target.logits(params.drafter or params.target, states)
