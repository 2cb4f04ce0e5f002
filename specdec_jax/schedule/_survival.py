"""How likely each node of a draft is to be accepted, all above it included."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from specdec_jax import _tree
from specdec_jax._types import Draft

_NEVER = 1e-6  # a confidence beyond this of 0 or 1 is taken for this


def survival(draft: Draft, temperatures: tuple[float, ...] = ()) -> Float[Array, "B N"]:
    """The product of the confidences along each path: 1 at the root, 0 where a node or
    one above it is not valid.

    Args:
        draft: with confidences; NaN counts as 0.
        temperatures: of the confidences' logits by depth, the first of the root's
            children (Guo et al. 2017; fitted depth by depth, see `calibrate`). Deeper
            nodes have the last one's.

    It never grows along a path, to the last bit: whoever takes nodes in its order takes
    a parent before its children (at equal survival the parent has the lower number).
    """
    assert draft.confidence is not None
    confidence = calibrated(draft, temperatures)
    above = _tree.ancestors(draft.parents)
    is_root = draft.parents < 0
    each = jnp.where(is_root, 1.0, jnp.where(draft.valid, confidence, 0.0))
    product = jnp.where(above, each[:, None, :], 1.0).prod(-1)
    return jnp.where(above, product[:, None, :], 1.0).min(-1)


def calibrated(draft: Draft, temperatures: tuple[float, ...]) -> Float[Array, "B N"]:
    """The confidences themselves, in (0, 1), each logit divided by its temperature."""
    assert draft.confidence is not None
    clipped = jnp.clip(jnp.nan_to_num(draft.confidence), _NEVER, 1 - _NEVER)
    if not temperatures:
        return clipped
    depth = jnp.clip(_tree.depths(draft.parents) - 1, 0, len(temperatures) - 1)
    logit = jnp.log(clipped) - jnp.log1p(-clipped)
    return jax.nn.sigmoid(logit / jnp.asarray(temperatures, jnp.float32)[depth])


def tokens_by_width(
    survival: Float[Array, "B N"],
    is_running: Bool[Array, " B"],
    widths: tuple[int, ...],
) -> Float[Array, " W"]:
    """What all running rows together are expected to emit, where each is read at one
    of these widths.
    """
    running = jnp.where(is_running[:, None], survival, 0.0)
    up_to = jnp.cumsum(running.sum(0))
    return up_to[jnp.asarray(widths, jnp.int32) - 1]
