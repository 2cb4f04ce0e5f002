"""A run under way: its data, its steps, its judgements."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from specdec_jax import _sharding
from specdec_jax._digest import digest
from specdec_jax._lesson import Lesson
from specdec_jax._types import Params, Target
from specdec_jax.nn import BlockDrafter
from specdec_jax.nn._features import FeatureDrafter
from specdec_jax.train._batches import Batches, Rows
from specdec_jax.train._checkpoints import Checkpoints, Saved
from specdec_jax.train._corpus import Corpus
from specdec_jax.train._events import (
    Evaluated,
    Event,
    Filled,
    Trained,
    TrainingError,
)
from specdec_jax.train._features import FeatureCache, Observed, observe
from specdec_jax.train._recipe import Recipe, described, differences
from specdec_jax.train._simulate import simulate
from specdec_jax.train._start import start_params
from specdec_jax.train._step import (
    Metrics,
    TrainState,
    init_state,
    make_train_step,
    state_shardings,
)

_NOTE_EVERY = 10  # steps


def serving(recipe: Recipe) -> Any:
    """The drafter in the run's dtype."""
    config = dataclasses.replace(recipe.drafter.config, dtype=recipe.dtype)
    return dataclasses.replace(recipe.drafter, config=config)


def _check_mask(mask_id: int, corpus: Corpus) -> None:
    """Raise `ValueError` where a text has the token that shall mean an open slot."""
    found = int((corpus.tokens == mask_id).sum())
    if found:
        raise ValueError(
            f"mask_id {mask_id} is a token of the texts, {found} times: take one that "
            "the target has no use for"
        )


def _check_judged(recipe: Recipe, target: Target, corpus: Corpus) -> None:
    """Raise `ValueError` where the first judgement would fail, after all the steps
    before it: drafts are judged under rule `match`, on held-out prompts.
    """
    if recipe.drafter.kind != "points":
        raise ValueError(
            f'the trainer judges drafts of kind "points", not {recipe.drafter.kind!r}: '
            "the same parameters serve both, so change the kind of what it has trained"
        )
    if isinstance(recipe.drafter, FeatureDrafter | BlockDrafter):
        recipe.drafter.check(target)
    held_out = corpus.part(len(corpus) - recipe.data.held_out, len(corpus))
    judged = recipe.evaluation
    longest = int(held_out.prompt_lengths[: judged.prompts].max(initial=0))
    if longest + judged.new_tokens > target.max_length:
        raise ValueError(
            f"a held-out prompt of {longest} tokens and {judged.new_tokens} new ones "
            f"(evaluation.new_tokens) are beyond the {target.max_length} positions "
            "that the target was made for"
        )


