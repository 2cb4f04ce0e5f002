"""What several commands can be asked, in the same words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, UseAppendAction, arg

DEFAULT_MODEL = "smollm2-135m-instruct"

Switch = FlagCreatePairsOff[bool]
DrafterName = Literal["ngram", "plain", "draft-model", "head"]


def optional(metavar: str, default: str) -> object:
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
    draft_model: Annotated[str | None, optional("NAME|PATH", "none")] = None
    """The model of --drafter draft-model; it may be the same."""
    head: Annotated[Path | None, optional("FOLDER", "none")] = None
    """The head of --drafter head, as others publish it; the format is seen."""
    tree: Annotated[str | None, optional("TREE", "grown:8,4,3, or a block's chain")] = (
        None
    )
    """What a head drafts: chain:DEPTH; of EAGLE's also static or
    grown:NODES,DEPTH,WIDTH, of DFlash slots:NODES."""
    nodes: Annotated[int | None, optional("N", "5 for draft-model, else 8")] = None
    """Tokens that are verified at once: those drafted, and one."""
    longest: Annotated[int | None, optional("N", "4")] = None
    """Tokens of the longest match that ngram looks for."""
    shortest: Annotated[int | None, optional("N", "2")] = None
    """Tokens that must match at least for ngram to propose anything."""
    rule: Literal["match", "rejection", "block"] = "match"
    """match: the tokens of plain decoding with this seed. Others: of the same law."""


@dataclass(frozen=True)
class SchedulingOptions:
    """How much of each draft is verified, and whether there is one: a matter of speed,
    too."""

    schedule: Annotated[str | None, optional("RULE", "all of every draft")] = None
    """width:N; or, by what the drafter thinks of its draft and by --costs, early-stop,
    lagged-budget or (with --rule match) best-width."""
    costs: Annotated[Path | None, optional("FILE.json", "none")] = None
    """What a step costs on this machine, as measure-cost has written it; drafting stops
    where it loses by that."""


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
class AnsweringOptions:
    """Which prompts of the files are answered, and how."""

    per_task: int = 8
    """Prompts of each task of a file, at even distances."""
    new_tokens: int = 96
    """Of each answer, unless it ends before."""
    max_prompt: Annotated[int | None, optional("N", "what the model can hold")] = None
    """Longer prompts are left out."""
    batch: int = 8
    """Prompts of one task that are answered at once."""
