"""A conversation's state: made, copied, grown, and refused once consumed."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from specdec_jax import _sharding
from specdec_jax._run import State
from specdec_jax._types import Drafter, Target

_SLOTS = 64  # caches hold a power of two, at least this


@functools.partial(
    jax.jit, static_argnames=("target", "drafter", "batch", "slots", "mesh")
)
def init_state(
    target: Target, drafter: Drafter, batch: int, slots: int, mesh: Mesh | None = None
) -> State:
    """No token known yet; rows spread over the mesh."""
    return _sharding.pin(
        State(
            cache=target.init_cache(batch, slots),
            drafter=drafter.init(batch, slots),
            tokens=jnp.zeros((batch, slots), jnp.int32),
            length=jnp.ones(batch, jnp.int32),
        ),
        mesh,
    )


def copy(state: State) -> State:
    """A state of its own, to go on from twice."""
    check_unused(state)
    return jax.tree.map(jnp.copy, state)


def grow(target: Target, drafter: Drafter, state: State, *, max_length: int) -> State:
    """The same conversation in a larger cache; consumes `state`, or returns it where it
    has the room already.

    Raises:
        ValueError: if `max_length` is less than what the state has room for already, or
            beyond the positions that the target was made for; if the state is of
            another target or drafter.
    """
    check_unused(state)
    check_owner(target, drafter, state)
    batch, slots = state.tokens.shape
    if not slots <= max_length <= target.max_length:
        raise ValueError(
            f"max_length {max_length} is outside {slots}, the slots there are, … "
            f"{target.max_length}, the positions that the model was made for"
        )
    bigger = jax.eval_shape(lambda: init_state(target, drafter, batch, max_length))

    def pad(x: Array, like: jax.ShapeDtypeStruct) -> Array:
        more = [(0, n - m) for n, m in zip(like.shape, x.shape, strict=True)]
        return jnp.pad(x, more) if any(b for _, b in more) else x

    grown = jax.tree.map(pad, state, bigger)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(grown), strict=True):
        if old is not new:
            old.delete()
    return grown


def slots_for(target: Target, length: int) -> int:
    """How many slots a cache for `length` tokens has: a power of two, so that few
    programs serve many lengths.
    """
    return min(max(_SLOTS, 1 << (length - 1).bit_length()), target.max_length)


def check_unused(state: State) -> None:
    """Raise `ValueError` where an earlier call has consumed the state."""
    if any(x.is_deleted() for x in jax.tree.leaves(state)):
        raise ValueError(
            "this state was consumed by an earlier call: go on from the state which "
            "that call returned, or keep a copy(state) before"
        )


def check_owner(target: Target, drafter: Drafter, state: State) -> None:
    """Raise `ValueError` where the state is of another target or drafter."""

    def shapes(state: State) -> PyTree:
        return jax.tree.map(lambda x: (x.shape, x.dtype), state)

    batch, slots = state.tokens.shape
    own = jax.eval_shape(lambda: init_state(target, drafter, batch, slots))
    if shapes(state) != shapes(own):
        raise ValueError(
            "this state came from another target or drafter: go on with the ones that "
            "it came from, or start anew"
        )
