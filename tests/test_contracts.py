"""The contract of `Drafter`: every one of them through the same behaviours.

A new one is a line in `DRAFTERS`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DECODER, TABLE, TOY, Guess, poisoned_cache

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax._best_first import MarginalTree
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax._options import make_request
from specdec_jax._types import (
    Accepted,
    Cache,
    Draft,
    Drafter,
    Params,
    Sampler,
    check,
)
from specdec_jax.drafters import DFlash, DSpark, Eagle, Eagle3
from specdec_jax.drafters._ngram import NGramState
from specdec_jax.nn import Eagle3Config, EagleConfig, InjectedConfig, MarkovConfig

pytestmark = pytest.mark.usefixtures("quick_compile")

V = TOY.vocab_size
SLOTS = 48
DECODER_PARAMS = DECODER.init_params(jax.random.key(5))
FAR = TOY.init_params(jax.random.key(6))


class Case(NamedTuple):
    drafter: Any
    target: Any = TOY
    params: Params = Params(TABLE)


HEAD = EagleConfig(width=16, num_heads=2, num_kv_heads=1, head_width=8, mlp_width=24)
HEAD3 = Eagle3Config(
    width=16,
    num_heads=2,
    num_kv_heads=1,
    head_width=6,
    mlp_width=20,
    feature_width=48,
    draft_vocab_size=5,
    num_layers=2,
)
SMALL_TREE = StaticTree("0 1 2 00 01 10 000 001")
GROWN = GrownTree(num_nodes=9, depth=3, width=3)


BODY = InjectedConfig(
    width=16,
    num_heads=2,
    num_kv_heads=1,
    head_width=6,
    mlp_width=20,
    num_layers=2,
    feature_width=32,
    block_size=4,
    mask_id=6,
)
WINDOWED = dataclasses.replace(BODY, windows=(5, None), causal=(True, False))
SPARK = dataclasses.replace(
    BODY,
    layout="anchor_first",
    markov=MarkovConfig(rank=4),
    confidence="state and markov",
)
FEW_SPARK = dataclasses.replace(
    SPARK,
    own_embedding=True,
    own_head=True,
    draft_vocab_size=5,
    markov=MarkovConfig(rank=4, kind="rnn", top_k=3),
    confidence="state",
)
GATED = dataclasses.replace(
    SPARK, markov=MarkovConfig(rank=4, kind="gated"), confidence="none"
)
BLOCK_TAPS = (-1, 1)


def eagle(drafter: Any) -> "Case":
    params = drafter.init_params(jax.random.key(7), DECODER)
    return Case(drafter, target=DECODER, params=Params(DECODER_PARAMS, params))


DRAFTERS = {
    "plain": Case(sd.Plain()),
    "tree": Case(Guess()),
    "ngram": Case(sd.NGram()),
    "ngram of one node": Case(sd.NGram(num_nodes=1)),
    "ngram of pairs": Case(sd.NGram(num_nodes=5, longest=2, shortest=2)),
    "points": Case(sd.DraftModel(TOY), params=Params(TABLE, FAR)),
    "one point": Case(sd.DraftModel(TOY, num_nodes=2), params=Params(TABLE, FAR)),
    "iid": Case(sd.DraftModel(TOY, kind="iid"), params=Params(TABLE, FAR)),
    "decoder": Case(
        sd.DraftModel(DECODER, num_nodes=4),
        target=DECODER,
        params=Params(DECODER_PARAMS, DECODER_PARAMS),
    ),
    "eagle": eagle(Eagle(HEAD, SMALL_TREE)),
    "eagle, drawn": eagle(Eagle(HEAD, SMALL_TREE, kind="without_replacement")),
    "eagle 2": eagle(Eagle(HEAD, GROWN)),
    "eagle 3": eagle(Eagle3(HEAD3, GROWN, taps=(-1, 0, 1))),
    "eagle 3, static": eagle(Eagle3(HEAD3, SMALL_TREE, taps=(-1, 0, 1))),
    "dflash": eagle(DFlash(WINDOWED, BLOCK_TAPS)),
    "dflash, drawn": eagle(DFlash(BODY, BLOCK_TAPS, kind="iid", drafts=2)),
    "dflash, tree": eagle(DFlash(BODY, BLOCK_TAPS, tree=MarginalTree(9))),
    "dspark": eagle(DSpark(SPARK, BLOCK_TAPS)),
    "dspark, drawn": eagle(DSpark(FEW_SPARK, BLOCK_TAPS, kind="iid")),
    "dspark, gated": eagle(DSpark(GATED, BLOCK_TAPS, kind="iid", drafts=3)),
}
SLOW = ("eagle", "eagle 3, static")
every_drafter = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] if name in SLOW else [], id=name)
        for name, case in DRAFTERS.items()
    ],
)


# --- Drafters -------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("drafter", "target"))
def feed(drafter, target, params, cache, state, tokens, length, following):
    """The target commits some tokens of each row, and the drafter takes them in."""
    block = check(_tree.causal_block(tokens))
    output = check(target.forward(params.target, cache, block, drafter.taps))
    path = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    cache = check(target.commit(cache, output.pending, path, length))
    accepted = check(Accepted(tokens, output.features, length, following))
    return cache, drafter.update(target, params, state, accepted)


@functools.partial(jax.jit, static_argnames=("drafter", "target"))
def propose(drafter, target, params, state, root, sampler) -> tuple[Draft, Any]:
    draft, state = drafter.draft(target, params, state, root, sampler)
    return check(draft), state


class Reader:
    """A batch under way: what its rows have said, and what the drafter knows of it."""

    def __init__(self, case: Case, batch: int = 3):
        self.drafter, self.target, self.params = case
        self.rows: list[list[int]] = [[] for _ in range(batch)]
        self.cache = check(self.target.init_cache(batch, SLOTS))
        self.state = self.drafter.init(batch, SLOTS)

    def read(self, new: list[list[int]], following: list[int]) -> None:
        """Commit at most a path's length of new tokens per row."""
        size = self.drafter.max_depth + 1
        padded = [row + [(7 * i) % V for i in range(size - len(row))] for row in new]
        self.cache, self.state = feed(
            self.drafter,
            self.target,
            self.params,
            self.cache,
            self.state,
            jnp.asarray(padded, jnp.int32),
            jnp.asarray([len(row) for row in new], jnp.int32),
            jnp.asarray(following, jnp.int32),
        )
        self.rows = [a + b for a, b in zip(self.rows, new, strict=True)]

    def read_all(self, rows: list[list[int]], roots: list[int], random) -> None:
        """Commit whole rows, in pieces of random lengths."""
        while self.rows != rows:
            left = [b[len(a) :] for a, b in zip(self.rows, rows, strict=True)]
            sizes = random.integers(0, self.drafter.max_depth + 2, len(rows))
            new = [row[:size] for row, size in zip(left, sizes, strict=True)]
            following = [
                (row[len(piece) :] or [root])[0]
                for row, piece, root in zip(left, new, roots, strict=True)
            ]
            self.read(new, following)

    def sampler(self) -> Sampler:
        """Greedy, tempered and filtered rows."""
        batch = len(self.rows)
        options = sd.Sampling(
            temperature=[0.0, 0.7, 1.0][:batch],
            top_k=[0, 0, 3][:batch],
            seed=[1, 2, 3][:batch],
        )
        request = make_request(options, batch=batch, vocab_size=V)
        base = jnp.asarray([len(row) for row in self.rows], jnp.int32)
        noise = request.keys if self.drafter.kind == "points" else None
        generated = jnp.zeros(batch, jnp.int32)
        return check(
            Sampler(request.options, request.keys, base, generated, None, None, noise)
        )

    def draft(self, roots: list[int], state: Any = None) -> Draft:
        """What the drafter proposes now; its state moves on."""
        draft, self.state = propose(
            self.drafter,
            self.target,
            self.params,
            self.state if state is None else state,
            jnp.asarray(roots, jnp.int32),
            self.sampler(),
        )
        return draft


