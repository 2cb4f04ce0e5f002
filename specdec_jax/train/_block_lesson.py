"""What a block drafter learns of a lesson: blocks anywhere in its answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from specdec_jax._lesson import Lesson, Loss
from specdec_jax._types import Params, Target
from specdec_jax.nn import block_states, chunked_sum


class Blocks(NamedTuple):
    """J blocks of each row, K tokens foretold by each."""

    states: Float[Array, "B J K D"]  # of the slots that foretell something
    before: Int[Array, "B J K"]  # the token before each label
    labels: Int[Array, "B J K"]
    is_label: Bool[Array, "B J K"]  # an answer, as all of the block before it are
    hidden: Float[Array, "B J K D"]  # the target's, which says the label's law


def read_blocks(
    target: Target,
    drafter: Any,
    params: Params,
    lesson: Lesson,
    count: int,
    key: Key[Array, ""],
) -> Blocks:
    """`count` blocks of each row, their anchors drawn among the tokens that an answer
    follows: an answer's own, and the last of its prompt, where drafting begins.
    """
    config = drafter.config
    if count > lesson.tokens.shape[1]:
        raise ValueError(
            f"{count} blocks cannot begin in rows of {lesson.tokens.shape[1]} tokens: "
            "lower objective.blocks, or raise data.length"
        )
    rows = jnp.arange(lesson.tokens.shape[0], dtype=jnp.int32)[:, None]
    anchors, is_drawn = draw_anchors(lesson.labels(back=0), count, key)
    slots = jnp.arange(config.block_size, dtype=jnp.int32)
    root = lesson.tokens[rows, anchors]
    tokens = jnp.where(slots[None, None] == 0, root[:, :, None], config.mask_id)
    batch, size = lesson.tokens.shape
    embedded = drafter.embed(
        target, params, tokens.reshape(batch, count * config.block_size)
    )
    states = block_states(
        drafter.body(params.drafter),
        config,
        embedded.reshape(batch, count, config.block_size, -1),
        lesson.features,
        lesson.positions,
        lesson.texts,
        anchors,
    )
    ahead = 1 + jnp.arange(config.num_drafts, dtype=jnp.int32)[None, None]
    at = anchors[:, :, None] + ahead
    inside = jnp.minimum(at, size - 1)
    rows = rows[:, :, None]
    is_label = (
        (at < size)
        & (lesson.texts[rows, inside] == lesson.texts[rows, anchors[:, :, None]])
        & lesson.is_answer[rows, inside]
        & is_drawn[:, :, None]
    )
    return Blocks(
        states[:, :, config.block_size - config.num_drafts :],
        lesson.tokens[rows, inside - 1],
        lesson.tokens[rows, inside],
        jnp.cumprod(is_label.astype(jnp.int32), axis=-1) > 0,
        lesson.hidden[rows, inside - 1],
    )


def draw_anchors(
    is_anchor: Bool[Array, "B T"], count: int, key: Key[Array, ""]
) -> tuple[Int[Array, "B J"], Bool[Array, "B J"]]:
    """Some of these places of each row, none twice, and which of them are such."""
    chance = jax.random.uniform(key, is_anchor.shape, jnp.float32)
    chance, drawn = jax.lax.top_k(jnp.where(is_anchor, chance, -1.0), count)
    return drawn.astype(jnp.int32), chance >= 0


class Judged(NamedTuple):
    """Of each slot of some blocks; what is no label counts nowhere."""

    losses: Float[Array, "B J K"]
    weights: Float[Array, "B J K"]
    shares: Float[Array, "B J K"]  # what it counts in the mean
    is_hit: Bool[Array, "B J K"]  # its label is the likeliest of its tokens
    is_label: Bool[Array, "B J K"]


def loss_over_blocks(
    judge: Callable[[Params, Blocks], Judged],
    target: Target,
    drafter: Any,
    params: Params,
    lesson: Lesson,
    key: Key[Array, ""],
    *,
    count: int,
    chunk: int,
) -> Loss:
    """The weighed losses of `count` blocks of each row, `chunk` of them at a time."""
    slots = drafter.config.num_drafts

    def part(readout, constants, states, rest):
        target_params, others = constants
        some = Blocks(*(_in_blocks(x, slots) for x in (states, *rest)))
        judged = judge(Params(target_params, others | readout), some)
        losses = jnp.where(judged.is_label, judged.weights * judged.losses, 0.0)
        sums = (
            jnp.where(judged.is_label, judged.shares, 0.0).sum(),
            (judged.is_hit & judged.is_label).sum((0, 1), dtype=jnp.float32),
            judged.is_label.sum((0, 1), dtype=jnp.float32),
        )
        return losses.sum(), sums

    states, *rest = map(_flat, read_blocks(target, drafter, params, lesson, count, key))
    readout, others = _split(params.drafter)
    total, (share, hits, labels) = chunked_sum(
        part, chunk * slots, readout, (params.target, others), states, tuple(rest)
    )
    return Loss(total, share, hits, labels)


def check_chunk(blocks: int, chunk: int) -> None:
    """Raise `ValueError` unless so many blocks make whole chunks."""
    if chunk < 1 or blocks < 1 or blocks % chunk:
        raise ValueError(f"chunks of {chunk} blocks do not divide {blocks} blocks")


def _flat(x: Shaped[Array, "B J K ..."]) -> Shaped[Array, "B T ..."]:
    """The slots of all blocks of a row, one after another."""
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def _in_blocks(x: Shaped[Array, "B T ..."], slots: int) -> Shaped[Array, "B J K ..."]:
    """The inverse, of some blocks."""
    return x.reshape(x.shape[0], -1, slots, *x.shape[2:])


def teacher_logits(
    target: Target, params: Params, hidden: Float[Array, "B J K D"]
) -> Float[Array, "B J K V"]:
    """What the target says of the labels."""
    logits = target.logits(params.target, _flat(hidden))
    return _in_blocks(logits, hidden.shape[2])


def decayed(is_label: Bool[Array, "... K"], decay: float) -> Float[Array, "... K"]:
    """Weights that fall by e in so many slots; 0 where there is no label."""
    steps = jnp.arange(is_label.shape[-1], dtype=jnp.float32)
    weight = jnp.exp(-steps / decay).reshape(*[1] * (is_label.ndim - 1), -1)
    return jnp.where(is_label, weight, 0.0)


def _split(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of a block drafter's parameters makes logits of a state, and the others."""
    names = ("head", "markov", "confidence")
    readout = {name: params[name] for name in names if name in params}
    return readout, {k: v for k, v in params.items() if k not in readout}
