"""The toys, drafters, prompts and options that several tests share, so that they share
executables too.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
from jaxtyping import Array, Float

import specdec_jax as sd
from specdec_jax._types import Cache, Draft
from specdec_jax.nn import Decoder, DecoderConfig
from specdec_jax.targets import ModuleTarget

# Few tokens, so that guesses come true and whatever a filter keeps is tried.
TOY = sd.Toy(vocab_size=7)
TABLE = TOY.init_params(jax.random.key(0))
# Close to the target's: about half of its drafts are right.
NEAR = {"logits": TABLE["logits"] + 0.6 * TOY.init_params(jax.random.key(1))["logits"]}
DECODER = ModuleTarget(
    Decoder,
    DecoderConfig(
        vocab_size=7,
        width=16,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_width=4,
        mlp_width=32,
        max_length=256,
    ),
)


@dataclasses.dataclass(frozen=True)
class Guess:
    """A tree of fixed shape whose tokens are arithmetic: right now and then, by luck.

    Siblings differ. Now and then a node is no proposal, but its children are.
    """

    parents: tuple[int, ...] = (-1, 0, 0, 1, 0, 1, 2, 3)
    vocab_size: int = 7
    max_depth: int = 3
    taps: tuple[int | str, ...] = dataclasses.field(default=(), init=False)
    kind: Literal["points"] = dataclasses.field(default="points", init=False)
    can_pass: bool = dataclasses.field(default=False, init=False)

    @property
    def num_nodes(self) -> int:
        return len(self.parents)

    def init(self, batch: int, slots: int) -> Any:
        return ()

    def draft(self, target, params, state, root, sampler) -> tuple[Draft, Any]:
        tokens = [root]
        for node, parent in enumerate(self.parents[1:], start=1):
            rank = self.parents[1:node].count(parent)
            tokens.append((tokens[parent] + sampler.base + 2 * rank) % self.vocab_size)
        nodes = jnp.arange(self.num_nodes, dtype=jnp.int32)
        parents = jnp.broadcast_to(
            jnp.asarray(self.parents, jnp.int32), (len(root), self.num_nodes)
        )
        valid = (sampler.base[:, None] + nodes[None, :]) % 9 > 0
        return Draft(jnp.stack(tokens, 1), parents, valid.at[:, 0].set(True)), state

    def update(self, target, params, state, accepted) -> Any:
        return state


@dataclasses.dataclass(frozen=True)
class Broken(sd.Toy):
    """After context 7 one logit is NaN, after 9 there is no token, after 11 an infinite
    one, after 13 all is NaN.
    """

    def logits(self, params, hidden) -> Float[Array, "B T V"]:
        logits = super().logits(params, hidden)
        is_third = jnp.arange(self.vocab_size) == 3
        for context, which, value in (
            (7, is_third, -jnp.nan),
            (9, is_third | True, -jnp.inf),
            (11, is_third, jnp.inf),
            (13, is_third | True, jnp.nan),
        ):
            is_here = hidden[:, :, context, None] > 0
            logits = jnp.where(is_here & which[None, None], value, logits)
        return logits


N = 4  # nodes of the drafts that are chains
# Drafters and their parameters: from always right to hardly ever.
DRAFTERS: dict[str, tuple[Any, Any]] = {
    "plain": (sd.Plain(), ()),
    "ngram": (sd.NGram(num_nodes=N, shortest=2), ()),  # passes now and then
    "self": (sd.DraftModel(TOY, num_nodes=N), TABLE),
    "near": (sd.DraftModel(TOY, num_nodes=N), NEAR),
    "tree": (Guess(), ()),
    "iid": (sd.DraftModel(TOY, num_nodes=N, kind="iid"), NEAR),  # not under `match`
}
# Each ends in a token that it has not had before, so that the root counts as history.
PROMPTS = ([3, 1, 4, 1, 5, 2, 6, 5, 0], [4], [6, 0, 2, 1])
SEEDS = (11, 2**32 - 1, 13)
# Options per row, no two rows alike. All of FULL_ROWS switch the same options on.
PLAIN_ROWS = ({"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 1.0})
FULL_ROWS = (
    {
        "temperature": 0.0,
        "top_k": 2,
        "top_p": 0.5,
        "min_p": 0.1,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "bias": {1: 0.7, 4: -np.inf},
        "min_new_tokens": 2,
        "stop_ids": [5],
    },
    {
        "temperature": 0.8,
        "top_k": 4,
        "top_p": 0.99,
        "min_p": 0.05,
        "repetition_penalty": 0.8,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.1,
        "banned_ids": [2],
        "min_new_tokens": 9,
        "stop_ids": [1, 3],
    },
    {
        "temperature": 1.0,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.3,
        "presence_penalty": -0.1,
        "frequency_penalty": 0.2,
        "allowed_ids": [0, 1, 2, 3, 5, 6],
        "min_new_tokens": 5,
    },
)


def sampling_of(rows: Sequence[naive.Row], **shared: Any) -> sd.Sampling:
    """One `Sampling` of many rows; `shared` options are the same for all."""
    default = sd.Sampling()
    names = sorted({name for row in rows for name in row})
    per_row = {
        name: [row.get(name, getattr(default, name)) for row in rows] for name in names
    }
    return sd.Sampling(**per_row, **shared)


def arguments(drafter: str, target: Any = TOY) -> tuple[Any, sd.Params, Any]:
    """What `generate` and `stream` want first."""
    return target, sd.Params(TABLE, DRAFTERS[drafter][1]), DRAFTERS[drafter][0]


def expected_texts(
    rows: Sequence[naive.Row],
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    seeds: Sequence[int] = SEEDS,
    **options: Any,
) -> list[naive.Text]:
    """What the rows must say under `match`, each with a seed of its own."""
    logits = naive.toy_logits(TOY, TABLE)
    return [
        naive.decode_one_by_one(logits, prompt, row, seed=seed, **options)
        for row, prompt, seed in zip(rows, prompts, seeds, strict=True)
    ]


def with_limit(rows: Sequence[naive.Row], limit: int) -> list[naive.Row]:
    """The rows with at most, and where they say so at least, this many new tokens."""
    return [
        {**row, "max_new_tokens": limit}
        | {"min_new_tokens": min(row.get("min_new_tokens", 0), limit)}
        for row in rows
    ]


def assert_same(generation: sd.Generation, texts: Sequence[naive.Text]) -> None:
    """Same tokens, same reasons."""
    assert [row.tolist() for row in generation.tokens] == [
        text.tokens for text in texts
    ]
    assert generation.reasons == [text.reason for text in texts]


def poisoned_cache(cache: Cache) -> Cache:
    """Unused keys are NaN, unused values huge (0 · NaN would be NaN)."""

    def poison(x: Array, with_: float) -> Array:
        slots = jnp.arange(x.shape[2], dtype=jnp.int32)[None, :]
        unused = (slots >= cache.length[:, None])[:, None, :, None]
        return jnp.where(unused, with_, x)

    return Cache(
        tuple(poison(x, jnp.nan) for x in cache.keys),
        tuple(poison(x, 1e30) for x in cache.values),
        cache.length,
    )


def some_slow(names: Iterable[str], *, fast: Sequence[str]) -> list[Any]:
    """Names for `parametrize`: all but the fast ones are not in the quick round."""
    return [
        pytest.param(name, marks=[] if name in fast else [pytest.mark.slow])
        for name in names
    ]