def some_rows(random) -> tuple[list[list[int]], list[int]]:
    """Ragged texts with repetitions (so that a lookup finds some), and a root each."""
    rows = [random.integers(0, 3, n).tolist() for n in (17, 1, 9)]
    return rows, random.integers(0, 3, 3).tolist()


def assert_same_draft(one: Draft, other: Draft, rows=slice(None)) -> None:
    """What is proposed, and under which law; tokens of no proposal do not count."""
    np.testing.assert_array_equal(one.valid[rows], other.valid[rows])
    np.testing.assert_array_equal(one.parents[rows], other.parents[rows])
    np.testing.assert_array_equal(
        np.where(one.valid, one.tokens, -1)[rows],
        np.where(other.valid, other.tokens, -1)[rows],
    )
    assert (one.proposal is None) == (other.proposal is None)
    if one.proposal is not None and other.proposal is not None:
        np.testing.assert_array_equal(one.proposal.row[rows], other.proposal.row[rows])
        np.testing.assert_allclose(
            one.proposal.log_q[rows], other.proposal.log_q[rows], atol=1e-5
        )
    assert (one.confidence is None) == (other.confidence is None)
    if one.confidence is not None and other.confidence is not None:
        np.testing.assert_allclose(
            one.confidence[rows], other.confidence[rows], atol=1e-5
        )


