"""What can be asked on the command line; `tyro` makes parser and help of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

DEFAULT_MODEL = "smollm2-135m-instruct"

Switch = FlagCreatePairsOff[bool]
DrafterName = Literal["ngram", "plain", "draft-model", "head"]


def _optional(metavar: str, default: str) -> object:
    """An option that may be left out, and what its absence means."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


@dataclass(frozen=True)
class ModelOptions:
    """Which model answers."""

    model: Annotated[str, arg(metavar="NAME|PATH")] = DEFAULT_MODEL
    """A known name, a GGUF file, a Hugging Face folder, or a name on its hub."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of parameters and cache; a CPU keeps a cache of float32 also for bfloat16."""


@dataclass(frozen=True)
class DraftingOptions:
    """What proposes tokens, to be accepted by the model or not: a matter of speed."""

    drafter: DrafterName = "ngram"
    """Look up what came next before, propose nothing, or let a smaller model draft, or
    a head on the model's own states: of EAGLE, EAGLE-2, EAGLE-3, DFlash or DSpark."""
    draft_model: Annotated[str | None, _optional("NAME|PATH", "none")] = None
    """The model of --drafter draft-model; it may be the same."""
    head: Annotated[Path | None, _optional("FOLDER", "none")] = None
    """The head of --drafter head, as others publish it; the format is seen."""
    tree: Annotated[
        str | None, _optional("TREE", "grown:8,4,3, or a block's chain")
    ] = None
    """What a head drafts: chain:DEPTH; of EAGLE's also static or
    grown:NODES,DEPTH,WIDTH, of DFlash slots:NODES."""
    nodes: Annotated[int | None, _optional("N", "5 for draft-model, else 8")] = None
    """Tokens that are verified at once: those drafted, and one."""
    longest: Annotated[int | None, _optional("N", "4")] = None
    """Tokens of the longest match that ngram looks for."""
    shortest: Annotated[int | None, _optional("N", "2")] = None
    """Tokens that must match at least for ngram to propose anything."""
    rule: Literal["match", "rejection", "block"] = "match"
    """match: the tokens of plain decoding with this seed. Others: of the same law."""


@dataclass(frozen=True)
class SamplingOptions:
    """How each token is chosen, and when the text ends."""

    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_k: int = 0
    """Only the K likeliest tokens; 0 is off."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability; 1 is off."""
    min_p: float = 0.0
    """Only tokens at least this fraction as likely as the likeliest; 0 is off."""
    repetition_penalty: float = 1.0
    """Above 1, tokens of prompt and text become less likely."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token of the text."""
    frequency_penalty: float = 0.0
    """Subtracted as often as the token occurs in the text."""
    bias: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="ID=VALUE")] = ()
    """Add to the logit of a token."""
    banned: Annotated[UseAppendAction[tuple[int, ...]], arg(metavar="ID")] = ()
    """A token that never comes."""
    allowed: Annotated[UseAppendAction[tuple[int, ...]], arg(metavar="ID")] = ()
    """If given, no other tokens than these come."""
    max_new_tokens: int = 128
    """The text's longest length."""
    min_new_tokens: int = 0
    """Before this many tokens, nothing ends the text."""
    stop: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="TEXT")] = ()
    """End before this text."""
    stop_id: Annotated[UseAppendAction[tuple[int, ...]], arg(metavar="ID")] = ()
    """End with this token, besides those of the model."""
    seed: int = 0
    """The same seed gives the same text."""


