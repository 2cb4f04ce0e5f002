"""From arguments to an exit status: settings of the process, and errors in one line."""

import importlib.metadata
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Sequence

import jax
import tyro
from rich.console import Console
from rich.text import Text

from specdec_jax import GenerationError
from specdec_jax.cli import (
    _bench,
    _calibrate,
    _chat,
    _compile,
    _demo,
    _evaluate,
    _export,
    _fetch,
    _generate,
    _info,
    _measure_cost,
    _regenerate,
    _train,
)
from specdec_jax.cli._arguments import (
    Chat,
    Command,
    Demo,
    Export,
    Fetch,
    Generate,
    Info,
    Regenerate,
    Train,
)
from specdec_jax.cli._arguments_measuring import (
    Bench,
    Calibrate,
    Compile,
    Evaluate,
    MeasureCost,
)
from specdec_jax.cli._show import Screens, versions
from specdec_jax.io import cache_folder

# Paragraphs, since tyro joins lines.
_DESCRIPTION = """Lossless speculative decoding: the model's own text, in fewer steps.

specdec-jax generate "Write a haiku about the sea." --temperature 0.8

specdec-jax generate - --no-chat < draft.txt

specdec-jax generate --help

specdec-jax --version says which versions are at work."""
_SHORTEST_KEPT = 0.5  # seconds; what compiles faster is not kept on disk


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments ask; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever a terminal cannot show
            stream.reconfigure(errors="replace")
    screens = Screens(Console(highlight=False), Console(stderr=True, highlight=False))
    try:
        if list(arguments) == ["--version"]:
            screens.out.out(", ".join(f"{k} {v}" for k, v in versions().items()))
            return 0
        return _do(lambda: _parse(list(arguments)), screens)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(arguments: list[str]) -> Command:
    if arguments[:1] == ["train"] and arguments[1:2] not in ([], ["--help"], ["-h"]):
        return _train.parse(arguments[1:])  # a recipe has options of its own
    return tyro.cli(
        Command,
        prog="specdec-jax",
        description=_DESCRIPTION,
        args=arguments or ["--help"],
        config=(tyro.conf.OmitArgPrefixes,),
    )


def _do(parse: Callable[[], Command], screens: Screens) -> int:
    is_debugging = False
    try:
        command = parse()
        is_debugging = command.debug
        set_up_jax()
        match command:
            case Evaluate():
                return _evaluate.evaluate(command, screens)
            case Export():
                return _export.export(command, screens)
            case Regenerate():
                return _regenerate.regenerate(command, screens)
            case _train.Changed():
                return _train.train(command, screens)
            case Train():
                raise AssertionError("its recipe is read first")
            case Generate():
                return _generate.generate(command, screens)
            case Chat():
                return _chat.chat(command, screens)
            case Demo():
                return _demo.demo(command, screens)
            case Bench():
                return _bench.bench(command, screens)
            case Calibrate():
                return _calibrate.calibrate(command, screens)
            case MeasureCost():
                return _measure_cost.measure_cost(command, screens)
            case Compile():
                return _compile.compile(command, screens)
            case Info():
                return _info.info(command, screens)
            case Fetch():
                return _fetch.fetch(command, screens)
    except BrokenPipeError:
        raise
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        if is_debugging:
            raise
        screens.err.print(Text(f"error: {error}", "red"), soft_wrap=True)
        return 1 if isinstance(error, GenerationError) else 2


def set_up_jax() -> None:
    """Keep compiled programs from run to run; keep an absent TPU quiet."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = cache_folder() / "xla"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_KEPT)
    # libtpu, which the extra `dev` brings for its compiler, complains where there is no
    # TPU. jax chooses a platform by itself where it sees one; else the CPU is left.
    has_plugins = importlib.util.find_spec("jax_plugins") is not None
    has_plugins |= bool(importlib.metadata.entry_points(group="jax_plugins"))
    if jax.config.values["jax_platforms"] is None and not has_plugins:
        jax.config.update("jax_platforms", "cpu")
