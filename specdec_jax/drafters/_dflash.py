"""DFlash (Chen et al. 2026, arXiv 2602.06036)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_jax import _sampling, _tree
from specdec_jax._best_first import MarginalTree, best_first
from specdec_jax._types import Cache, Draft, Params, Sampler, Target
from specdec_jax.nn import BlockDrafter
from specdec_jax.nn._head_parts import in_target_vocabulary


@dataclasses.dataclass(frozen=True)
class DFlash(BlockDrafter):
    """A block of masks filled in one pass, no slot knowing the tokens of the others.

    Args:
        config: an `InjectedConfig`, without a Markov or a confidence head.
        taps: layers of the target in the order of the body's input.
        kind: as for every block drafter.
        drafts: as for every block drafter.
        tree: the likeliest paths under the slots' laws (DDTree), instead of a chain;
            its nodes are points.
    """

    tree: MarginalTree | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.config.markov is not None or self.config.confidence != "none":
            raise ValueError("a body with a Markov or a confidence head is a DSpark")
        if self.tree is not None and self.kind != "points":
            raise ValueError(
                "the nodes of a tree of slots are chosen for what they are, so they "
                'cannot be drawn: it needs kind="points"'
            )

    @property
    def max_depth(self) -> int:
        """Of the deepest node."""
        deepest = super().max_depth
        return deepest if self.tree is None else min(deepest, self.tree.num_nodes - 1)

    @property
    def num_nodes(self) -> int:
        """The root included."""
        return super().num_nodes if self.tree is None else self.tree.num_nodes

    def draft(
        self,
        target: Target,
        params: Params,
        state: Cache,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, Cache]:
        """A chain, or a tree, of one pass."""
        if self.tree is None:
            return super().draft(target, params, state, root, sampler)
        states = self.read(target, params, state, root)[:, : self.max_depth]
        logits = in_target_vocabulary(
            self.logits(target, params, states),
            self.known(params.drafter),
            target.vocab_size,
        )
        log_q = _marginals(sampler, logits, root)
        tokens, parents, valid = best_first(log_q, self.num_nodes)
        return Draft(tokens.at[:, 0].set(root), parents, valid), state


def _marginals(
    sampler: Sampler, logits: Float[Array, "B K V"], root: Int[Array, " B"]
) -> Float[Array, "B K V"]:
    """The law of each slot as its nodes are chosen by it: under `match` with the noise
    of its position, and with the history of the likeliest path.
    """
    batch, count, _ = logits.shape
    likeliest = jnp.concatenate(
        [root[:, None], logits.argmax(-1).astype(jnp.int32)[:, :-1]], axis=1
    )
    nodes = _tree.paths(_tree.chain(batch, count), size=count)
    paths = _tree.path_tokens(likeliest, nodes)
    scores = _sampling.adjust(sampler, logits, paths)
    if sampler.noise is not None:
        does_sample = _sampling.samples(sampler)

        def perturbed() -> Array:
            noisy = _sampling.perturb(sampler, scores, paths)
            return jnp.where(does_sample[:, None, None], noisy, scores)

        scores = jax.lax.cond(does_sample.any(), perturbed, lambda: scores)
    return _sampling.log_softmax(scores)