class Run:
    """What stays the same during a run."""

    def __init__(
        self,
        recipe: Recipe,
        target: Target,
        target_params: PyTree,
        corpus: Corpus,
        folder: Path,
        mesh: Mesh | None,
        stop_ids: Sequence[int],
        report: Callable[[Event], None],
    ):
        data = recipe.data
        usable = len(corpus) - data.held_out
        count = round(usable * data.fraction)
        if count < 1:
            raise ValueError(
                f"the corpus has {len(corpus)} texts, of which {data.held_out} are "
                f"held out, and {data.fraction:g} of the rest is nothing to learn from"
            )
        self.recipe, self.target, self.target_params = recipe, target, target_params
        self.corpus, self.learned = corpus, corpus.part(0, count)
        if self.learned.num_answer_tokens == 0:
            raise ValueError("no token of what is learned from is an answer")
        _check_judged(recipe, target, corpus)
        if isinstance(recipe.drafter, BlockDrafter):
            _check_mask(recipe.drafter.config.mask_id, corpus)
        self.folder, self.mesh = folder, mesh
        self.stop_ids, self.report = tuple(stop_ids), report
        self.drafter = serving(recipe)
        self.optimizer = recipe.optimizer.make(recipe.steps)
        self.schedule = recipe.optimizer.schedule(recipe.steps)
        self.step = make_train_step(
            target,
            self.drafter,
            recipe.objective,
            self.optimizer,
            dtype=recipe.dtype,
            mesh=mesh,
        )
        self.batches = Batches(
            self.learned, rows=data.rows, length=data.length, seed=recipe.seed
        )
        self.cache: FeatureCache | None = None

    def note_recipe(self) -> None:
        """Keep it with the run; refuse to go on with another."""
        file, now = self.folder / "recipe.json", described(self.recipe)
        now |= {
            "the corpus": self.corpus.digest(),
            "the target's parameters": digest(self.target_params),
        }
        now = json.loads(json.dumps(now))
        if file.exists():
            changed = differences(json.loads(file.read_text("utf-8")), now)
            if changed:
                raise ValueError(
                    f"{self.folder} holds a run of another recipe: "
                    + "; ".join(changed)
                    + ": name another folder to start anew"
                )
            return
        file.write_text(json.dumps(now, indent=2) + "\n", "utf-8")

    def prepare(self, folder: Path) -> None:
        """Compute features before the first step, if they are to be cached."""
        data = self.recipe.data
        if data.features == "online":
            return
        self.cache = FeatureCache(
            folder,
            self.corpus.part(0, len(self.corpus) - data.held_out),
            self.drafter.taps,
            width=self.target.width,
            length=data.length,
            name=f"{self.recipe.target} {digest(self.target_params)}, "
            f"{self.recipe.dtype}",
        )
        self.cache.fill(
            self.observe,
            rows=data.rows,
            texts=len(self.learned),
            progress=lambda done, total: self.report(Filled(done, total)),
        )

    def observe(self, rows: Rows, taps: tuple[int | str, ...]) -> Observed:
        """What the target makes of some rows."""
        read = (self.place(x) for x in (rows.tokens, rows.positions, rows.texts))
        return observe(self.target, self.target_params, *read, taps=taps)

    def place(self, x: Any) -> jax.Array:
        """On the devices, rows spread over "data"."""
        if self.mesh is None:
            return jnp.asarray(x)
        spread = NamedSharding(self.mesh, PartitionSpec("data"))
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, spread, lambda i: host[i])

    def lessons(self) -> Lesson:
        """The next ones, "A B T …"."""
        parts = []
        for _ in range(self.recipe.data.accumulate):
            rows = next(self.batches)
            if self.cache is None:
                seen = self.observe(rows, tuple(self.drafter.taps))
            else:
                seen = Observed(*map(self.place, self.cache.read(rows)))
            tokens, positions, texts, is_answer = map(self.place, rows[:4])
            parts.append(Lesson(tokens, positions, texts, is_answer, *seen))
        return jax.tree.map(lambda *x: jnp.stack(x), *parts)

    def initial(self) -> TrainState:
        """The state of step 0."""
        start, noise = jax.random.split(jax.random.key(self.recipe.seed))
        params = start_params(
            self.target, self.target_params, self.drafter, self.learned, start
        )
        state = init_state(params, self.optimizer, noise)
        if self.mesh is not None:
            state = _sharding.place(state, state_shardings(state, self.mesh))
        return state

    def begin(self, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
        """The newest checkpoint, or the beginning."""
        last = checkpoints.last
        if last is None:
            return self.initial(), {"best": None, "stale": 0}
        saved = checkpoints.load(last, self.initial())
        self.batches.state = saved.more["data"]
        return saved.state, saved.more

    def loop(
        self, checkpoints: Checkpoints, state: TrainState, more: dict[str, Any]
    ) -> None:
        """Steps, and a judgement every so often, until one ends it."""
        recipe, judged = self.recipe, self.recipe.evaluation
        pending: list[Metrics] = []
        since = time.perf_counter()
        for step in range(int(state.step) + 1, recipe.steps + 1):
            if judged.patience and more["stale"] >= judged.patience:
                return
            state, metrics = self.step(self.target_params, state, self.lessons())
            pending.append(metrics)
            is_due = step % judged.every == 0 or step == recipe.steps
            if step % _NOTE_EVERY == 0 or is_due:
                self._note_steps(step, pending, time.perf_counter() - since)
                pending, since = [], time.perf_counter()
            if is_due:
                tau = self.judge(step, state.params, more)
                more = more | {"data": self.batches.state}
                checkpoints.save(Saved(state, more), tau=tau)
                since = time.perf_counter()

    def judge(self, step: int, params: PyTree, more: dict[str, Any]) -> float:
        """τ on held-out prompts; `more` remembers the best."""
        judged = self.recipe.evaluation
        held_out = self.corpus.part(
            len(self.corpus) - self.recipe.data.held_out, len(self.corpus)
        )
        stats = simulate(
            self.target,
            Params(self.target_params, self.served(params)),
            self.drafter,
            held_out.prompts()[: judged.prompts],
            new_tokens=judged.new_tokens,
            temperature=judged.temperature,
            stop_ids=self.stop_ids,
        )
        tau = stats.acceptance_length()
        is_best = more["best"] is None or tau > more["best"]
        more["best"] = tau if is_best else more["best"]
        more["stale"] = 0 if is_best else more["stale"] + 1
        by_depth = tuple(stats.acceptance_by_depth().tolist())
        self._note(Evaluated(step, tau, by_depth, is_best))
        return tau

    def served(self, params: PyTree) -> PyTree:
        """Parameters as they serve: in the run's dtype, on every device."""
        dtype = jnp.dtype(self.recipe.dtype)
        params = jax.tree.map(
            lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x,
            params,
        )
        if self.mesh is None:
            return params
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(lambda params: params, out_shardings=everywhere)(params)

    def _note_steps(self, step: int, pending: list[Metrics], seconds: float) -> None:
        host = [_sharding.to_host(metrics) for metrics in pending]
        first = step - len(host) + 1
        for i, metrics in enumerate(host):
            if not metrics.is_finite:
                raise TrainingError(
                    f"step {first + i}: the loss is {metrics.loss}, the norm of the "
                    f"gradient {metrics.gradient_norm}; nothing was learned from batch "
                    f"{first + i}, and the last checkpoint stays: lower "
                    "optimizer.peak, or train in float32"
                )
        data = self.recipe.data
        tokens = len(host) * data.accumulate * data.rows * data.length
        event = Trained(
            step,
            float(np.mean([x.loss for x in host])),
            tuple(np.mean([x.accuracy for x in host], axis=0).tolist()),
            float(np.asarray(self.schedule(step))),
            float(np.mean([x.gradient_norm for x in host])),
            tokens / seconds,
            step * data.accumulate * data.rows * data.length / len(self.learned.tokens),
        )
        self._note(event)

    def _note(self, event: Trained | Evaluated) -> None:
        if jax.process_index() == 0:
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                kind = {"event": type(event).__name__.lower()}
                file.write(json.dumps(kind | event._asdict()) + "\n")
        self.report(event)
