"""Exact enumeration of what speculation emits, on a vocabulary of three.

Every row of a batch is one cell of the probability space: one draft, one cell of coins,
one token at the end. The shipped `_loop.step` judges all of them, and the cells'
probabilities are added up.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scripted import TOY, Drafts, Law, P, Scripted, Text, V, all_drafts, path, propose

import specdec_jax as sd
from specdec_jax import _loop, _run, _sampling, _types, _verify

PROMPTS = ((1,), (0, 2), (2, 1, 1, 0))
SLOTS = 16
ROWS = 512  # judged in one call: one shape, one executable
GRID = 2**24  # a coin is k / GRID

# --- The target's law, written naively ------------------------------------------------


def anything_goes(output: Text, token: int) -> bool:
    """A grammar that forbids nothing."""
    return False


def reference(
    prompt: Text,
    *,
    logits: np.ndarray = P["logits"],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    bias: Mapping[int, float] = MappingProxyType({}),
    banned_ids: Sequence[int] = (),
    allowed_ids: Sequence[int] | None = None,
    min_new_tokens: int = 0,
    stop_ids: Sequence[int] = (),
    forbids: Callable[[Text, int], bool] = anything_goes,
) -> Law:
    """The law that the options of `sd.Sampling` ask for; `forbids` is the grammar."""

    def score(x: float, token: int, output: Text) -> float:
        count = output.count(token)
        x += bias.get(token, 0.0)
        if token in prompt + output:
            x = x / repetition_penalty if x > 0 else x * repetition_penalty
        x -= presence_penalty * (count > 0) + frequency_penalty * count
        is_banned = (
            token in banned_ids
            or (allowed_ids is not None and token not in allowed_ids)
            or (len(output) < min_new_tokens and token in stop_ids)
            or forbids(output, token)
        )
        return -math.inf if is_banned else x

    @functools.cache
    def law(text: Text) -> np.ndarray:
        output = text[len(prompt) :]
        row = logits[TOY.context(text)].astype(np.float64)
        scores = np.array([score(x, i, output) for i, x in enumerate(row)])
        if np.isneginf(scores).all():
            return np.zeros(len(row))
        if temperature == 0:
            return np.eye(len(row))[scores.argmax()]
        p = np.exp((scores - scores.max()) / temperature)
        if top_k:
            p = np.where(p >= np.sort(p)[-min(top_k, len(p))], p, 0)
        p /= p.sum()
        above = np.array([p[p > x].sum() for x in p])
        p = np.where(above < top_p, p, 0)
        p = np.where(p >= min_p * p.max(), p, 0)
        return p / p.sum()

    return law


def joint(law: Law, text: Text) -> np.ndarray:
    """Of the next two tokens."""
    return np.array([x * law((*text, i)) for i, x in enumerate(law(text))])


# --- The judge ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Game:
    """A rule, a shape and a way to draw; `judge` and `drafts` can be replaced by what
    is wrong.
    """

    rule: _types.Rule
    # Of a tree of as many nodes and as deep as any that `drafts` brings.
    parents: tuple[int, ...]
    kind: _types.Kind
    judge: Callable | None = None  # None: the shipped function of the rule
    drafts: Callable[..., Drafts] = all_drafts
    drawn: _types.Kind | None = None  # how drafts are truly drawn, if `kind` is a lie

    def __str__(self) -> str:
        return f"{self.rule}-{len(self.parents)}-{self.kind}"

    @property
    def drafter(self) -> Scripted:
        depth = max(len(path(self.parents, i)) for i in range(len(self.parents)))
        return Scripted(len(self.parents), depth, self.kind)


class Play(NamedTuple):
    """Rows that are about to begin a step."""

    texts: list[Text]
    laws: list[Law]  # the target's, of each row
    program: _run.Program
    request: Any
    run: _run.Run


def begin(
    texts: Sequence[Text], laws: Sequence[Law], sampling: sd.Sampling, **options: Any
) -> Play:
    """Rows that come through the shipped door and the shipped prefill."""
    arguments = {
        "target": TOY,
        "params": sd.Params(P),
        "drafter": sd.Plain(),
        **options,
    }
    stream = sd.stream(**arguments, prompts=texts, sampling=sampling, max_length=SLOTS)
    # NumPy picks rows without compiling anything; of keys it needs the bits.
    request = stream._request
    request = request._replace(keys=jax.random.key_data(request.keys))
    request, run = jax.tree.map(np.asarray, (request, stream._run))
    return Play(list(texts), list(laws), stream._program, request, run)


def rows(tree: Any, index: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


class Judged(NamedTuple):
    run: _run.Run
    path: np.ndarray  # "B P"
    length: np.ndarray  # "B"
    law: np.ndarray  # "B V": of the token after the accepted path


@functools.partial(jax.jit, static_argnames=("program", "judge"))
def _step(
    program: _run.Program,
    judge: Callable,
    request: Any,
    run: _run.Run,
    given: Array,
    forced: Array,
) -> Judged:
    """`_loop.step` with its noise given: coins, or under `match` the target's token
    after each node. `forced` comes after the accepted path, whatever its law.
    """
    seen = []

    def match(draft, _, *, size):
        verdict = judge(draft, given, size=size)
        seen.append((verdict.path, verdict.length, jax.nn.one_hot(verdict.next, V)))
        return verdict._replace(next=forced)

    def accept(draft, log_p, _, *, kind, size):
        path, length, law = judge(draft, log_p, given, kind=kind, size=size)
        seen.append((path, length, jnp.exp(law)))
        return path, length, jnp.log(jax.nn.one_hot(forced, V))

    # Random bits would change nothing here, and are most of what there is to compile.
    quiet = {
        "position_noise": lambda _, positions, *, vocab_size: jnp.zeros(
            (*positions.shape, vocab_size)
        ),
        "step_noise": lambda sampler, *_, vocab_size: jnp.zeros(
            (len(sampler.base), vocab_size)
        ),
    }
    stand_in = match if program.rule == "match" else accept
    with (
        mock.patch.multiple(_sampling, **quiet),
        mock.patch.object(_verify, program.rule, stand_in),
    ):
        params = sd.Params({"logits": jnp.asarray(P["logits"])})
        request = request._replace(keys=jax.random.wrap_key_data(request.keys))
        after = _loop.step(program, params, request, run)
    return Judged(after, *seen[0])


def judge_all(
    game: Game,
    play: Play,
    which: np.ndarray,
    draft: Drafts,
    given: np.ndarray,
    forced: np.ndarray,
) -> Judged:
    """Row i is row `which[i]` of `play`, with draft and noise i."""
    drafter = game.drafter
    program = dataclasses.replace(
        play.program, drafter=drafter, rule=game.rule, chunk=0
    )
    judge = game.judge or getattr(_verify, game.rule)
    forced = forced.astype(np.int32)
    parts = []
    for start in range(0, len(which), ROWS):
        i = np.arange(start, start + ROWS) % len(which)
        log_q = None if game.kind == "points" else draft.log_q[i]
        run, request = rows(play.run, which[i]), rows(play.request, which[i])
        run = propose(
            drafter, run, draft.tokens[i], draft.parents[i], draft.valid[i], log_q
        )
        judged = _step(program, judge, request, run, given[i], forced[i])
        asked = np.arange(min(ROWS, len(which) - start))
        parts.append(rows(jax.tree.map(np.asarray, judged), asked))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


# --- Cells ----------------------------------------------------------------------------

Cells = tuple[np.ndarray, np.ndarray, np.ndarray]  # which draft, noise, probability


def coin_cells(game: Game, play: Play, which: np.ndarray, draft: Drafts) -> Cells:
    """Coins at the middle of every cell between the breakpoints, one per node."""
    ends = breakpoints(game, play, which, draft)
    cases, coins, lengths = [], [], []
    for below in itertools.product([True, False], repeat=len(game.parents) - 1):
        is_below = np.array((False, *below))
        length = np.where(is_below, ends, 1 - ends)
        length[:, 0] = 1  # nobody looks at the root's coin
        cases.append(np.arange(len(ends)))
        coins.append(np.where(is_below, ends / 2, (1 + ends) / 2))
        lengths.append(length.prod(1))
    case, coin, length = (np.concatenate(x) for x in (cases, coins, lengths))
    exists = length > 0
    return case[exists], coin[exists].astype(np.float32), length[exists]


def breakpoints(game: Game, play: Play, which: np.ndarray, draft: Drafts) -> np.ndarray:
    """The share of coins that accept each node, given that it is tried.

    Found by bisection on the coins themselves, so that no formula is taken on trust and
    a wrong one shows in the law.
    """
    count, nodes = draft.tokens.shape
    case, node = np.repeat(np.arange(count), nodes), np.tile(np.arange(nodes), count)
    # What lies above accepts wherever it can, everything else refuses.
    coins, draft = np.ones((len(node), nodes), np.float32), rows(draft, case)
    for i, parents in enumerate(draft.parents.tolist()):
        coins[i, path(parents, node[i])] = 0
    low, high = np.zeros(len(node), int), np.full(len(node), GRID)
    for _ in range(GRID.bit_length()):
        middle = (low + high) // 2
        coins[np.arange(len(node)), node] = middle / GRID
        judged = judge_all(game, play, which[case], draft, coins, node % V)
        is_accepted = (judged.path == node[:, None]) & (
            np.arange(judged.path.shape[1]) < judged.length[:, None]
        )
        is_below = is_accepted.any(1) & (middle < GRID)
        low, high = (
            np.where(is_below, middle + 1, low),
            np.where(is_below, high, middle),
        )
    return low.reshape(count, nodes) / GRID


def token_cells(
    game: Game,
    play: Play,
    which: np.ndarray,
    draft: Drafts,
    prefix: Callable[[Text, int], Any] = lambda path, node: path,
) -> Cells:
    """Under `match`: every token that the target may say after each node. Nodes of one
    path are one prefix, and say one token.
    """
    nodes = range(len(game.parents))
    cases, tables, weights = [], [], []
    for case, tokens in enumerate(draft.tokens.tolist()):
        parents = draft.parents[case].tolist()
        paths = [tuple(tokens[i] for i in path(parents, node)) for node in nodes]
        prefixes = [prefix(x, node) for x, node in zip(paths, nodes, strict=True)]
        distinct = list(dict.fromkeys(prefixes))
        text, law = play.texts[which[case]], play.laws[which[case]]
        laws = [law(text + paths[prefixes.index(x)]) for x in distinct]
        for said in itertools.product(range(V), repeat=len(distinct)):
            weight = np.prod([p[token] for p, token in zip(laws, said, strict=True)])
            if weight > 0:
                cases.append(case)
                tables.append([said[distinct.index(x)] for x in prefixes])
                weights.append(weight)
    return np.array(cases), np.array(tables, np.int32), np.array(weights)


# --- The law --------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What one step says: texts G, experiments K."""

    alone: np.ndarray  # "G K V": P(first token, and the step emits no more)
    together: np.ndarray  # "G K V V": P(first two tokens, both from this step)
    grown: np.ndarray  # "G": the number of each text in `after`, -1 if it is not there
    after: Play  # texts that are longer by one token, V rows for each