@every_drafter
def test_a_drafter_is_a_static_value(case):
    again = dataclasses.replace(case.drafter)
    assert isinstance(again, Drafter)
    assert again == case.drafter and again is not case.drafter
    assert hash(again) == hash(case.drafter)
    assert case.drafter.num_nodes > case.drafter.max_depth >= 0


@every_drafter
def test_a_drafters_state_keeps_its_shape(case):
    """It is carried through a loop."""
    reader = Reader(case)
    size = case.drafter.max_depth + 1
    before = jax.eval_shape(lambda: reader.state)
    arrays = jnp.zeros((3, size), jnp.int32), jnp.zeros(3, jnp.int32)
    _, after = jax.eval_shape(
        functools.partial(feed, case.drafter, case.target),
        case.params, reader.cache, before, *arrays, arrays[1],
    )  # fmt: skip
    _, drafted = jax.eval_shape(
        functools.partial(propose, case.drafter, case.target),
        case.params, before, arrays[1], reader.sampler(),
    )  # fmt: skip
    shapes = [
        jax.tree.map(lambda x: (x.shape, x.dtype), x) for x in (before, after, drafted)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


@every_drafter
def test_a_draft_is_a_tree_of_tokens(case):
    random = np.random.default_rng(0)
    drafter, reader = case.drafter, Reader(case)
    for _ in range(3):
        rows, roots = some_rows(random)
        reader = Reader(case)
        reader.read_all(rows, roots, random)
        draft = reader.draft(roots)
        assert draft.tokens.shape == (3, drafter.num_nodes)
        np.testing.assert_array_equal(draft.tokens[:, 0], roots)
        np.testing.assert_array_equal(draft.parents[:, 0], -1)
        nodes = np.arange(1, drafter.num_nodes)
        parents = np.asarray(draft.parents)[:, 1:]
        assert ((parents >= 0) & (parents < nodes)).all()
        assert (_tree.depths(draft.parents) <= drafter.max_depth).all()
        assert draft.valid[:, 0].all()
        assert ((draft.tokens >= 0) & (draft.tokens < V)).all()
        if drafter.kind == "points":
            assert draft.proposal is None
        else:
            assert_drawn_from_proposal(draft)
        if draft.confidence is not None:
            assert ((draft.confidence >= 0) & (draft.confidence <= 1)).all()


def assert_drawn_from_proposal(draft: Draft) -> None:
    """Each node has its row, a law that could have said its token."""
    assert draft.proposal is not None
    laws = np.exp(np.asarray(draft.proposal.log_q))
    assert laws.dtype == np.float32 and laws.shape[2] == V
    np.testing.assert_allclose(laws.sum(-1), 1.0, atol=1e-5)
    for b, n in np.argwhere(np.asarray(draft.valid)).tolist():
        if n > 0:
            row = int(draft.proposal.row[b, n])
            assert 0 <= row < laws.shape[1]
            assert laws[b, row, int(draft.tokens[b, n])] > 0


@every_drafter
def test_a_prompt_may_be_cut_anywhere(case):
    """Rows in pieces of any length, none among them, give the same next draft."""
    rows, roots = some_rows(np.random.default_rng(1))
    drafts = []
    for seed in range(3):
        reader = Reader(case)
        reader.read_all(rows, roots, np.random.default_rng(seed))
        drafts.append(reader.draft(roots))
    for draft in drafts[1:]:
        assert_same_draft(drafts[0], draft)


@every_drafter
def test_a_state_after_blocks_is_that_of_a_fresh_reading(case):
    """Whatever was drafted, accepted, cut or rejected: what is known is the text."""
    random = np.random.default_rng(2)
    rows, roots = some_rows(random)
    reader = Reader(case)
    reader.read_all(rows, roots, random)
    for turn in range(5):
        draft = reader.draft(roots)
        new = []
        paths = _tree.paths(draft.parents, size=case.drafter.max_depth + 1)
        for row in range(3):
            node = random.integers(case.drafter.num_nodes) if turn else -1
            path = [int(n) for n in np.asarray(paths)[row, node] if n >= 0]
            new.append([int(draft.tokens[row, n]) for n in path])
        if turn == 3:
            new[1] = []  # a row that has ended takes nothing in and keeps its root
        following = random.integers(0, V, 3).tolist()
        roots = [b if n else a for a, b, n in zip(roots, following, new, strict=True)]
        reader.read(new, roots)
        fresh = Reader(case)
        fresh.read_all(reader.rows, roots, random)
        state = reader.state
        assert_same_draft(reader.draft(roots), fresh.draft(roots))
        reader.state = state


@every_drafter
def test_reading_on_without_drafting(case):
    """A schedule may leave out drafts; `update` alone keeps the drafter up to date."""
    random = np.random.default_rng(3)
    rows, roots = some_rows(random)
    reader, fresh = Reader(case), Reader(case)
    reader.read_all(rows, roots, random)
    for root in (4, 5, 6):
        reader.read([[token] for token in roots], [root] * 3)
        roots = [root] * 3
    fresh.read_all(reader.rows, roots, random)
    assert_same_draft(reader.draft(roots), fresh.draft(roots))


@every_drafter
def test_a_drafters_rows_are_independent(case):
    """Row 0 drafts the same, whatever its neighbours say and however long they are."""
    random = np.random.default_rng(4)
    rows, roots = some_rows(random)
    drafts = []
    for lengths in ((1, 9), (30, 2)):
        neighbours = [random.integers(0, V, n).tolist() for n in lengths]
        reader = Reader(case)
        mixed = [rows[0], *neighbours]
        reader.read_all(mixed, roots, random)
        drafts.append(reader.draft(roots))
    assert_same_draft(*drafts, rows=slice(1))


def poisoned(state: Any) -> Any:
    """The state with garbage wherever nothing has been written."""
    if isinstance(state, Cache):
        return poisoned_cache(state)
    if isinstance(state, NGramState):
        unused = jnp.arange(SLOTS, dtype=jnp.int32)[None, :] >= state.length[:, None]
        return state._replace(tokens=jnp.where(unused, 10**6, state.tokens))
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*map(poisoned, state))
    return state


