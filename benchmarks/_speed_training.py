"""A step of training: tokens a second, and how much of the machine's arithmetic that
takes.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

import specdec_jax as sd
from specdec_jax import train
from specdec_jax.bench import Spread, timed
from specdec_jax.cli._train import read_recipe

RECIPES = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct"
HEADS = ("eagle", "eagle3", "dflash", "dspark")
SQUARE = 3072  # a product of two such matrices is the measure


def measure(
    model: sd.LanguageModel, *, rounds: int, tick: Callable[[], None]
) -> list[dict[str, Any]]:
    """Each recipe's step in float32 and a matrix product, by turns, after a round that
    does not count. Texts fill their rows and are answers from end to end.
    """
    square = jnp.ones((SQUARE, SQUARE), jnp.float32)
    product = jax.jit(jnp.matmul)
    rows = []
    for name in HEADS:
        recipe = read_recipe(RECIPES / name / "recipe.py")
        step, state, lessons = _prepare(model, recipe)
        counted = jax.make_jaxpr(step)(model.params, state, lessons)
        operations = _count(counted.jaxpr)
        steps, products = [], []
        for turn in range(1 + rounds):
            seconds, _ = timed(functools.partial(product, square, square))
            taken, (state, _) = timed(
                functools.partial(step, model.params, state, lessons)
            )
            if turn:
                steps.append(taken)
                products.append(seconds)
            tick()
        tokens = lessons.tokens.size
        rate = operations / np.array(steps)
        peak = 2 * SQUARE**3 / np.array(products)
        rows.append(
            {
                "drafter": type(recipe.drafter).__name__,
                "tokens": tokens,
                "operations_per_token": operations / tokens,
                "tokens_per_second": Spread.of(tokens / np.array(steps)),
                "gflops": Spread.of(rate / 1e9),
                "matmul_gflops": Spread.of(peak / 1e9),
                "share": Spread.of(rate / peak),
            }
        )
    return rows


def _prepare(
    model: sd.LanguageModel, recipe: train.Recipe
) -> tuple[train.TrainStep, train.TrainState, train.Lesson]:
    """A recipe's step, and what it takes."""
    config = dataclasses.replace(recipe.drafter.config, dtype="float32")
    drafter = dataclasses.replace(recipe.drafter, config=config)
    optimizer = recipe.optimizer.make(recipe.steps)
    step = train.make_train_step(
        model.target, drafter, recipe.objective, optimizer, dtype="float32"
    )
    start, noise, *rest = jax.random.split(jax.random.key(0), 5)
    texts, features, hidden = rest
    state = train.init_state(drafter.init_params(start, model.target), optimizer, noise)
    shape = (1, recipe.data.rows, recipe.data.length)
    everywhere = jnp.ones(shape, jnp.int32)
    width, taps = model.target.width, len(drafter.taps)
    lessons = train.Lesson(
        tokens=jax.random.randint(texts, shape, 0, model.target.vocab_size),
        positions=jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape),
        texts=everywhere,
        is_answer=everywhere > 0,
        features=jax.random.normal(features, (*shape, taps * width)),
        hidden=jax.random.normal(hidden, (*shape, width)),
    )
    return step, state, lessons


def _count(jaxpr: Jaxpr) -> int:
    """Multiplications and additions of all matrix products; of a loop, all turns, and
    of branches the dearest.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, made = _shape(equation.invars[0]), _shape(equation.outvars[0])
            total += 2 * math.prod(left[x] for x in contracted) * math.prod(made)
            continue
        if equation.primitive.name == "while":
            raise ValueError("the turns of a while loop are not known")
        inner = [
            _count(x.jaxpr if isinstance(x, ClosedJaxpr) else x)
            for x in jax.tree.leaves(equation.params)
            if isinstance(x, Jaxpr | ClosedJaxpr)
        ]
        if equation.primitive.name == "cond":
            inner = [max(inner)]
        total += equation.params.get("length", 1) * sum(inner)
    return total


def _shape(x: Any) -> tuple[int, ...]:
    return x.aval.shape


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| drafter | tokens a step | MFLOP a token | tokens/s | GFLOP/s "
        "| of a product of matrices, GFLOP/s | share |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['drafter']} | {row['tokens']:,} "
            f"| {row['operations_per_token'] / 1e6:.0f} "
            f"| {Spread(*row['tokens_per_second']).show(0)} "
            f"| {Spread(*row['gflops']).show(0)} "
            f"| {Spread(*row['matmul_gflops']).show(0)} "
            f"| {Spread(*row['share']).show(2)} |"
        )
    return "\n".join(lines)
