"""The last and the best of a run, by Orbax: written beside the training, each whole or
not at all.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from specdec_jax.train._step import TrainState

_TAU = "tau"


class Saved(NamedTuple):
    """A checkpoint: the state, and small values that go with it."""

    state: TrainState
    more: dict[str, Any]


class Checkpoints:
    """Of one run, in one folder. A context: what is being written is finished at its
    end.
    """

    def __init__(self, folder: Path):
        keep = ocp.training.preservation_policies
        policies: list[Any] = [
            keep.LatestN(1),
            keep.BestN(
                get_metric_fn=lambda metrics: metrics[_TAU],
                n=1,
                keep_checkpoints_without_metrics=False,
            ),
        ]
        preserve: Any = keep.AnyPreservationPolicy(policies)
        self._checkpointer = ocp.training.Checkpointer(
            str(folder.absolute()),
            save_decision_policy=_Always(),
            preservation_policy=preserve,
            cleanup_tmp_directories=True,
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *error: Any) -> None:
        with _errors_of_disk():
            self._checkpointer.close()

    @property
    def last(self) -> int | None:
        """The step of the newest; None where there is none."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    @property
    def best(self) -> int | None:
        """The step of the one with the highest τ."""
        taus = self._taus()
        return max(taus, key=lambda step: (taus[step], step)) if taus else None

    def tau(self, step: int) -> float:
        """Of a checkpoint that was judged."""
        return self._taus()[step]

    def _taus(self) -> dict[int, float]:
        found: list[Any] = list(self._checkpointer.checkpoints)
        return {x.step: float(x.metrics[_TAU]) for x in found if x.metrics is not None}

    def save(self, saved: Saved, *, tau: float) -> None:
        """Write it while the caller goes on; the state may be consumed meanwhile.

        Raises:
            OSError: the disk is full; what was there before stays.
        """
        state = saved.state._replace(key=jax.random.key_data(saved.state.key))
        with _errors_of_disk():
            self._checkpointer.wait()  # at most one at a time, and its errors
            self._checkpointer.save_async(
                int(state.step),
                jax.tree.map(jnp.copy, state._asdict()),
                metrics={_TAU: tau},
                custom_metadata=saved.more,
            )

    def load(self, step: int, like: TrainState) -> Saved:
        """Read the one of a step, onto devices as `like` is, which may be abstract."""
        is_abstract = isinstance(like.key, jax.ShapeDtypeStruct)
        data = jax.random.key_data
        key = jax.eval_shape(data, like.key) if is_abstract else data(like.key)
        like = like._replace(key=key)
        one = SingleDeviceSharding(jax.local_devices()[0])
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=getattr(x, "sharding", None) or one
            ),
            like._asdict(),
        )
        state = TrainState(**self._checkpointer.load(step, abstract))
        more: Any = self._checkpointer.metadata(step).custom_metadata
        return Saved(state._replace(key=jax.random.wrap_key_data(state.key)), more)


@contextlib.contextmanager
def _errors_of_disk() -> Iterator[None]:
    """What Orbax's writer reports as a `ValueError`, as the `OSError` that it is."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        found = re.search(r"os_error_code='(\d+)'", str(error))
        if found is None:
            raise
        code = int(found[1])
        raise OSError(code, f"no checkpoint: {os.strerror(code)}") from error


class _Always:
    """When to save is the caller's decision."""

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        return True
