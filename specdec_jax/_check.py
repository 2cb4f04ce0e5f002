"""Self-checks that anyone can run on their own model and drafter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from specdec_jax import _tree
from specdec_jax._door import Prompts
from specdec_jax._generate import generate
from specdec_jax._options import Sampling, make_request
from specdec_jax._rescore import next_scores
from specdec_jax._schedule_types import Schedule
from specdec_jax._types import (
    Block,
    Cache,
    Drafter,
    Params,
    Target,
)
from specdec_jax.drafters import Plain


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Where a row first differs from plain decoding.

    `gap` is how much better the expected token scored than the one found, both scores
    (log-probability and noise; at temperature 0 the logits) recomputed one token at a
    time.
    """

    row: int
    position: int
    expected: int
    found: int
    gap: float


@dataclasses.dataclass(frozen=True)
class LosslessReport:
    """What `check_lossless` found."""

    rows: int
    tokens: int
    acceptance_length: float
    tolerance: float
    divergences: tuple[Divergence, ...]

    @property
    def is_lossless(self) -> bool:
        """Whether every divergence is a near-tie, that is, rounding."""
        return all(
            abs(divergence.gap) < self.tolerance for divergence in self.divergences
        )


def check_lossless(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    *,
    sampling: Sampling,
    max_length: int | None = None,
    schedule: Schedule | None = None,
    tolerance: float = 1e-3,
) -> LosslessReport:
    """Compare speculation with plain decoding, token by token, under the same seed.

    Uses rule "match", where both must give the same tokens but for near-ties: in
    float32 a few per million tokens, in bfloat16 more. Arguments are those of
    `generate`; `tolerance` is how close two scores must be to count as a tie.
    """
    expected = generate(
        target, params, Plain(), prompts, sampling=sampling, max_length=max_length
    )
    found = generate(
        target,
        params,
        drafter,
        prompts,
        sampling=sampling,
        max_length=max_length,
        schedule=schedule,
    )
    request = make_request(sampling, batch=len(prompts), vocab_size=target.vocab_size)
    request = request._replace(stops=None)  # no score depends on them
    slots = found.state.tokens.shape[1]
    divergences = []
    for row, (want, got) in enumerate(zip(expected.tokens, found.tokens, strict=True)):
        shared = min(len(want), len(got))
        differs = np.flatnonzero(want[:shared] != got[:shared])
        if len(differs):
            at = int(differs[0])
            alone = jax.tree.map(lambda x, row=row: x[row : row + 1], request)
            scores = next_scores(target, params, alone, prompts[row], want[:at], slots)
            gap = float(scores[want[at]] - scores[got[at]])
            divergences.append(Divergence(row, at, int(want[at]), int(got[at]), gap))
        elif len(want) != len(got):  # the same tokens, yet another end: never a tie
            divergences.append(Divergence(row, shared, -1, -1, np.inf))
    return LosslessReport(
        rows=len(prompts),
        tokens=sum(map(len, found.tokens)),
        acceptance_length=found.stats.acceptance_length(),
        tolerance=tolerance,
        divergences=tuple(divergences),
    )