@dataclass(frozen=True)
class Generate:
    """Continue or answer one prompt, and measure how fast."""

    prompt: Annotated[Positional[str | None], arg(metavar="PROMPT")] = None
    """The text; - reads it from standard input."""
    file: Annotated[Path | None, _optional("PATH", "none")] = None
    """Read the prompt from a file instead."""
    chat: bool = True
    """Ask it as a user's turn, if the model has a chat template; or continue it."""
    system: Annotated[str | None, _optional("TEXT", "the model's own")] = None
    """What a system's turn says before."""
    samples: int = 1
    """Texts for this prompt, each with noise of its own."""
    logprobs: Annotated[
        Literal["model", "sampled"] | None, _optional("{model,sampled}", "none")
    ] = None
    """The tokens' log-probabilities, under the model's law or the one drawn from."""
    max_length: Annotated[int | None, _optional("N", "what it takes, rounded up")] = (
        None
    )
    """Tokens that the cache holds, of prompt and text together."""
    json: Switch = False
    """Print one JSON object at the end, and nothing else."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()
    drafting: DraftingOptions = DraftingOptions()
    sampling: SamplingOptions = SamplingOptions()


@dataclass(frozen=True)
class Chat:
    """Have a conversation. Ctrl-C stops an answer; /help lists commands."""

    system: Annotated[str | None, _optional("TEXT", "the model's own")] = None
    """What a system's turn says before."""
    slots: int = 1024
    """Tokens that the cache holds at first; it grows when they run out."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()
    drafting: DraftingOptions = DraftingOptions()
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
class Bench:
    """Measure drafters against plain decoding on prompts of several tasks."""

    prompts: Annotated[Path, arg(metavar="FILE.jsonl")]
    """A line for each: {"id": …, "task": …, "turns": ["…"]}, or {"prompt": "…"}."""
    drafters: Annotated[tuple[str, ...], arg(metavar="NAME")] = ("ngram",)
    """ngram, draft-model:NAME|PATH, head:FOLDER or head:FOLDER@TREE, with a tree as in
    `generate`. Plain decoding is always measured beside."""
    temperatures: Annotated[tuple[float, ...], arg(metavar="T")] = (0.0,)
    """Each is measured."""
    batches: Annotated[tuple[int, ...], arg(metavar="B")] = (1,)
    """Rows that are decoded at once; each is measured."""
    tasks: Annotated[tuple[str, ...], _optional("TASK", "all")] = ()
    """Only these of the file."""
    per_task: int = 10
    """Prompts of each task, at even distances in the file."""
    new_tokens: int = 64
    """Of each row, unless the answer ends before."""
    max_prompt: Annotated[int | None, _optional("N", "what the model can hold")] = None
    """Longer prompts are left out, and counted."""
    nodes: Annotated[int | None, _optional("N", "5 for draft-model, else 8")] = None
    """Tokens that are verified at once: those drafted, and one."""
    synthetic_acceptance: Annotated[float | None, _optional("A", "none")] = None
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
class Compile:
    """Compile a known model for TPUs that need not be there: memory, traffic, speed-up.

    Nothing is downloaded, allocated or run: the shapes are enough for the compiler.
    """

    model: Annotated[str, arg(metavar="NAME")] = "llama-3.1-8b"
    """Its shapes; info without a name lists the known ones."""
    topology: Annotated[str, arg(metavar="CHIP:SLICE")] = "v5e:2x4"
    """Chips of v5e, v5p or v6e, and their grid."""
    mesh: Annotated[
        str | None, _optional("data=N,model=M", "as many on model as kv heads allow")
    ] = None
    """Over how many chips the rows are spread, and the model."""
    drafter: Literal["ngram", "eagle", "eagle3", "dflash", "dspark", "plain"] = "ngram"
    """What proposes, heads with sizes as published ones have; plain decoding is
    compiled beside it."""
    nodes: Annotated[
        int | None, _optional("N", "16 for ngram, 60 for eagle, a block for the rest")
    ] = None
    """Tokens that a row verifies at once; dflash drafts a tree of so many."""
    depth: Annotated[int | None, _optional("N", "8")] = None
    """Of the tree that an EAGLE head grows, the root not counted."""
    width: Annotated[int | None, _optional("N", "10")] = None
    """Nodes that it continues at each depth, and children that each then has."""
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


@dataclass(frozen=True)
class Info:
    """What a model is and how much memory it needs; or what a head is."""

    model: Annotated[Positional[str | None], arg(metavar="NAME|PATH")] = None
    """A known name, a GGUF file, or a Hugging Face folder; without it, the names."""
    batch: int = 1
    """Rows."""
    max_length: Annotated[int | None, _optional("N", "4096, or all the model has")] = (
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
    prompts: Annotated[Path | None, _optional("FILE.jsonl", "none")] = None
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
    output: Annotated[Path, _optional("FOLDER", "runs/ and the recipe's folder")] = (
        Path("runs")
    )
    """Of checkpoints, metrics and curves; an interrupted run goes on."""
    cache: Annotated[Path | None, _optional("FOLDER", "features in --output")] = None
    """Of what the target makes of the corpus, where the recipe caches that."""
    devices: Annotated[int | None, _optional("N", "one")] = None
    """Spread the batches, parameters and optimiser over so many."""
    debug: Switch = False
    """Errors with their traceback."""


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
    per_task: int = 8
    """Prompts of each task of a file, at even distances."""
    new_tokens: int = 96
    """Of each answer, unless it ends before."""
    max_prompt: Annotated[int | None, _optional("N", "what the model can hold")] = None
    """Longer prompts are left out."""
    batch: int = 8
    """Prompts of one task that are answered at once."""
    output: Annotated[Path | None, _optional("FILE.json", "none")] = None
    """Write the numbers."""
    debug: Switch = False
    """Errors with their traceback."""
    model: ModelOptions = ModelOptions()


@dataclass(frozen=True)
class Export:
    """Write the best drafter of a run as a folder that can be used: by this library, or
    by others.
    """

    file: Annotated[Positional[Path], arg(metavar="RECIPE.py")]
    """The run's recipe."""
    output: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Where to: config.json and model.safetensors."""
    run: Annotated[
        Path | None, _optional("FOLDER", "runs/ and the recipe's folder")
    ] = None
    """Of the run."""
    format: Annotated[
        Literal["eagle", "eagle3", "zlab", "deepspec", "specforge", "speculators"]
        | None,
        _optional("{eagle,eagle3,zlab,deepspec,specforge,speculators}", "the authors'"),
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
    | Compile
    | Info
    | Fetch
)
