"""Whether a drafter of blocks is read the way it was trained."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from specdec_jax import _tree
from specdec_jax._door import Prompts
from specdec_jax._types import Accepted, Cache, Params, Target
from specdec_jax.nn import BlockDrafter, Layout
from specdec_jax.nn._head_parts import in_target_vocabulary

_LAYOUTS: tuple[Layout, Layout] = ("anchor_discarded", "anchor_first")
_DRAFTS = 2  # of a block that are looked at: a shift by one shows in the first
_LENGTH = 256  # of a text that is read
_SHORTEST = 2 + _DRAFTS  # a token before the anchor, it, and what follows


@dataclasses.dataclass(frozen=True)
class LayoutReport:
    """What `check_layout` found.

    Attributes:
        agreement: the mean Σ min(p, q) of the first two drafts, which is how often they
            would be accepted at temperature 1, by layout and by how many layers the
            taps are moved.
        blocks: that were looked at.
    """

    layout: Layout
    taps: tuple[int | str, ...]
    agreement: Mapping[tuple[Layout, int], float]
    blocks: int

    @property
    def as_given(self) -> float:
        """The agreement of the drafter as it is."""
        return self.agreement[self.layout, 0]

    @property
    def best(self) -> tuple[Layout, int]:
        """Where the agreement is greatest; as given if nothing is greater."""
        best = max(self.agreement, key=lambda key: self.agreement[key])
        is_greater = self.agreement[best] > self.as_given
        return best if is_greater else (self.layout, 0)


def check_layout(
    target: Target,
    params: Params,
    drafter: BlockDrafter,
    texts: Prompts,
    *,
    anchors: int = 8,
    margin: float = 0.05,
) -> LayoutReport:
    """Whether slots and taps of a drafter are read as they were trained: an error of
    one there raises nowhere else, and only slows decoding.

    On held-out texts, best of the target's own writing, the laws of the first drafts
    are compared with the target's for both layouts, and with the taps as they are and
    one layer earlier and later.

    Args:
        target: as for `generate`, and so are params.
        params: of target and drafter.
        drafter: a DFlash or a DSpark.
        texts: token ids, ragged; their first 256 tokens are read. A few hundred tokens
            will do.
        anchors: blocks in each text.
        margin: by how much another reading must agree better.

    Raises:
        ValueError: another layout, or other taps, agree better (which is said); the
            drafter is not for this target; a text is too short, or has the mask.
    """
    drafter.check(target)
    _check_texts(target, drafter, texts)
    if anchors < 1:
        raise ValueError(f"anchors is 1 at least, not {anchors}")
    lengths = np.array([min(len(text), _LENGTH) for text in texts])
    tokens = np.zeros((len(texts), lengths.max()), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : lengths[row]] = np.asarray(text)[: lengths[row]]
    last = lengths - _DRAFTS - 1
    at = np.linspace(1, last, anchors).round().astype(np.int32).T  # "B A"
    agreement: dict[tuple[Layout, int], float] = {}
    for shift in (0, -1, 1):
        taps = _shifted(drafter.taps, shift)
        if any(tap not in range(-1, target.num_layers) for tap in taps):
            continue
        found = _agreements(
            target,
            dataclasses.replace(drafter, taps=taps),
            params,
            (target.init_cache(*tokens.shape), drafter.init(*tokens.shape)),
            jnp.asarray(tokens),
            jnp.asarray(at),
        )
        agreement |= {(name, shift): float(found[name].mean()) for name in found}
    report = LayoutReport(drafter.config.layout, drafter.taps, agreement, at.size)
    layout, shift = report.best
    best, taps = agreement[layout, shift], _shifted(report.taps, shift)
    if best > report.as_given + margin:
        raise ValueError(
            f"read as {report.layout} with taps {report.taps}, the first drafts agree "
            f"with the target by {report.as_given:.2f}; as {layout} with taps {taps} "
            f"they do by {best:.2f}: load it with that layout and these taps"
        )
    return report


def _check_texts(target: Target, drafter: BlockDrafter, texts: Prompts) -> None:
    if not len(texts):
        raise ValueError("there are no texts")
    for row, text in enumerate(texts):
        ids = np.asarray(text)
        if len(ids) < _SHORTEST:
            raise ValueError(
                f"text {row} has {len(ids)} tokens: {_SHORTEST} are needed at least"
            )
        if ids.min() < 0 or ids.max() >= target.vocab_size:
            raise ValueError(
                f"text {row} has ids beyond the target's {target.vocab_size} tokens"
            )
        if (ids == drafter.config.mask_id).any():
            raise ValueError(
                f"text {row} has the token {drafter.config.mask_id}, the mask_id of "
                "the drafter: that is to be a token that no text has"
            )


def _shifted(taps: tuple[int | str, ...], shift: int) -> tuple[int | str, ...]:
    return tuple(tap + shift if isinstance(tap, int) else tap for tap in taps)


@functools.partial(jax.jit, static_argnames=("target", "drafter"))
def _agreements(
    target: Target,
    drafter: BlockDrafter,
    params: Params,
    empty: tuple[Cache, PyTree],
    tokens: Int[Array, "B T"],
    anchors: Int[Array, "B A"],
) -> dict[Layout, Float[Array, "A B G"]]:
    """Σ min(p, q) of the first drafts after each anchor. The empty caches of target and
    drafter are arguments, or XLA would compute with their zeros while it compiles.
    """
    batch, size = tokens.shape
    (cache, nothing), block = empty, _tree.causal_block(tokens)
    output = target.forward(params.target, cache, block, drafter.taps)
    whole = jnp.full((batch,), size, jnp.int32)
    accepted = Accepted(tokens, output.features, whole, jnp.zeros_like(whole))
    state = drafter.update(target, params, nothing, accepted)
    wide = dataclasses.replace(drafter.config, layout="anchor_first")
    reader = dataclasses.replace(drafter, config=wide, drafts=None)

    def agree(anchor: Int[Array, " B"]) -> dict[Layout, Float[Array, "B G"]]:
        # What later positions left in the cache is beyond its length.
        at = anchor[:, None] + jnp.arange(_DRAFTS, dtype=jnp.int32)[None, :]
        before = jnp.take_along_axis(tokens, at, axis=1)
        states = reader.read(
            target, params, state._replace(length=anchor), before[:, 0]
        )
        hidden = jnp.take_along_axis(output.hidden, at[:, :, None], axis=1)
        law = jax.nn.softmax(target.logits(params.target, hidden), axis=-1)
        found: dict[Layout, Array] = {}
        for layout in _LAYOUTS:
            slots = states[:, layout == "anchor_discarded" :][:, :_DRAFTS]
            if not slots.shape[1]:
                continue
            q = _law(target, params, drafter, slots, before[:, : slots.shape[1]])
            found[layout] = jnp.minimum(law[:, : q.shape[1]], q).sum(-1)
        return found

    return jax.lax.map(agree, anchors.T)


def _law(
    target: Target,
    params: Params,
    drafter: BlockDrafter,
    states: Float[Array, "B G D"],
    before: Int[Array, "B G"],
) -> Float[Array, "B G V"]:
    """Of each slot, after the tokens that the text has there."""
    logits, _ = drafter.foretell(target, params, states[:, None], before[:, None])
    known = drafter.known(params.drafter)
    whole = in_target_vocabulary(logits[:, 0], known, target.vocab_size)
    return jax.nn.softmax(whole, axis=-1)
