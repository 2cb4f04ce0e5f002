"""From options to what the library takes: model, drafter, sampling."""

import dataclasses
import time
from typing import NamedTuple

import jax.numpy as jnp

import specdec_jax as sd
from specdec_jax._types import Drafter
from specdec_jax.cli._heads import load_head
from specdec_jax.cli._options import (
    DraftingOptions,
    ModelOptions,
    SamplingOptions,
    SchedulingOptions,
)
from specdec_jax.cli._schedules import calibrated, make_schedule
from specdec_jax.cli._show import Screens
from specdec_jax.io import MODELS, fetch
from specdec_jax.schedule import CostTable, Profile, Schedule
from specdec_jax.text import Tokenizer


class Setup(NamedTuple):
    """All that generating takes, besides a prompt."""

    model: sd.LanguageModel
    drafter: Drafter
    params: sd.Params
    options: SamplingOptions
    sampling: sd.Sampling
    schedule: Schedule | None
    load_seconds: float


def set_up(
    model_options: ModelOptions,
    drafting: DraftingOptions,
    scheduling: SchedulingOptions,
    options: SamplingOptions,
    screens: Screens,
) -> Setup:
    """Load what the options name.

    Raises:
        ValueError: options that contradict each other, before anything is loaded.
    """
    bias = dict(_bias(entry) for entry in options.bias)
    cost = _cost(scheduling)
    start = time.perf_counter()
    model, drafter, params = load_both(model_options, drafting, screens)
    schedule = None
    if scheduling.schedule is not None:
        profile = Profile(
            drafting.rule,
            drafter.kind,
            options.temperature,
            options.top_k,
            options.top_p,
            options.min_p,
        )
        schedule = calibrated(
            scheduling.schedule,
            cost,
            drafting.head,
            profile,
            model.target,
            params,
            drafter,
            console=screens.err,
        )
    return Setup(
        model,
        drafter,
        params,
        options,
        _sampling(options, bias, model.tokenizer),
        schedule,
        time.perf_counter() - start,
    )


def load_both(
    model_options: ModelOptions, drafting: DraftingOptions, screens: Screens
) -> tuple[sd.LanguageModel, Drafter, sd.Params]:
    """The model, what drafts for it, and the parameters of both.

    Raises:
        ValueError: options that contradict each other, before anything is loaded.
    """
    _check_drafting(drafting)
    model = load(model_options, screens)
    drafter, params = _drafter(drafting, model, model_options, screens)
    return model, drafter, sd.Params(model.params, params)


def load(options: ModelOptions, screens: Screens) -> sd.LanguageModel:
    """The model that the options name."""
    if options.model in MODELS:
        fetch(options.model)  # shows its own progress
    with screens.err.status(f"Loading {options.model} …"):
        return sd.load(options.model, dtype=jnp.dtype(options.dtype))


def _check_drafting(options: DraftingOptions) -> None:
    is_lookup, is_model, is_head = (
        options.drafter == name for name in ("ngram", "draft-model", "head")
    )
    for name, value, is_used in (
        ("--draft-model", options.draft_model, is_model),
        ("--head", options.head, is_head),
        ("--tree", options.tree, is_head),
        ("--nodes", options.nodes, is_lookup or is_model),
        ("--longest", options.longest, is_lookup),
        ("--shortest", options.shortest, is_lookup),
    ):
        if value is not None and not is_used:
            raise ValueError(f"{name} does not go with --drafter {options.drafter}")
    if is_model and options.draft_model is None:
        raise ValueError(
            "--drafter draft-model needs --draft-model: a name, a file or a folder"
        )
    if is_head and options.head is None:
        raise ValueError("--drafter head needs --head: a folder")


def _drafter(
    options: DraftingOptions,
    model: sd.LanguageModel,
    model_options: ModelOptions,
    screens: Screens,
) -> tuple[Drafter, object]:
    if options.head is not None:
        return load_head(options.head, model, options.tree)
    nodes = {} if options.nodes is None else {"num_nodes": options.nodes}
    if options.draft_model is not None:
        draft_options = dataclasses.replace(model_options, model=options.draft_model)
        draft_model = (
            model if draft_options == model_options else load(draft_options, screens)
        )
        kind = "points" if options.rule == "match" else "iid"
        drafter = sd.DraftModel(draft_model.target, kind=kind, **nodes)
        return drafter, draft_model.params
    if options.drafter == "plain":
        return sd.Plain(), ()
    sizes = {"longest": options.longest, "shortest": options.shortest}
    chosen = {name: size for name, size in sizes.items() if size is not None}
    return sd.NGram(**nodes, **chosen), ()


def _cost(options: SchedulingOptions) -> CostTable | None:
    """The table of --costs.

    Raises:
        ValueError: it or the schedule is none, or one lacks the other.
    """
    if options.schedule is None:
        if options.costs is not None:
            raise ValueError("--costs is for --schedule: name one")
        return None
    cost = None if options.costs is None else CostTable.load(options.costs)
    make_schedule(options.schedule, cost, None)
    return cost


def _sampling(
    options: SamplingOptions, bias: dict[int, float], tokenizer: Tokenizer
) -> sd.Sampling:
    return sd.Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        bias=bias,
        banned_ids=options.banned,
        allowed_ids=options.allowed or None,
        max_new_tokens=options.max_new_tokens,
        min_new_tokens=options.min_new_tokens,
        stop_ids=(*tokenizer.stop_ids, *options.stop_id),
        stop_strings=options.stop,
        token_bytes=tokenizer.token_bytes if options.stop else None,
        seed=options.seed,
    )


def _bias(entry: str) -> tuple[int, float]:
    token, is_pair, amount = entry.partition("=")
    try:
        if is_pair:
            return int(token), float(amount)
    except ValueError:
        pass
    raise ValueError(f"--bias takes ID=VALUE, like 42=-1.5, not {entry!r}")
