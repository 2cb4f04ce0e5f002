"""`specdec-jax train`: a recipe, with what the command line changes in it."""

import dataclasses
import glob
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from jax.sharding import AxisType
from rich.progress import Progress

from specdec_jax import train as training
from specdec_jax.cli._arguments import Train
from specdec_jax.cli._options import ModelOptions
from specdec_jax.cli._setup import load
from specdec_jax.cli._show import Screens, count, plain_table, progress_bar


@dataclasses.dataclass(frozen=True)
class Changed(Train):
    """Train a drafter as its recipe says, or go on where it stopped; dotted options
    change the recipe.
    """

    recipe: Annotated[Any, tyro.conf.arg(name="")] = None


def parse(arguments: Sequence[str]) -> Changed:
    """The command of these arguments, the first of which is the recipe's file."""
    file = Path(arguments[0])
    recipe = read_recipe(file)
    default = Changed(file, Path("runs") / file.resolve().parent.name, recipe=recipe)
    return tyro.cli(
        Changed,
        prog="specdec-jax train",
        args=list(arguments),
        default=default,
        config=(tyro.conf.AvoidSubcommands,),
    )


def read_recipe(file: Path) -> training.Recipe:
    """The `recipe` that a Python file defines. The file is a program and is run.

    Raises:
        ValueError: it defines none.
        OSError: there is no such file.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no recipe {file}")
    recipe = runpy.run_path(str(file)).get("recipe")
    if not isinstance(recipe, training.Recipe):
        raise ValueError(f"{file} defines no `recipe`, a specdec_jax.train.Recipe")
    return recipe


def train(command: Changed, screens: Screens) -> int:
    """Train, and write the best drafter; status 0."""
    recipe: training.Recipe = command.recipe
    files = corpus_files(recipe.data.corpus)
    _show_recipe(recipe, screens)
    model = load(ModelOptions(recipe.target, recipe.dtype), screens)
    corpus = training.load_corpus(files, vocab_size=model.target.vocab_size)
    learned = round((len(corpus) - recipe.data.held_out) * recipe.data.fraction)
    screens.err.print(
        f"{count(len(corpus), 'text')}, {count(corpus.num_answer_tokens, 'token')} of "
        f"answers; learning from {count(learned, 'text')}"
    )
    mesh = None
    if command.devices is not None:
        mesh = jax.make_mesh((command.devices,), ("data",), axis_types=(AxisType.Auto,))
    with progress_bar(screens.err, is_kept=True) as progress:
        show = _Shown(progress, recipe, _board(command.output))
        try:
            fitted = training.fit(
                recipe,
                model.target,
                model.params,
                corpus,
                command.output,
                stop_ids=model.tokenizer.stop_ids,
                cache=command.cache,
                mesh=mesh,
                report=show,
            )
        except KeyboardInterrupt:
            screens.err.print(
                f"Interrupted: the same command goes on from the last checkpoint in "
                f"{command.output}.",
                soft_wrap=True,
            )
            return 130
    picture = command.output / "curves.png"
    try:
        training.plot_curves(command.output / "metrics.jsonl", picture)
    except ImportError as error:
        screens.err.print(f"no {picture}: {error}", soft_wrap=True)
    screens.out.print(
        f"best τ {fitted.tau:.3f} at step {fitted.step}; in {command.output}: "
        "specdec-jax export writes it for use",
        soft_wrap=True,
    )
    return 0


def corpus_files(patterns: Sequence[str]) -> list[str]:
    """The files that these patterns mean, each once, in order.

    Raises:
        ValueError: a pattern means none.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        files = sorted(glob.glob(pattern))
        if not files:
            raise ValueError(f"there is no corpus {pattern}")
        found.update(dict.fromkeys(files))
    return list(found)


class _Shown:
    """What a run reports, as bars or, where there is no terminal, as lines."""

    def __init__(
        self,
        progress: Progress,
        recipe: training.Recipe,
        board: Callable[[str, float, int], None],
    ):
        self._progress, self._steps, self._board = progress, recipe.steps, board
        self._filling: Any = None
        self._training: Any = None
        self._tau = ""

    def __call__(self, event: training.Event) -> None:
        match event:
            case training.Filled():
                self._filled(event)
            case training.Trained():
                self._trained(event)
            case training.Evaluated():
                self._evaluated(event)

    def _filled(self, event: training.Filled) -> None:
        if self._filling is None:
            self._filling = self._progress.add_task("features", total=event.total)
        self._progress.update(self._filling, completed=event.done)

    def _trained(self, event: training.Trained) -> None:
        if self._training is None:
            self._training = self._progress.add_task("", total=self._steps)
        accuracy = " ".join(f"{share:.0%}" for share in event.accuracy)
        said = (
            f"loss {event.loss:.3f}  right {accuracy}{self._tau}  "
            f"{event.tokens_per_second:,.0f} tokens/s  epoch {event.epoch:.2f}"
        )
        self._progress.update(self._training, completed=event.step, description=said)
        if not self._progress.console.is_terminal:
            self._progress.console.print(f"step {event.step}: {said}", soft_wrap=True)
        self._board("loss", event.loss, event.step)
        self._board("learning_rate", event.learning_rate, event.step)
        for depth, share in enumerate(event.accuracy, start=1):
            self._board(f"accuracy/{depth}", share, event.step)

    def _evaluated(self, event: training.Evaluated) -> None:
        self._tau = f"  τ {event.tau:.2f}"
        depths = " ".join(f"{share:.0%}" for share in event.acceptance_by_depth)
        best = ", the best so far" if event.is_best else ""
        self._progress.console.print(
            f"step {event.step}: τ {event.tau:.3f} ({depths}){best}", soft_wrap=True
        )
        self._board("tau", event.tau, event.step)


def _board(folder: Path) -> Callable[[str, float, int], None]:
    """Where TensorBoard is installed, its scalars too."""
    try:
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingImports]
    except ImportError:
        return lambda name, value, step: None
    writer = Writer(str(folder / "tensorboard"))
    return lambda name, value, step: writer.add_scalar(name, value, step)


def _show_recipe(recipe: training.Recipe, screens: Screens) -> None:
    table = plain_table("recipe", "")
    for name, value in training.described(recipe).items():
        table.add_row(name, str(value))
    screens.err.print(table)
