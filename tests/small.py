"""A target, its answers and recipes, small enough to train in seconds."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
from folders import random_params, tiny_target

import specdec_jax as sd
from specdec_jax import train
from specdec_jax.nn import (
    Eagle3Config,
    EagleConfig,
    InjectedConfig,
    MarkovConfig,
)

TARGET = tiny_target("llama")
MASK = TARGET.vocab_size - 1
WEIGHTS = random_params(TARGET)
_SIZES: dict[str, Any] = {
    "width": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_width": 12,
    "mlp_width": 80,
}
CHAIN = sd.GrownTree(num_nodes=4, depth=3, width=1)
EAGLE = sd.Eagle(EagleConfig(**_SIZES), CHAIN)
EAGLE3 = sd.Eagle3(
    Eagle3Config(**_SIZES, feature_width=144, draft_vocab_size=40),
    CHAIN,
    taps=(0, 1, 2),
)
_BODY = InjectedConfig(
    **_SIZES, num_layers=2, feature_width=96, block_size=4, mask_id=MASK
)
DFLASH = sd.DFlash(_BODY, taps=(0, 2))
DSPARK = sd.DSpark(
    dataclasses.replace(
        _BODY,
        layout="anchor_first",
        markov=MarkovConfig(rank=8),
        confidence="state and markov",
    ),
    taps=(0, 2),
)
# What the objective is, and how few steps of it make something better.
RUNS: dict[str, tuple[Any, Any]] = {
    "eagle": (EAGLE, train.FeatureRegression()),
    "eagle 3": (EAGLE3, train.TrainingTimeTest(steps=3)),
    "dflash": (DFLASH, train.BlockFilling(blocks=8)),
    "dspark": (DSPARK, train.BlockDistillation(blocks=8)),
}


@functools.cache
def corpus(texts: int = 60) -> train.Corpus:
    """Answers of the target to random prompts, neither of which has the mask."""
    random = np.random.default_rng(0)
    prompts = [
        np.minimum(random.integers(0, 61, random.integers(3, 9)), MASK - 1).tolist()
        for _ in range(texts)
    ]
    answers = sd.generate(
        TARGET,
        sd.Params(WEIGHTS),
        sd.Plain(),
        prompts,
        sampling=sd.Sampling(max_new_tokens=20, banned_ids=(MASK,)),
    ).tokens
    whole = [np.concatenate(pair) for pair in zip(prompts, answers, strict=True)]
    return train.Corpus(
        np.concatenate(whole).astype(np.int32),
        np.array([len(x) for x in whole], np.int32),
        np.array([len(x) for x in prompts], np.int32),
    )


def recipe(name: str, **changes: Any) -> train.Recipe:
    """Six steps, judged after every third."""
    drafter, objective = RUNS[name]
    parts: dict[str, Any] = {
        "data": train.Data(length=64, rows=2, held_out=8),
        "optimizer": train.Optimizer(peak=3e-3, warmup=2),
        "evaluation": train.Evaluation(every=3, prompts=2, new_tokens=6),
        "steps": 6,
    }
    return train.Recipe("tiny", drafter, objective, **(parts | changes))


def fit(recipe: train.Recipe, folder: Path, **more: Any) -> train.Fitted:
    return train.fit(recipe, TARGET, WEIGHTS, corpus(), folder, **more)