def enumerate_step(game: Game, play: Play, cells: Callable[..., Cells]) -> Outcome:
    kind = game.drawn or game.kind
    every = [game.drafts(game.parents, kind, text) for text in play.texts]
    draft = Drafts(*(np.concatenate(x) for x in zip(*every, strict=True)))
    which = np.repeat(np.arange(len(every)), [len(x.weight) for x in every])
    case, given, share = cells(game, play, which, draft)
    which, draft = which[case], rows(draft, case)
    judged = judge_all(game, play, which, draft, given, np.arange(len(which)) % V)
    check_rows(play, which, judged)

    texts, weight = len(play.texts), draft.weight * share
    alone = np.zeros((texts, draft.group.max() + 1, V))
    together = np.zeros((*alone.shape, V))
    nodes = np.zeros((len(judged.path), SLOTS), int)
    nodes[:, : judged.path.shape[1]] = judged.path
    first, second = (draft.tokens[np.arange(len(nodes)), nodes[:, i]] for i in (1, 2))
    law = judged.law * weight[:, None]
    drafted = np.eye(V)[second] * weight[:, None]
    for i, length in enumerate(judged.length):
        here = which[i], draft.group[i]
        if length == 1:
            alone[here] += law[i]
        else:
            together[here][first[i]] += law[i] if length == 2 else drafted[i]

    # From each text some row goes on with every token, drawn alone.
    text, row = np.unique(which[judged.length == 1], return_index=True)
    row = np.repeat(np.flatnonzero(judged.length == 1)[row], V)
    token = np.tile(np.arange(V), len(text))
    grown = np.full(texts, -1)
    grown[text] = np.arange(len(text))
    on = judge_all(game, play, which[row], rows(draft, row), given[row], token)
    check_rows(play, which[row], on)
    after = Play(
        [(*play.texts[which[i]], x) for i, x in zip(row, token.tolist(), strict=True)],
        [play.laws[which[i]] for i in row],
        play.program,
        rows(play.request, which[row]),
        on.run,
    )
    return Outcome(alone, together, grown, after)


