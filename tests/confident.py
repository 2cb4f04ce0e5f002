"""A drafter whose law and confidence are tables, and cost tables to schedule it by."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

import specdec_jax as sd
from specdec_jax import _sampling, _tree
from specdec_jax._types import Draft, Kind, Proposal
from specdec_jax.schedule import CostTable


class Text(NamedTuple):
    """Of the committed tokens, in `Toy`'s terms."""

    total: Int[Array, " B"]
    known: Int[Array, " B"]


@dataclasses.dataclass(frozen=True)
class Confident:
    """A chain from a `Toy`'s table; what it thinks of a node is a number that goes with
    the tokens above it, `params.drafter["confidence"]`, Float "num_contexts".

    With noise of "position" a token is drawn with the noise of where it stands, as in a
    drafter that must not be scheduled by the past.
    """

    toy: sd.Toy
    num_nodes: int = 4
    kind: Kind = "points"
    noise: Literal["step", "position"] = "step"
    taps: tuple[int | str, ...] = dataclasses.field(default=(), init=False)
    can_pass: bool = dataclasses.field(default=False, init=False)

    @property
    def max_depth(self) -> int:
        return self.num_nodes - 1

    def init(self, batch: int, slots: int) -> Text:
        return Text(jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32))

    def draft(self, target, params, state, root, sampler) -> tuple[Draft, Text]:
        contexts = self.toy.num_contexts
        total = state.total + (state.known + 1) * (root + 1)
        path = jnp.full((len(root), 1, self.num_nodes), -1, jnp.int32)
        path = path.at[:, 0, 0].set(root)
        tokens, laws, confidence = [root], [], [jnp.ones(len(root), jnp.float32)]
        for slot in range(self.max_depth):
            context = total % contexts
            logits = params.drafter["logits"][context][:, None, :]
            confidence.append(params.drafter["confidence"][context])
            if self.kind == "points":
                token = _sampling.draw(sampler, logits, path)[0][:, 0]
            else:
                law = _sampling.law(sampler, logits, path)[:, 0]
                size = law.shape[-1]
                noise = _sampling.step_noise(
                    sampler, _sampling.DRAFT, slot, vocab_size=size
                )
                if self.noise == "position":
                    at = (sampler.base + 1 + slot)[:, None]
                    noise = _sampling.position_noise(sampler.keys, at, vocab_size=size)[
                        :, 0
                    ]
                laws.append(law)
                token = _sampling.sample(law, noise)[0]
            tokens.append(token)
            path = path.at[:, 0, slot + 1].set(token)
            total = total + (state.known + slot + 2) * (token + 1)
        parents = _tree.chain(len(root), self.num_nodes)
        proposal = None
        if laws:
            row = jnp.maximum(parents, 0)
            proposal = Proposal(jnp.stack(laws, 1), row)
        valid = jnp.ones(parents.shape, jnp.bool_)
        return Draft(
            jnp.stack(tokens, 1), parents, valid, proposal, jnp.stack(confidence, 1)
        ), state

    def update(self, target, params, state, accepted) -> Text:
        steps = jnp.arange(accepted.tokens.shape[1], dtype=jnp.int32)[None, :]
        terms = (state.known[:, None] + steps + 1) * (accepted.tokens + 1)
        is_new = steps < accepted.length[:, None]
        total = state.total + jnp.where(is_new, terms, 0).sum(1, dtype=jnp.int32)
        return Text(total % self.toy.num_contexts, state.known + accepted.length)


def tables(logits: Any, confidence: Any) -> dict[str, jax.Array]:
    """`params.drafter`."""
    return {
        "logits": jnp.asarray(logits, jnp.float32),
        "confidence": jnp.asarray(confidence, jnp.float32),
    }


def costs(
    *steps: float, draft: float = 0.0, rows: tuple[int, ...] = (1, 2, 8)
) -> CostTable:
    """Seconds at widths 1, 2, … the same for all batches."""
    widths = tuple(range(1, len(steps) + 1))
    return CostTable.monotone(
        rows, widths, [list(steps)] * len(rows), [draft] * len(rows)
    )


def jagged(seed: int) -> CostTable:
    """A staircase of random steps over four widths, one step at least."""
    random = np.random.default_rng(seed)
    steps = random.choice([0.0, 0.05, 0.3, 0.9], 3)
    steps[random.integers(3)] += 0.2
    return costs(*np.cumsum([1.0, *steps]), draft=random.choice([0.0, 0.2]))
