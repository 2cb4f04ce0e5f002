"""Drafts that are right with a known probability, to time a step apart from how good a
drafter is.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_jax import _tree
from specdec_jax._types import Accepted, Draft, Kind, Params, Sampler, Target
from specdec_jax.bench._measure import Decoding, Timed
from specdec_jax.bench._prompts import Group


class Script(NamedTuple):
    """`params.drafter` of `Replay`."""

    tokens: Int[Array, "B S"]  # what to draft at each position
    length: Int[Array, " B"]  # nothing is drafted from here on


@dataclasses.dataclass(frozen=True)
class Replay:
    """Drafts a chain that was written down beforehand.

    Args:
        num_nodes: drafted tokens + 1.
    """

    num_nodes: int = 8
    taps: tuple[int | str, ...] = dataclasses.field(default=(), init=False)
    kind: Kind = dataclasses.field(default="points", init=False)
    can_pass: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        if self.num_nodes < 2:
            raise ValueError(f"Replay needs num_nodes >= 2, not {self.num_nodes}")

    @property
    def max_depth(self) -> int:
        """A chain."""
        return self.num_nodes - 1

    def init(self, batch: int, slots: int) -> tuple[()]:
        """There is nothing to remember."""
        return ()

    def draft(
        self,
        target: Target,
        params: Params,
        state: Any,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, Any]:
        """What the script has after the root's position."""
        script = params.drafter
        ahead = jnp.arange(1, self.num_nodes, dtype=jnp.int32)[None, :]
        at = sampler.base[:, None] + ahead
        drafted = jnp.take_along_axis(
            script.tokens, jnp.minimum(at, script.tokens.shape[1] - 1), axis=1
        )
        tokens = jnp.concatenate([root[:, None], drafted], axis=1)
        is_known = at < script.length[:, None]
        valid = jnp.pad(is_known, ((0, 0), (1, 0)), constant_values=True)
        return Draft(tokens, _tree.chain(root.shape[0], self.num_nodes), valid), state

    def update(
        self, target: Target, params: Params, state: Any, accepted: Accepted
    ) -> Any:
        """Nothing to do."""
        return state


@dataclasses.dataclass(frozen=True, eq=False)
class Synthetic:
    """`generate` with drafts of a given acceptance: plain decoding writes each text
    first, untimed, and then every token of it is spoilt with probability 1 − acceptance
    before `Replay` drafts it.

    A token is spoilt once for all, whichever step drafts it. That is the same as anew
    in each step: a step ends at the first spoilt token, and the next begins after it.

    Args:
        plain: at temperature 0.
        acceptance: of each depth, where the one before was accepted.
        replay: drafts what is left.
    """

    plain: Decoding
    acceptance: float
    replay: Replay

    @property
    def name(self) -> str:
        """Says that this is no drafter."""
        return f"synthetic {self.acceptance:g}"

    @property
    def acceptance_length(self) -> float:
        """τ to be expected: 1 + a + a² + …; the end of a text cuts the last step."""
        return float(np.sum(self.acceptance ** np.arange(self.replay.num_nodes)))

    def kind(self, group: Group) -> Hashable:
        """As plain decoding."""
        return self.plain.kind(group)

    def run(self, group: Group, *, limit: int) -> Timed:
        """Plain decoding, then what counts."""
        return self.decoding(group, limit=limit).run(group, limit=limit)

    def decoding(self, group: Group, *, limit: int) -> Decoding:
        """`generate` with the script of this group."""
        texts = self.plain.run(group, limit=limit).tokens
        script = np.zeros((group.batch, self.plain.slots(group)), np.int32)
        length = np.zeros(group.batch, np.int32)
        vocab_size = self.plain.target.vocab_size
        for row, (prompt, text) in enumerate(zip(group.prompts, texts, strict=True)):
            start, length[row] = len(prompt.ids), len(prompt.ids) + len(text)
            is_spoilt = (
                np.random.default_rng(group.seeds[row]).random(len(text))
                >= self.acceptance
            )
            script[row, start : length[row]] = (text + is_spoilt) % vocab_size
        params = Script(jnp.asarray(script), jnp.asarray(length))
        return dataclasses.replace(
            self.plain,
            name=self.name,
            drafter=self.replay,
            params=Params(self.plain.params.target, params),
        )
