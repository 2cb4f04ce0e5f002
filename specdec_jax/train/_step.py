"""One step of training: gradients of some lessons, and what they change."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from specdec_jax._lesson import Lesson, Loss, Objective
from specdec_jax._types import Params, Target


class TrainState(NamedTuple):
    """What a run goes on from, but for where its data is."""

    step: Int[Array, ""]
    params: PyTree  # of the drafter, float32 where they are trained
    optimizer: PyTree
    key: Key[Array, ""]


class Metrics(NamedTuple):
    """Of one step."""

    loss: Float[Array, ""]  # per label
    accuracy: Float[Array, " P"]  # share of labels that are the best guess, by depth
    labels: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    is_finite: Bool[Array, ""]  # else nothing has changed


TrainStep = Callable[[PyTree, TrainState, Lesson], tuple[TrainState, Metrics]]


def init_state(
    params: PyTree, optimizer: optax.GradientTransformation, key: Key[Array, ""]
) -> TrainState:
    """A run at its beginning."""
    params = jax.tree.map(
        lambda x: jnp.array(x, jnp.float32 if _is_trained(x) else None), params
    )  # copies: a step consumes its state
    trained, _ = _split(params)
    start, own = jnp.zeros((), jnp.int32), jnp.copy(key)
    return TrainState(start, params, optimizer.init(trained), own)


def make_train_step(
    target: Target,
    drafter: Any,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    dtype: DTypeLike,
    mesh: Mesh | None = None,
) -> TrainStep:
    """A jitted step that consumes the state it is given.

    It takes the target's parameters, a state, and lessons "A B T …": the gradients of
    A parts are added before they are used, each label counting the same.

    Args:
        target: whose parameters stay as they are.
        drafter: that is trained.
        objective: what for.
        optimizer: from gradients to changes.
        dtype: of the drafter's arithmetic; its parameters are float32 in between.
        mesh: of devices over whose axis "data" lessons are spread.
    """

    def loss_of(
        trained: PyTree, fixed: PyTree, target_params: PyTree, lesson: Lesson, key: Any
    ) -> tuple[Array, Loss]:
        narrow = jax.tree.map(lambda x: x.astype(dtype), trained)
        params = Params(target_params, _join(narrow, fixed))
        lesson = lesson._replace(
            features=lesson.features.astype(dtype), hidden=lesson.hidden.astype(dtype)
        )
        loss = objective.loss(target, drafter, params, lesson, key)
        return loss.total, loss

    def step(
        target_params: PyTree, state: TrainState, lessons: Lesson
    ) -> tuple[TrainState, Metrics]:
        trained, fixed = _split(state.params)
        key = jax.random.fold_in(state.key, state.step)

        def gradients_of(lesson: Lesson, key: Any) -> tuple[PyTree, Loss]:
            return jax.grad(loss_of, has_aux=True)(
                trained, fixed, target_params, lesson, key
            )

        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, gradients_of(*part)), None

        parts = lessons, jax.random.split(key, lessons.tokens.shape[0])
        first = jax.tree.map(lambda x: x[0], parts)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradients_of, *first)
        )
        (gradients, loss), _ = jax.lax.scan(add, zeros, parts)
        count = jnp.maximum(loss.known, 1.0)
        gradients = jax.tree.map(lambda x: x / count, gradients)
        norm = optax.tree.norm(gradients)
        is_finite = jnp.isfinite(norm) & jnp.isfinite(loss.total)
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = optimizer.update(gradients, state.optimizer, trained)
            changed = optax.apply_updates(trained, updates)
        keep = jax.tree.map(
            lambda new, old: jnp.where(is_finite, new, old),
            (changed, opt),
            (trained, state.optimizer),
        )
        new = TrainState(state.step + 1, _join(keep[0], fixed), keep[1], state.key)
        metrics = Metrics(
            loss.total / count,
            loss.hits / jnp.maximum(loss.labels, 1.0),
            loss.known,
            norm,
            is_finite,
        )
        return new, metrics

    if mesh is None:
        return jax.jit(step, donate_argnums=1)

    def on_mesh(
        target_params: PyTree, state: TrainState, lessons: Lesson
    ) -> tuple[TrainState, Metrics]:
        spread = NamedSharding(mesh, PartitionSpec(None, "data"))
        lessons = jax.lax.with_sharding_constraint(lessons, spread)
        new, metrics = step(target_params, state, lessons)
        return jax.lax.with_sharding_constraint(
            new, state_shardings(new, mesh)
        ), metrics

    return jax.jit(on_mesh, donate_argnums=1)


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """Fully sharded: of every array, the first axis that the mesh axis "data" divides
    is spread over it; XLA gathers what a layer needs when it needs it.
    """
    size = mesh.shape["data"]

    def sharding(leaf: Any) -> NamedSharding:
        axes: list[str | None] = [None] * leaf.ndim
        for axis, length in enumerate(leaf.shape):
            if length % size == 0 and length > size and leaf.ndim > 1:
                axes[axis] = "data"
                break
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map(sharding, state)


def _is_trained(x: Any) -> bool:
    """Ids of tokens are not."""
    return jnp.issubdtype(x.dtype, jnp.floating)


def _split(params: PyTree) -> tuple[PyTree, PyTree]:
    """Those that are trained, and the others; None in each for those of the other."""
    trained = jax.tree.map(lambda x: x if _is_trained(x) else None, params)
    fixed = jax.tree.map(lambda x: None if _is_trained(x) else x, params)
    return trained, fixed


def _join(trained: PyTree, fixed: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x, y: y if x is None else x, trained, fixed, is_leaf=lambda x: x is None
    )
