"""What a block drafter learns is what it does: the same states, the same laws."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import DFLASH, DSPARK, TARGET, WEIGHTS

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax._lesson import Lesson
from specdec_jax._options import make_request
from specdec_jax._types import Accepted, Params, Sampler
from specdec_jax.nn import MarkovConfig, block_states
from specdec_jax.train import BlockDistillation, BlockFilling
from specdec_jax.train._block_filling import dpace_weights
from specdec_jax.train._block_lesson import draw_anchors, read_blocks
from specdec_jax.train._features import observe

pytestmark = pytest.mark.usefixtures("quick_compile")

FIRST = [5, 17, 3, 3, 40, 22, 17, 3, 9, 9, 31, 2]
SECOND = [8, 1, 30, 2, 7, 50, 11, 4]
WINDOWED = dataclasses.replace(
    DFLASH,
    config=dataclasses.replace(
        DFLASH.config, windows=(4, None), causal=(True, False), query_key_norm=False
    ),
)
NARROW = dataclasses.replace(
    DFLASH, config=dataclasses.replace(DFLASH.config, windows=(2, 3))
)
ANCHORED = dataclasses.replace(
    DFLASH,
    config=dataclasses.replace(DFLASH.config, windows=(2, 5), anchored_windows=True),
)
RNN = dataclasses.replace(
    DSPARK,
    config=dataclasses.replace(
        DSPARK.config, markov=MarkovConfig(rank=8, kind="rnn"), confidence="state"
    ),
)
FEW = dataclasses.replace(
    DSPARK,
    config=dataclasses.replace(DSPARK.config, own_head=True, draft_vocab_size=30),
)
DRAFTERS: dict[str, Any] = {
    "dflash": DFLASH,
    "dflash, windows": WINDOWED,
    "dflash, narrow windows": NARROW,
    "dflash, anchored windows": ANCHORED,
    "dspark": DSPARK,
    "dspark, rnn": RNN,
    "dspark, few tokens": FEW,
}
every_drafter = pytest.mark.parametrize("name", DRAFTERS)


def params_of(drafter: Any) -> Params:
    params = drafter.init_params(jax.random.key(3), TARGET)
    if "tokens" in params:
        params["tokens"] = jnp.arange(0, 60, 2, dtype=jnp.int32)
    return Params(WEIGHTS, params)


def lesson_of(drafter: Any) -> Lesson:
    """Two texts in a row of 23, three places of padding."""
    tokens = [*FIRST, *SECOND, 0, 0, 0]
    texts = [1] * len(FIRST) + [2] * len(SECOND) + [0] * 3
    positions = [*range(len(FIRST)), *range(len(SECOND)), 0, 0, 0]
    ids, at, which = (jnp.array([x], jnp.int32) for x in (tokens, positions, texts))
    seen = observe(TARGET, WEIGHTS, ids, at, which, taps=tuple(drafter.taps))
    is_answer = jnp.ones((1, len(tokens)), jnp.bool_)
    return Lesson(ids, at, which, is_answer, seen.features, seen.hidden)


def context_of(drafter: Any, params: Params, text: list[int]) -> Any:
    """What the drafter knows once the target has committed a text."""
    block = _tree.causal_block(jnp.array([text], jnp.int32))
    output = TARGET.forward(WEIGHTS, TARGET.init_cache(1, 32), block, drafter.taps)
    length, root = jnp.array([len(text)], jnp.int32), jnp.zeros(1, jnp.int32)
    accepted = Accepted(block.tokens, output.features, length, root)
    return drafter.update(TARGET, params, drafter.init(1, 32), accepted)


def embedded_blocks(drafter, params, lesson, anchors) -> jax.Array:
    size = drafter.config.block_size
    tokens = jnp.full((1, len(anchors), size), drafter.config.mask_id, jnp.int32)
    tokens = tokens.at[:, :, 0].set(lesson.tokens[:, jnp.array(anchors)])
    flat = drafter.embed(TARGET, params, tokens.reshape(1, -1))
    return flat.reshape(1, len(anchors), size, -1)


def states_of(drafter, params, lesson, anchors) -> np.ndarray:
    states = block_states(
        drafter.body(params.drafter),
        drafter.config,
        embedded_blocks(drafter, params, lesson, anchors),
        lesson.features,
        lesson.positions,
        lesson.texts,
        jnp.array([anchors], jnp.int32),
    )
    skipped = drafter.config.block_size - drafter.config.num_drafts
    return np.asarray(states[0, :, skipped:])


@every_drafter
def test_a_block_of_training_is_a_block_of_decoding(name):
    """Its states are those that a draft from the same anchor is made of."""
    drafter = DRAFTERS[name]
    params, lesson = params_of(drafter), lesson_of(drafter)
    begin = len(FIRST)
    anchors = [1, 6, 11, begin, begin + 5]
    found = states_of(drafter, params, lesson, anchors)
    for states, anchor in zip(found, anchors, strict=True):
        text = FIRST if anchor < begin else SECOND
        at = anchor if anchor < begin else anchor - begin
        state = context_of(drafter, params, text[:at]) if at else drafter.init(1, 32)
        root = jnp.array(text[at : at + 1], jnp.int32)
        expected = drafter.read(TARGET, params, state, root)[0]
        np.testing.assert_allclose(states, expected, atol=2e-5)


@every_drafter
def test_what_is_learned_slot_by_slot_is_what_is_drawn(name):
    """With the draft's own tokens as the tokens before, the logits of training give the
    very laws that the draft was drawn from, and its confidences.
    """
    drafter = dataclasses.replace(DRAFTERS[name], kind="iid")
    params = params_of(drafter)
    state = context_of(drafter, params, FIRST)
    root = jnp.array([9], jnp.int32)
    request = make_request(
        sd.Sampling(temperature=1.0, seed=5), batch=1, vocab_size=TARGET.vocab_size
    )
    base = jnp.array([len(FIRST)], jnp.int32)
    sampler = Sampler(request.options, request.keys, base, base * 0, None, None, None)
    draft, _ = drafter.draft(TARGET, params, state, root, sampler)
    states = drafter.read(TARGET, params, state, root)
    logits, confidence = drafter.foretell(
        TARGET, params, states[:, None], draft.tokens[:, None, :-1]
    )
    known = drafter.known(params.drafter)
    laws = draft.proposal.log_q if known is None else draft.proposal.log_q[..., known]
    expected = jax.nn.log_softmax(logits, axis=-1)[:, 0]
    np.testing.assert_allclose(laws, expected, atol=2e-5)
    if confidence is None:
        assert draft.confidence is None
    else:
        np.testing.assert_allclose(
            draft.confidence[:, 1:], jax.nn.sigmoid(confidence)[:, 0], atol=2e-5
        )


@every_drafter
def test_a_block_sees_nothing_that_it_will_not_have(name):
    """Neither its anchor's features nor any after, nor another text, nor another
    block.
    """
    drafter = DRAFTERS[name]
    params, lesson = params_of(drafter), lesson_of(drafter)
    anchors = [6, len(FIRST) + 3]
    before = states_of(drafter, params, lesson, anchors)
    hidden = np.ones((1, 23), bool)
    hidden[0, :6] = False
    hidden[0, len(FIRST) : len(FIRST) + 3] = False
    poison = jnp.where(jnp.asarray(hidden)[:, :, None], 1e9, lesson.features)
    after = states_of(drafter, params, lesson._replace(features=poison), anchors)
    np.testing.assert_array_equal(before, after)
    alone = states_of(drafter, params, lesson, anchors[:1])
    np.testing.assert_allclose(before[:1], alone, atol=1e-6)


def test_full_layers_look_ahead_and_causal_ones_do_not():
    """In a block, what stands in the last slot moves the first one or does not."""
    for drafter, looks_ahead in ((DFLASH, True), (WINDOWED, True)):
        params, lesson = params_of(drafter), lesson_of(drafter)
        causal = dataclasses.replace(drafter.config, causal=(True, True))
        for config, moves in ((drafter.config, looks_ahead), (causal, False)):
            blocks = embedded_blocks(drafter, params, lesson, [6])
            moved = blocks.at[:, :, -1].add(1.0)
            body = dataclasses.replace(drafter, config=config).body(params.drafter)
            rest = (lesson.features, lesson.positions, lesson.texts)
            one, other = (
                block_states(body, config, x, *rest, jnp.array([[6]], jnp.int32))
                for x in (blocks, moved)
            )
            is_same = np.array_equal(one[0, 0, 1], other[0, 0, 1])
            assert is_same != moves


def test_blocks_hold_answers_of_one_text():
    drafter = DFLASH
    lesson = lesson_of(drafter)
    is_answer = jnp.zeros_like(lesson.is_answer).at[0, 4:23].set(True)
    is_answer = is_answer.at[0, 9].set(False)
    lesson = lesson._replace(is_answer=is_answer)
    blocks = read_blocks(
        TARGET, drafter, params_of(drafter), lesson, 23, jax.random.key(0)
    )
    tokens = np.asarray(lesson.tokens[0])
    for i in range(23):
        count = int(blocks.is_label[0, i].sum())
        labels = np.asarray(blocks.labels[0, i, :count]).tolist()
        before = np.asarray(blocks.before[0, i, :count]).tolist()
        assert not blocks.is_label[0, i, count:].any()
        if count:
            starts = [
                s
                for s in range(22)
                if tokens[s : s + 1 + count].tolist() == [before[0], *labels]
            ]
            assert starts, (before, labels)
            assert before[1:] == labels[:-1]
    anchors, is_drawn = draw_anchors(lesson.labels(back=0), 23, jax.random.key(0))
    drawn = sorted(np.asarray(anchors)[np.asarray(is_drawn)].tolist())
    # What an answer follows: not 8 (9 is none), nor the ends of the texts.
    assert drawn == [3, 4, 5, 6, 7, 9, 10, 12, 13, 14, 15, 16, 17, 18]


def test_dpace_weights_by_hand():
    """Three slots of probability a half each, floor a half: a chance of 3/4 each."""
    log_q = jnp.log(jnp.array([[0.5, 0.5, 0.5]]))
    weights = dpace_weights(log_q, jnp.ones((1, 3), jnp.bool_), 0.5)
    reached = np.array([0.75, 0.75**2, 0.75**3])
    np.testing.assert_allclose(
        weights[0], [reached.sum(), reached[1:].sum(), reached[2]]
    )
    gradient = jax.grad(
        lambda x: dpace_weights(x, jnp.ones((1, 3), jnp.bool_), 0.5).sum()
    )(log_q)
    assert not gradient.any()


def test_the_loss_of_dspark_is_its_formula():
    """Against numpy, term by term."""
    drafter = DSPARK
    params, lesson = params_of(drafter), lesson_of(drafter)
    key = jax.random.key(1)
    objective = BlockDistillation(blocks=8, chunk=4)
    found = objective.loss(TARGET, drafter, params, lesson, key)
    blocks = read_blocks(TARGET, drafter, params, lesson, 8, key)
    logits, confidence = drafter.foretell(TARGET, params, blocks.states, blocks.before)
    assert confidence is not None
    q = np.asarray(jax.nn.softmax(logits, axis=-1), np.float64)
    size = blocks.hidden.shape
    p = TARGET.logits(WEIGHTS, blocks.hidden.reshape(1, -1, size[-1]))
    p = np.asarray(jax.nn.softmax(p, axis=-1), np.float64).reshape(q.shape)
    distance = np.abs(p - q).sum(-1)
    said = np.take_along_axis(q, np.asarray(blocks.labels)[..., None], -1)[..., 0]
    z = np.asarray(confidence, np.float64)
    label = 1 - distance / 2
    chance = 1 / (1 + np.exp(-z))
    entropy = -label * np.log(chance) - (1 - label) * np.log(1 - chance)
    each = 0.1 * -np.log(said) + 0.9 * distance + entropy
    weight = np.exp(-np.arange(q.shape[2]) / 4.0) * np.asarray(blocks.is_label)
    np.testing.assert_allclose(found.total, (weight * each).sum(), rtol=1e-5)
    np.testing.assert_allclose(found.known, weight.sum(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["decay", "law", "dpace"])
def test_the_loss_of_dflash_is_its_formula(kind):
    drafter = DFLASH
    params, lesson = params_of(drafter), lesson_of(drafter)
    key = jax.random.key(1)
    found = BlockFilling(kind, blocks=8, chunk=2).loss(
        TARGET, drafter, params, lesson, key
    )
    blocks = read_blocks(TARGET, drafter, params, lesson, 8, key)
    flat = blocks.states.reshape(1, -1, TARGET.width)
    shape = (*blocks.labels.shape, -1)
    log_q = jax.nn.log_softmax(TARGET.logits(WEIGHTS, flat), axis=-1)
    log_q = np.asarray(log_q, np.float64).reshape(shape)
    said = np.take_along_axis(log_q, np.asarray(blocks.labels)[..., None], -1)[..., 0]
    is_label = np.asarray(blocks.is_label)
    if kind == "dpace":
        weight = np.asarray(dpace_weights(jnp.asarray(said), blocks.is_label, 0.5))
        count = is_label.sum()
    else:
        weight = np.exp(-np.arange(said.shape[2]) / 4.0) * is_label
        count = weight.sum()
    losses = -said
    if kind == "law":
        hidden = blocks.hidden.reshape(1, -1, TARGET.width)
        p = jax.nn.softmax(TARGET.logits(WEIGHTS, hidden), axis=-1)
        losses = -(np.asarray(p).reshape(shape) * log_q).sum(-1)
    np.testing.assert_allclose(found.total, (weight * losses).sum(), rtol=1e-5)
    np.testing.assert_allclose(found.known, count, rtol=1e-6)
