"""A run of the trainer, from a recipe to the best parameters."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from specdec_jax._types import Target
from specdec_jax.train._checkpoints import Checkpoints
from specdec_jax.train._corpus import Corpus
from specdec_jax.train._events import Event
from specdec_jax.train._recipe import Recipe
from specdec_jax.train._run import Run, serving
from specdec_jax.train._step import init_state


class Fitted(NamedTuple):
    """What a run gives."""

    drafter: Any
    params: PyTree  # the best, float32 where they are trained
    step: int  # of the best
    tau: float


def fit(
    recipe: Recipe,
    target: Target,
    target_params: PyTree,
    corpus: Corpus,
    folder: str | os.PathLike[str],
    *,
    stop_ids: Sequence[int] = (),
    cache: str | os.PathLike[str] | None = None,
    mesh: Mesh | None = None,
    report: Callable[[Event], None] = lambda event: None,
) -> Fitted:
    """Train as the recipe says, or go on where the run in `folder` stopped.

    Args:
        recipe: all that decides the outcome.
        target: as the recipe names it, in its dtype.
        target_params: its parameters.
        corpus: all texts, those held out included.
        folder: of checkpoints, metrics.jsonl and recipe.json.
        stop_ids: that end an answer.
        cache: folder of cached features; `folder`/features if None. Each process of
            several keeps its own in it.
        mesh: of devices over whose axis "data" the batches are spread.
        report: is told what happens.

    Raises:
        ValueError: the run in `folder` had another recipe; the corpus is too small; the
            objective is not one for the drafter.
        TrainingError: the loss or a gradient is NaN or infinite.
        OSError: the disk is full.
    """
    folder = Path(folder)
    run = Run(recipe, target, target_params, corpus, folder, mesh, stop_ids, report)
    folder.mkdir(parents=True, exist_ok=True)
    run.note_recipe()
    with Checkpoints(folder / "checkpoints") as checkpoints:
        cache = folder / "features" if cache is None else Path(cache)
        is_one = jax.process_count() == 1
        run.prepare(cache if is_one else cache / f"process-{jax.process_index()}")
        state, more = run.begin(checkpoints)
        run.loop(checkpoints, state, more)
    return load_best(recipe, target, folder, like=run.initial())


def load_best(
    recipe: Recipe, target: Target, folder: Path, *, like: Any = None
) -> Fitted:
    """The best drafter of a run that has been judged once at least.

    Args:
        recipe: of the run.
        target: as the recipe names it.
        folder: of the run.
        like: a state that is placed as the parameters shall be; by default on one
            device.

    Raises:
        ValueError: the folder holds no run, or none that has been judged.
    """
    drafter, optimizer = serving(recipe), recipe.optimizer.make(recipe.steps)
    if like is None:
        like = jax.eval_shape(
            lambda key: init_state(drafter.init_params(key, target), optimizer, key),
            jax.random.key(0),
        )
    if not (folder / "checkpoints").is_dir():
        raise ValueError(f"{folder} holds no run: it has no checkpoints")
    with Checkpoints(folder / "checkpoints") as checkpoints:
        best = checkpoints.best
        if best is None:
            raise ValueError(f"the run in {folder} has not been judged yet")
        found = checkpoints.load(best, like)
        return Fitted(drafter, found.state.params, best, checkpoints.tau(best))