def check_rows(play: Play, which: np.ndarray, judged: Judged) -> None:
    """Every row has emitted what it accepted, and its cache holds its text but for the
    last token.
    """
    state, is_running = judged.run.state, judged.run.reason == 0
    emitted = state.length - play.run.state.length[which]
    np.testing.assert_array_equal(emitted[is_running], judged.length[is_running])
    assert ((state.tokens >= 0) & (state.tokens < V)).all()
    np.testing.assert_array_equal(state.cache.length, state.length - 1)
    slots = np.arange(SLOTS)
    is_held = slots < state.cache.length[:, None]
    keys, values = (x[0][:, 0, :, 0] for x in (state.cache.keys, state.cache.values))
    np.testing.assert_array_equal(keys, np.where(is_held, slots + 1, 0))
    np.testing.assert_array_equal(values, np.where(is_held, state.tokens + 1, 0))


def errors(
    game: Game, play: Play, cells: Callable[..., Cells] | None = None
) -> np.ndarray:
    """How far the joint law of the next two tokens is from the target's, at most, for
    each text.
    """
    cells = cells or (token_cells if game.rule == "match" else coin_cells)
    one = enumerate_step(game, play, cells)
    following = np.zeros((1, V, 1, V))  # at the end, for texts that never come about
    if one.after.texts:
        two = enumerate_step(game, one.after, cells)
        law = two.alone + two.together.sum(-1)
        law = law.reshape(-1, V, *law.shape[1:])
        following = np.concatenate([law, law[:1] * 0])
    assert np.isfinite(following).all() and np.isfinite(one.together).all()
    worst = []
    for i, (text, law) in enumerate(zip(play.texts, play.laws, strict=True)):
        wanted = joint(law, text)
        # Each experiment of the first step with each of the second: "K K V V".
        rest = np.moveaxis(following[one.grown[i]], 1, 0)
        found = one.together[i][:, None] + one.alone[i][:, None, :, None] * rest
        worst.append(np.abs(found - wanted).max())
    return np.array(worst)
