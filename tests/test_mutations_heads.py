"""Drafters like the shipped ones that say something else than they do: each moves the
enumerated law by more than a thousandth.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import some_slow
from enumeration import PROMPTS, Game, Play, begin, errors, reference
from feature_heads import (
    BLOCK_TAPS,
    HEAD,
    SPARK,
    TREE,
    HeadDrafts,
    drawn_laws,
    params_of,
    slots_of,
)

import specdec_jax as sd
from specdec_jax import _sampling, _tree

pytestmark = pytest.mark.usefixtures("quick_compile")

TEMPERATURES = (1.0, 1.6, 0.7)
SAMPLING = sd.Sampling(temperature=TEMPERATURES)


@pytest.fixture(scope="module")
def play() -> Play:
    laws = [
        reference(prompt, temperature=temperature)
        for prompt, temperature in zip(PROMPTS, TEMPERATURES, strict=True)
    ]
    return begin(PROMPTS, laws, SAMPLING)


@dataclasses.dataclass(frozen=True)
class Repeating(sd.Eagle):
    """Draws every child alike; and leaves out what it has drawn already, if it
    `skips`.
    """

    skips: bool = True

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        logits = self.logits(target, params, outputs)
        log_q = _sampling.law(sampler, logits, paths)
        noise = [
            [
                _sampling.step_noise(
                    sampler, _sampling.DRAFT, (slot + i) * count + j, vocab_size=3
                )
                for j in range(count)
            ]
            for i in range(log_q.shape[1])
        ]
        scores = log_q[:, :, None] + jnp.stack([jnp.stack(x, 1) for x in noise], 1)
        tokens = scores.argmax(-1).astype(jnp.int32)
        same = tokens[:, :, :, None] == tokens[:, :, None, :]
        is_again = (same & jnp.tril(jnp.ones_like(same), -1)).any(-1)
        return tokens, jnp.where(is_again & self.skips, -jnp.inf, 0.0), log_q


@dataclasses.dataclass(frozen=True)
class Choosing(sd.Eagle):
    """Takes the likeliest, and says that it drew them."""

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        logits = self.logits(target, params, outputs)
        log_q = _sampling.law(sampler, logits, paths)
        _, tokens = jax.lax.top_k(log_q, count)
        return tokens.astype(jnp.int32), jnp.zeros(tokens.shape), log_q


@dataclasses.dataclass(frozen=True)
class Resorting(sd.Eagle):
    """Puts the likelier of its draws first."""

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        tokens, gains, log_q = super()._children(
            target, params, sampler, outputs, paths, count, slot
        )
        assert log_q is not None
        order = jnp.argsort(-jnp.take_along_axis(log_q, tokens, axis=2), axis=2)
        return jnp.take_along_axis(tokens, order, axis=2), gains, log_q


@dataclasses.dataclass(frozen=True)
class Echoing(sd.Eagle):
    """Draws a child's children by the noise that drew the child."""

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        return super()._children(target, params, sampler, outputs, paths, count, 0)


@dataclasses.dataclass(frozen=True)
class Withholding(sd.Eagle):
    """Takes back what turned out unlikely."""

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        tokens, gains, log_q = super()._children(
            target, params, sampler, outputs, paths, count, slot
        )
        assert log_q is not None
        is_likely = jnp.take_along_axis(log_q, tokens, axis=2) > jnp.log(0.3)
        return tokens, jnp.where(is_likely, gains, -jnp.inf), log_q


@dataclasses.dataclass(frozen=True)
class Misremembering(sd.Eagle):
    """Says another temperature than it drew at."""

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        tokens, gains, log_q = super()._children(
            target, params, sampler, outputs, paths, count, slot
        )
        assert log_q is not None
        return tokens, gains, _sampling.log_softmax(log_q / 2)


def game_of(
    kind: Callable[..., sd.Eagle], slots: Sequence[tuple[int, int]] | None = None
) -> Game:
    drafter = kind(HEAD, TREE, kind="without_replacement")
    slots = slots_of(drafter) if slots is None else slots
    drafts = HeadDrafts(drafter, params_of(drafter), PROMPTS, SAMPLING, slots)
    return Game("rejection", TREE.parents, drafter.kind, drafts=drafts)


LIARS = {x.__name__: x for x in (Choosing, Resorting, Echoing, Withholding)}


@pytest.mark.parametrize("name", some_slow(LIARS, fast=("Resorting",)))
def test_what_is_caught(name, play):
    assert errors(game_of(LIARS[name]), play).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("skips", [True, False])
def test_duplicates(skips, play):
    """Drawn alike, they must be tried again."""
    kind = functools.partial(Repeating, skips=skips)
    game = game_of(kind, [(0, 1), (0, 1), (1, 1), (1, 1)])
    worst = errors(dataclasses.replace(game, kind="iid"), play).max()
    assert worst > 1e-3 if skips else worst < 1e-6


@dataclasses.dataclass(frozen=True)
class Forgetful(sd.DSpark):
    """Says the law of its slots, without what the token before makes of it."""

    def draft(self, target, params, state, root, sampler):
        draft, state = super().draft(target, params, state, root, sampler)
        states = self.read(target, params, state, root)[:, : self.max_depth]
        nodes = _tree.chain(len(root), self.max_depth)
        paths = _tree.path_tokens(
            draft.tokens[:, :-1], _tree.paths(nodes, size=self.max_depth)
        )
        law = _sampling.law(sampler, self.logits(target, params, states), paths)
        assert draft.proposal is not None
        return draft._replace(proposal=draft.proposal._replace(log_q=law)), state


def spark_drafts(kind: Callable[..., sd.DSpark]) -> HeadDrafts:
    drafter = kind(SPARK, BLOCK_TAPS, kind="iid")
    return HeadDrafts(drafter, params_of(drafter), PROMPTS, SAMPLING, slots_of(drafter))


HONEST = {
    "eagle": (lambda: game_of(sd.Eagle).drafts, True),
    "misremembering": (lambda: game_of(Misremembering).drafts, False),
    "dspark": (lambda: spark_drafts(sd.DSpark), True),
    "forgetful": (lambda: spark_drafts(Forgetful), False),
}


@pytest.mark.parametrize("name", HONEST)
def test_the_law_that_comes_back_is_the_law_drawn_from(name):
    make, is_true = HONEST[name]
    drafts: Any = make()
    worst = 0.0
    for text in ((1, 2), (0, 2, 1), (2, 1)):
        drawn, said = drawn_laws(drafts, text)
        worst = max(worst, np.abs(drawn - said).max())
    assert worst < 1e-5 if is_true else worst > 1e-3