@every_drafter
def test_garbage_in_unused_slots_changes_no_draft(case):
    """Ids stay in [0, V) too, at the very first token, where nothing is known yet."""
    random = np.random.default_rng(5)
    for rows, roots in (some_rows(random), ([[], [], [1]], [2, 0, 1])):
        reader = Reader(case)
        reader.read_all(rows, roots, random)
        clean = reader.state
        dirty = reader.draft(roots, poisoned(clean))
        assert ((dirty.tokens >= 0) & (dirty.tokens < V)).all()
        assert_same_draft(reader.draft(roots, clean), dirty)


def test_ngram_drafts_its_longest_latest_match():
    """Of [… 1 2 3 4 … 1 2 5 … 0 2 6 …] after 1 2: the longest, then the latest."""
    case = Case(sd.NGram(num_nodes=3, longest=2, shortest=1))
    reader = Reader(case)
    rows = [
        [1, 2, 3, 4, 1, 2, 5, 6, 0, 2, 6, 1],  # 1 2 → 5 6 is later than 1 2 → 3 4
        [5, 2, 3, 4, 6, 2],  # 2 2 has not been: what followed 2
        [0, 1, 2, 3],  # 5 has not been
    ]
    roots = [2, 2, 5]
    reader.read_all(rows, roots, np.random.default_rng(0))
    draft = reader.draft(roots)
    assert draft.tokens[0].tolist() == [2, 5, 6]
    assert draft.tokens[1].tolist() == [2, 2, 2]  # 2 2, which goes on and on
    assert draft.valid.tolist() == [[True] * 3, [True] * 3, [True, False, False]]
