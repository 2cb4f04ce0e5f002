"""Drafts judged by the code that serves."""

from collections.abc import Sequence
from typing import Any

from specdec_jax._generate import generate
from specdec_jax._options import Sampling
from specdec_jax._stats import Stats
from specdec_jax._types import Params, Target


def simulate(
    target: Target,
    params: Params,
    drafter: Any,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    temperature: float,
    stop_ids: Sequence[int],
    seed: int = 0,
) -> Stats:
    """What drafts are worth when the code that serves answers these prompts."""
    sampling = Sampling(
        temperature=temperature,
        max_new_tokens=new_tokens,
        stop_ids=tuple(stop_ids),
        seed=seed,
    )
    generation = generate(
        target, params, drafter, [list(prompt) for prompt in prompts], sampling=sampling
    )
    return generation.stats
