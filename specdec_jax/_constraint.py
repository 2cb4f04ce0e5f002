"""What a grammar must be, said before anything runs."""

from typing import Any

import jax
import jax.numpy as jnp

from specdec_jax._types import Constraint


def check_constraint(constraint: Constraint, vocab_size: int) -> None:
    """Raise `ValueError` where its functions do not make what the step reads."""
    if not isinstance(constraint, Constraint):
        raise ValueError(f"constrain is a Constraint, not {constraint!r}")
    before = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, constraint.initial))
    mask = jax.eval_shape(constraint.mask, before)
    if mask.shape != (vocab_size,) or mask.dtype != jnp.bool_:
        raise ValueError(
            f"the constraint's mask must be {vocab_size} booleans, True for a token "
            f"that may come, not {mask.dtype}{list(mask.shape)}"
        )
    token = jax.ShapeDtypeStruct((), jnp.int32)
    after = jax.eval_shape(constraint.advance, before, token)
    if jax.tree.map(_kind, after) != jax.tree.map(_kind, before):
        raise ValueError(
            f"the constraint's advance makes another kind of state, {after}, of "
            f"{before}"
        )


def _kind(x: Any) -> tuple[Any, Any]:
    return x.shape, x.dtype