def check_target(
    target: Target,
    params: PyTree,
    *,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> dict[str, float]:
    """Prove that a target keeps its contract, on random tokens.

    A block must read as its tokens one by one do, a node of a tree as its own path
    does, taps must not depend on how tokens were read, and what lies in unused slots
    must change nothing.

    Returns:
        The largest difference of each check.

    Raises:
        ValueError: where one is above `tolerance`, or logits are not float32 "B T V".
    """
    if isinstance(params, Params):
        raise ValueError("check_target takes the target's weights alone: params.target")
    random = np.random.default_rng(seed)
    tokens = jnp.asarray(random.integers(0, target.vocab_size, (2, 9)), jnp.int32)
    taps = (-1, *range(target.num_layers), "final")
    slots = 16

    @jax.jit
    def read(cache: Cache, block: Block) -> tuple[Array, Array, Cache]:
        output = target.forward(params, cache, block, taps)
        logits = target.logits(params, output.hidden)
        path = jnp.broadcast_to(
            jnp.arange(block.tokens.shape[1], dtype=jnp.int32), block.tokens.shape
        )
        length = jnp.full(block.tokens.shape[:1], block.tokens.shape[1], jnp.int32)
        return (
            logits,
            output.features,
            target.commit(cache, output.pending, path, length),
        )

    def one_by_one(tokens: Array) -> tuple[Array, Array, Cache]:
        cache, logits, features = target.init_cache(2, slots), [], []
        for i in range(tokens.shape[1]):
            scores, tapped, cache = read(
                cache, _tree.causal_block(tokens[:, i : i + 1])
            )
            logits.append(scores)
            features.append(tapped)
        return jnp.concatenate(logits, 1), jnp.concatenate(features, 1), cache

    logits, features, cache = one_by_one(tokens)
    if logits.shape != (2, 9, target.vocab_size) or logits.dtype != jnp.float32:
        raise ValueError(
            f"logits must be float32 (batch, tokens, {target.vocab_size}), not "
            f"{logits.dtype} {logits.shape}"
        )
    if features.shape[-1] != len(taps) * target.width:
        raise ValueError(
            f"{len(taps)} taps must be {len(taps)} × {target.width} wide, not "
            f"{features.shape[-1]}"
        )
    found = {}
    block_logits, block_features, block_cache = read(
        target.init_cache(2, slots), _tree.causal_block(tokens)
    )
    found["block"] = _distance(block_logits, logits)
    found["taps"] = _distance(block_features, features)
    found["cache"] = max(
        _distance(a, b)
        for a, b in zip(
            jax.tree.leaves(block_cache), jax.tree.leaves(cache), strict=True
        )
    )
    embedded = features[:, :, : target.width] - target.embed(params, tokens)
    found["embedding tap"] = float(jnp.abs(embedded).max())

    # Two branches after a common root: nodes 1, 3 and nodes 2, 4.
    parents = jnp.array([[-1, 0, 0, 1, 2]] * 2, jnp.int32)
    above = _tree.ancestors(parents)
    branch = tokens[:, 4:9]
    _, _, prefix = one_by_one(tokens[:, :4])
    tree = Block(branch, _tree.depths(parents), above)
    tree_logits, tree_features, _ = read(prefix, tree)
    distances = []
    for nodes in ([0, 1, 3], [0, 2, 4]):
        alone = jnp.concatenate([tokens[:, :4], branch[:, np.array(nodes)]], axis=1)
        alone_logits, alone_features, _ = one_by_one(alone)
        distances.append(
            _distance(tree_logits[:, np.array(nodes)], alone_logits[:, 4:])
        )
        distances.append(
            _distance(tree_features[:, np.array(nodes)], alone_features[:, 4:])
        )
    found["tree"] = max(distances)

    def poison(x: Array, value: float) -> Array:
        is_unused = jnp.arange(x.shape[2])[None, :] >= prefix.length[:, None]
        return jnp.where(is_unused[:, None, :, None], jnp.asarray(value, x.dtype), x)

    poisoned = Cache(
        tuple(poison(x, np.nan) for x in prefix.keys),
        tuple(poison(x, 1e30) for x in prefix.values),
        prefix.length,
    )
    found["unused slots"] = _distance(read(poisoned, tree)[0], tree_logits)
    worst = max(found, key=lambda name: found[name])
    if not found[worst] <= tolerance:
        raise ValueError(
            f"{target} breaks its contract: {worst} differs by {found[worst]:.3g} "
            f"(tolerance {tolerance:g}; all: {found})"
        )
    return found


def _distance(a: Array, b: Array) -> float:
    distance = jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max()
    return float(jnp.where(jnp.isnan(distance), jnp.inf, distance))
