"""What can be asked on the command line; `tyro` makes parser and help of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from specdec_jax.cli._arguments_measuring import (
    Bench,
    Calibrate,
    Compile,
    Evaluate,
    MeasureCost,
)
from specdec_jax.cli._options import (
    DraftingOptions,
    ModelOptions,
    SamplingOptions,
    SchedulingOptions,
    Switch,
    optional,
)


@dataclass(frozen=True)
class Generate:
    """Continue or answer one prompt, and measure how fast."""

    prompt: Annotated[Positional[str | None], arg(metavar="PROMPT")] = None
    """The text; - reads it from standard input."""
    file: Annotated[Path | None, optional("PATH", "none")] = None
    """Read the prompt from a file instead."""
    chat: bool = True
    """Ask it as a user's turn, if the model has a chat template; or continue it."""
    system: Annotated[str | None, optional("TEXT", "the model's own")] = None
    """What a system's turn says before."""
    samples: int = 1
    """Texts for this prompt, each with noise of its own."""
    logprobs: Annotated[
        Literal["model", "sampled"] | None, optional("{model,sampled}", "none")
    ] = None
    """The tokens' log-probabilities, under the model's law or the one drawn from."""
    max_length: Annotated[int | None, optional("N", "what it takes, rounded up")] = None
    """Tokens that the cache holds, of prompt and text together."""
    json: Switch = False
    """Print one JSON object at the end, and nothing else."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()
    drafting: DraftingOptions = DraftingOptions()
    scheduling: SchedulingOptions = SchedulingOptions()
    sampling: SamplingOptions = SamplingOptions()


@dataclass(frozen=True)
class Chat:
    """Have a conversation. Ctrl-C stops an answer; /help lists commands."""

    system: Annotated[str | None, optional("TEXT", "the model's own")] = None
    """What a system's turn says before."""
    slots: int = 1024
    """Tokens that the cache holds at first; it grows when they run out."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()
    drafting: DraftingOptions = DraftingOptions()
    scheduling: SchedulingOptions = SchedulingOptions()
    sampling: SamplingOptions = field(
        default_factory=lambda: SamplingOptions(max_new_tokens=256)
    )


@dataclass(frozen=True)
class Demo:
    """Answer prompts with and without speculation: the same text, and how fast."""

    max_new_tokens: int = 64
    """Of each answer."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()
    drafting: DraftingOptions = DraftingOptions()


@dataclass(frozen=True)
class Info:
    """What a model is and how much memory it needs; or what a head is."""

    model: Annotated[Positional[str | None], arg(metavar="NAME|PATH")] = None
    """A known name, a GGUF file, or a Hugging Face folder; without it, the names."""
    batch: int = 1
    """Rows."""
    max_length: Annotated[int | None, optional("N", "4096, or all the model has")] = (
        None
    )
    """Tokens that a row's cache holds."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of parameters and cache; a CPU keeps a cache of float32 also for bfloat16."""
    json: Switch = False
    """Print one JSON object, and nothing else."""
    debug: Switch = False
    """Errors with their traceback."""


@dataclass(frozen=True)
class Fetch:
    """Download a model by name and print where it is; without a name, list them."""

    model: Annotated[Positional[str | None], arg(metavar="NAME")] = None
    """Which one."""
    json: Switch = False
    """Print one JSON object, and nothing else."""
    debug: Switch = False
    """Errors with their traceback."""


@dataclass(frozen=True)
class Regenerate:
    """Let the model answer prompts, and write its answers as a corpus to train on."""

    output: Annotated[Path, arg(metavar="FOLDER")]
    """Of the corpus; the same command goes on where it was interrupted."""
    prompts: Annotated[Path | None, optional("FILE.jsonl", "none")] = None
    """A line for each: {"id": …, "task": …, "turns": ["…"]}, or {"prompt": "…"}."""
    own: int = 0
    """Answer so many questions more, which the model writes itself."""
    temperatures: Annotated[tuple[float, ...], arg(metavar="T")] = (0.0, 0.8)
    """One prompt is answered at each, in turn."""
    max_new_tokens: int = 320
    """Of an answer."""
    batch: int = 8
    """Prompts that are answered at once."""
    shard: int = 512
    """Texts of a file."""
    drafter: Literal["ngram", "plain"] = "ngram"
    """What makes it fast; the answers are the model's own in any case."""
    seed: int = 0
    """Of questions and answers."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()


@dataclass(frozen=True)
class Train:
    """Train a drafter as its recipe says, or go on where it stopped. With a recipe,
    --help lists all that can be changed in it.
    """

    file: Annotated[Positional[Path], arg(metavar="RECIPE.py")]
    """A Python file that defines `recipe`; it is run."""
    output: Annotated[Path, optional("FOLDER", "runs/ and the recipe's folder")] = Path(
        "runs"
    )
    """Of checkpoints, metrics and curves; an interrupted run goes on."""
    cache: Annotated[Path | None, optional("FOLDER", "features in --output")] = None
    """Of what the target makes of the corpus, where the recipe caches that."""
    devices: Annotated[int | None, optional("N", "one")] = None
    """Spread the batches, parameters and optimiser over so many."""
    debug: Switch = False
    """Errors with their traceback."""


@dataclass(frozen=True)
class Export:
    """Write the best drafter of a run as a folder that can be used: by this library, or
    by others.
    """

    file: Annotated[Positional[Path], arg(metavar="RECIPE.py")]
    """The run's recipe."""
    output: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Where to: config.json and model.safetensors."""
    run: Annotated[Path | None, optional("FOLDER", "runs/ and the recipe's folder")] = (
        None
    )
    """Of the run."""
    format: Annotated[
        Literal["eagle", "eagle3", "zlab", "deepspec", "specforge", "speculators"]
        | None,
        optional("{eagle,eagle3,zlab,deepspec,specforge,speculators}", "the authors'"),
    ] = None
    """The authors' own (zlab: of DFlash, deepspec: of DSpark), SpecForge's, or that of
    vLLM's speculators."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the weights."""
    debug: Switch = False
    """Errors with their traceback."""


Command = (
    Generate
    | Chat
    | Demo
    | Bench
    | Regenerate
    | Train
    | Export
    | Evaluate
    | Calibrate
    | MeasureCost
    | Compile
    | Info
    | Fetch
)
