"""What can be asked of the commands that measure."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from specdec_jax.cli._options import (
    AnsweringOptions,
    DraftingOptions,
    ModelOptions,
    Switch,
    optional,
)


@dataclass(frozen=True)
class Bench:
    """Measure drafters against plain decoding on prompts of several tasks."""

    prompts: Annotated[Path, arg(metavar="FILE.jsonl")]
    """A line for each: {"id": …, "task": …, "turns": ["…"]}, or {"prompt": "…"}."""
    drafters: Annotated[tuple[str, ...], arg(metavar="NAME")] = ("ngram",)
    """ngram, draft-model:NAME|PATH, or head:FOLDER, and after it @TREE, @SCHEDULE or
    both, as in `generate`. Plain decoding is always measured beside."""
    temperatures: Annotated[tuple[float, ...], arg(metavar="T")] = (0.0,)
    """Each is measured."""
    batches: Annotated[tuple[int, ...], arg(metavar="B")] = (1,)
    """Rows that are decoded at once; each is measured."""
    tasks: Annotated[tuple[str, ...], optional("TASK", "all")] = ()
    """Only these of the file."""
    per_task: int = 10
    """Prompts of each task, at even distances in the file."""
    new_tokens: int = 64
    """Of each row, unless the answer ends before."""
    max_prompt: Annotated[int | None, optional("N", "what the model can hold")] = None
    """Longer prompts are left out, and counted. Every batch has a cache for the longest
    that stays."""
    nodes: Annotated[int | None, optional("N", "5 for draft-model, else 8")] = None
    """Tokens that are verified at once: those drafted, and one."""
    costs: Annotated[tuple[Path, ...], optional("FILE.json", "none")] = ()
    """What a step with each drafter costs on this machine, as measure-cost has written
    it: for schedules, and to predict speed-ups."""
    synthetic_acceptance: Annotated[float | None, optional("A", "none")] = None
    """Also measure drafts that are right with this probability each, made from the
    text that plain decoding gives: the speed of the engine, whatever the drafter."""
    chat: bool = True
    """Ask each prompt as a user's turn, if the model has a chat template."""
    profile: Switch = False
    """Also say where the time of a step goes."""
    plot: Switch = False
    """Also draw speed-up and acceptance, as PNG files beside --output."""
    output: Annotated[Path, arg(metavar="FILE.json")] = Path("bench.json")
    """Results, after each batch; the same command goes on where it was interrupted."""
    restart: Switch = False
    """Measure anew what --output has already."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()


@dataclass(frozen=True)
class MeasureCost:
    """Time a step with a drafter on this machine, by rows and tokens read of each: what
    --schedule weighs, and bench predicts with.
    """

    output: Annotated[Path, arg(metavar="FILE.json")]
    """Of the table; it is refused for other machines, models and drafters."""
    batches: Annotated[tuple[int, ...], arg(metavar="B")] = (1,)
    """Rows that are decoded at once."""
    widths: Annotated[
        tuple[int, ...], optional("N", "1, 2, 4, … and all of the draft")
    ] = ()
    """Tokens read of each row."""
    slots: int = 512
    """Tokens that the cache holds of a row."""
    temperature: float = 0.0
    """0, or any other: noise costs time too."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()
    drafting: DraftingOptions = DraftingOptions()


@dataclass(frozen=True)
class Calibrate:
    """Make what a head says of its drafts come true, for --schedule: fitted to what is
    accepted on prompts that it was not trained on, judged on every second of them.
    """

    head: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """The drafter's: config.json and weights."""
    prompts: Annotated[tuple[Path, ...], arg(metavar="FILE.jsonl")]
    """A line for each: {"id": …, "task": …, "turns": ["…"]}, or {"prompt": "…"}."""
    temperatures: Annotated[tuple[float, ...], arg(metavar="T")] = (0.0,)
    """A calibration for each."""
    top_k: int = 0
    """As in `generate`: a calibration is for one way of sampling."""
    top_p: float = 1.0
    """The same."""
    min_p: float = 0.0
    """The same."""
    rule: Literal["match", "rejection", "block"] = "match"
    """Of verification, as in `generate`."""
    loss: Literal["ece", "nll"] = "ece"
    """ece: the least calibration error; nll: the likeliest, for few prompts."""
    answering: AnsweringOptions = AnsweringOptions()
    output: Annotated[Path | None, optional("FOLDER", "the head's own")] = None
    """Where the calibrations go."""
    plot: Switch = False
    """Also draw how often what was said came true, as PNG files beside them."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()


@dataclass(frozen=True)
class Evaluate:
    """Say what a drafter's drafts are worth: tokens per verification, by task."""

    head: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """The drafter's: config.json and weights."""
    prompts: Annotated[tuple[Path, ...], arg(metavar="FILE.jsonl")]
    """A line for each: {"id": …, "task": …, "turns": ["…"]}, or {"prompt": "…"}."""
    trees: Annotated[tuple[str, ...], arg(metavar="TREE")] = ("chain:5",)
    """chain:DEPTH; of EAGLE's heads also static or grown:NODES,DEPTH,WIDTH, of DFlash
    slots:NODES; each is measured."""
    temperatures: Annotated[tuple[float, ...], arg(metavar="T")] = (0.0,)
    """Each is measured."""
    answering: AnsweringOptions = AnsweringOptions()
    output: Annotated[Path | None, optional("FILE.json", "none")] = None
    """Write the numbers, those of a tree at a temperature as soon as they are there;
    what the file has already is not measured again."""
    restart: Switch = False
    """Measure anew what --output has already."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()


@dataclass(frozen=True)
class Compile:
    """Compile a known model for TPUs that need not be there: memory, traffic, speed-up.

    Nothing is downloaded, allocated or run: the shapes are enough for the compiler.
    """

    model: Annotated[str, arg(metavar="NAME")] = "llama-3.1-8b"
    """Its shapes; info without a name lists the known ones."""
    topology: Annotated[str, arg(metavar="CHIP:SLICE")] = "v5e:2x4"
    """Chips of v5e, v5p or v6e, and their grid."""
    mesh: Annotated[
        str | None, optional("data=N,model=M", "as many on model as kv heads allow")
    ] = None
    """Over how many chips the rows are spread, and the model."""
    drafter: Literal["ngram", "eagle", "eagle3", "dflash", "dspark", "plain"] = "ngram"
    """What proposes, heads with sizes as published ones have; plain decoding is
    compiled beside it."""
    nodes: Annotated[
        int | None, optional("N", "16 for ngram, 60 for eagle, a block for the rest")
    ] = None
    """Tokens that a row verifies at once; dflash drafts a tree of so many."""
    depth: Annotated[int | None, optional("N", "8")] = None
    """Of the tree that an EAGLE head grows, the root not counted."""
    width: Annotated[int | None, optional("N", "10")] = None
    """Nodes that it continues at each depth, and children that each then has."""
    widths: Annotated[tuple[int, ...], optional("N", "the draft's own")] = ()
    """Widths to choose from on the device, ascending from 1, for a drafter that says
    how sure it is: dspark."""
    batch: int = 8
    """Rows."""
    slots: int = 4096
    """Tokens that a row's cache holds."""
    tau: Annotated[UseAppendAction[tuple[float, ...]], arg(metavar="TOKENS")] = ()
    """Say the speed-up for so many tokens per verification; 1.5 to 6 by default."""
    json: Switch = False
    """Print one JSON object at the end, and nothing else."""
    debug: Switch = False
    """Errors with their traceback."""
