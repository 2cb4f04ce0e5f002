"""The theorem under every sampling option, and under `match` with the noise that it
lives on: the argmax of law and noise, token by token, whatever was drafted.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import some_slow
from enumeration import (
    SLOTS,
    Game,
    Play,
    anything_goes,
    begin,
    errors,
    joint,
    reference,
    rows,
)
from feature_heads import EAGLES, FEW3, GROWN, TAPS, params_of
from scripted import CHAIN, STAR, TREE, Law, P, Scripted, Text, V, propose, table

import specdec_jax as sd
from specdec_jax import _loop, _sampling, _types

pytestmark = pytest.mark.usefixtures("quick_compile")

# --- Every option, one a row ----------------------------------------------------------

OPTIONS: list[tuple[Text, dict[str, Any]]] = [
    ((0, 0, 1), {}),
    ((0, 2, 1), {"temperature": 0.6}),
    ((0, 0), {"top_k": 2}),
    ((0,), {"top_p": 0.6}),
    ((0, 0, 1, 2), {"min_p": 0.5}),
    ((1, 0), {"repetition_penalty": 2.5}),
    ((0, 0, 0, 1), {"presence_penalty": 1.1}),
    ((0, 2, 0, 0), {"frequency_penalty": 0.9}),
    ((0, 1, 1, 1), {"bias": {0: -1.5, 2: 0.7}}),
    ((1, 1, 0), {"banned_ids": [1]}),
    ((1, 2, 2), {"allowed_ids": [0, 2]}),
    ((1,), {"min_new_tokens": 1, "stop_ids": [1]}),
    ((1, 0, 0, 2), {"min_new_tokens": 2, "stop_ids": [0, 1]}),
    ((1, 0, 1, 0), {"temperature": 0.0, "repetition_penalty": 2.5}),
    (
        (0, 0, 2, 2),
        {
            "temperature": 1.7,
            "top_k": 2,
            "top_p": 0.9,
            "min_p": 0.05,
            "repetition_penalty": 1.4,
            "presence_penalty": -0.4,
            "frequency_penalty": 0.3,
            "bias": {1: 0.5},
            "min_new_tokens": 1,
            "stop_ids": [2],
        },
    ),
]


def no_2_after_0(output: Text, token: int) -> bool:
    return output[-1:] == (0,) and token == 2


NO_2_AFTER_0 = _types.Constraint(  # its state: whether the newest token is a 0
    initial=jnp.array(False),
    mask=lambda is_after_0: ~is_after_0 | (jnp.arange(V, dtype=jnp.int32) != 2),
    advance=lambda _, token: token == 0,
)


def begin_with_options(*, grammar: bool, **options: Any) -> Play:
    """A row for each of `OPTIONS`, and perhaps a grammar, which all rows share;
    `options` are `begin`'s.
    """
    off = {x.name: x.default for x in dataclasses.fields(sd.Sampling)}
    off |= {"temperature": 1.0, "bias": {}, "stop_ids": []}
    names = sorted({name for _, options in OPTIONS for name in options})
    sampling = sd.Sampling(
        **{x: [options.get(x, off[x]) for _, options in OPTIONS] for x in names},
        constrain=NO_2_AFTER_0 if grammar else None,
    )
    forbids = no_2_after_0 if grammar else anything_goes
    laws = [reference(prompt, forbids=forbids, **x) for prompt, x in OPTIONS]
    return begin([prompt for prompt, _ in OPTIONS], laws, sampling, **options)


def test_every_option_matters():
    """Else the tests below could not fail."""
    for prompt, options in OPTIONS[1:]:
        change = joint(reference(prompt, **options), prompt) - joint(
            reference(prompt), prompt
        )
        assert np.abs(change).max() > 0.05, options


@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize(
    "game", [Game("rejection", STAR, "iid"), Game("block", CHAIN, "iid")], ids=str
)
def test_every_option(game, grammar):
    assert errors(game, begin_with_options(grammar=grammar)).max() < 1e-6


# --- match, with the noise that it lives on -------------------------------------------


@functools.partial(jax.jit, static_argnames="program")
def _listen(program, params, request, run, noise):
    """`_loop.step` where the noise of position i of a row is `noise[row, i]`."""

    def given(_, positions, *, vocab_size):
        return jnp.take_along_axis(noise, positions[:, :, None], axis=1)

    request = request._replace(keys=jax.random.wrap_key_data(request.keys))
    with mock.patch.object(_sampling, "position_noise", given):
        return _loop.step(program, params, request, run)


def listen(play: Play, params: sd.Params, drafter: Any, noise: np.ndarray) -> Play:
    program = dataclasses.replace(play.program, drafter=drafter, chunk=0)
    run = _listen(program, params, play.request, play.run, noise.astype(np.float32))
    return play._replace(run=jax.tree.map(np.asarray, run))


def texts(play: Play) -> list[Text]:
    state = play.run.state
    pairs = zip(state.tokens.tolist(), state.length.tolist(), strict=True)
    return [tuple(tokens[:length]) for tokens, length in pairs]


HEADS = ("eagle", "eagle 2", "eagle 3 of few", "eagle 3, chain")


@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize("name", ["random", *some_slow(HEADS, fast=())])
def test_match_says_what_plain_decoding_says(name, grammar):
    """Under every option, on trees drawn at random, and on those that a head draws by
    the noise itself: the argmax of law and noise, token by token.
    """
    random = np.random.default_rng(5)
    params, begun = sd.Params(P), {}
    if name in EAGLES:
        params = sd.Params(P, params_of(EAGLES[name]).drafter)
        begun = {"drafter": EAGLES[name], "params": params}
    play = begin_with_options(grammar=grammar, **begun)
    which = np.arange(1500) % len(OPTIONS)
    play = play._replace(request=rows(play.request, which), run=rows(play.run, which))
    noise = random.gumbel(size=(len(which), SLOTS + 4, V)).astype(np.float32)
    drafter = begun.get("drafter", Scripted(len(TREE), 2, "points", can_pass=True))
    parents = np.tile(TREE, (len(which), 1))
    for share in (0.9, 0.0, 0.9):  # of the nodes: once nobody proposes anything
        if name in EAGLES:
            play = listen(play, params, drafter, noise)
            continue
        tokens = random.integers(0, V, parents.shape)
        tokens[:, 0] = [text[-1] for text in texts(play)]
        valid = random.random(parents.shape) < share
        run = propose(drafter, play.run, tokens, parents, valid)
        play = listen(play._replace(run=run), params, drafter, noise)
    for row, text in enumerate(texts(play)):
        law = play.laws[which[row]]
        for end in range(play.run.start[row], len(text)):
            with np.errstate(divide="ignore"):
                scores = np.log(law(text[:end])) + noise[row, end]
            assert text[end] == scores.argmax(), (OPTIONS[which[row]], text, end)
    emitted = play.run.state.length - play.run.start
    assert emitted.mean() > 3.3  # the drafts have been of use


# Between two tokens the noise decides by one number: token 0 is said if u < p(0), where
# u is uniform and noise[0] - noise[1] = log((1 - u) / u). So u has cells as coins have.

TWO = sd.Toy(vocab_size=2)
P2, Q2 = table(3, vocab_size=2), table(4, vocab_size=2)
PROMPTS, TEMPERATURES = ((1,), (0, 1), (1, 1, 0, 0)), (1.0, 0.0, 0.7)
P_LAWS, Q_LAWS = (
    [
        reference(prompt, logits=params["logits"], temperature=temperature)
        for prompt, temperature in zip(PROMPTS, TEMPERATURES, strict=True)
    ]
    for params in (P2, Q2)
)


def noise_cells(text: Text, laws: Sequence[Law]) -> list[tuple[float, float, float]]:
    """u of the next two tokens, in every cell that these laws make or finer, and the
    cell's probability.
    """

    def cells(texts: list[Text]) -> list[tuple[float, float]]:
        ends = {law(x)[0] for law in laws for x in texts} | {i / 8 for i in range(9)}
        return [((a + b) / 2, b - a) for a, b in itertools.pairwise(sorted(ends))]

    return [
        (u, v, size * share)
        for u, size in cells([text])
        for v, share in cells([(*text, 0), (*text, 1)])
    ]


def likely_tree(text: Text, law: Law, noise: np.ndarray) -> tuple[list[int], list[int]]:
    """Tokens and parents of the three nodes that are likeliest under the drafter's law
    with the target's noise, after the root.
    """

    def log_q(text: Text) -> np.ndarray:
        with np.errstate(divide="ignore"):
            scores = np.log(law(text)) + noise[len(text)]
        return scores - np.logaddexp.reduce(scores)

    def score(node: Text) -> float:
        return float(sum(log_q(text + node[:i])[x] for i, x in enumerate(node)))

    nodes = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    best = [(), *sorted(nodes, key=score, reverse=True)[:3]]
    parents = [-1, *[best.index(node[:-1]) for node in best[1:]]]
    return [text[-1], *[node[-1] for node in best[1:]]], parents


NAN2 = {"logits": np.full_like(Q2["logits"], np.nan)}
ONE3 = dataclasses.replace(FEW3, draft_vocab_size=1)  # of the two tokens
NOISY: dict[str, tuple[Any, Any]] = {
    "chain": (sd.DraftModel(TWO, num_nodes=3), Q2),
    "chain-nan": (sd.DraftModel(TWO, num_nodes=3), NAN2),
    "tree": (Scripted(4, 2, "points"), Q2),
} | {
    name: (drafter, params_of(drafter, TWO).drafter)
    for name, drafter in {
        "eagle": EAGLES["eagle"],
        "eagle 2": EAGLES["eagle 2"],
        "eagle 3": EAGLES["eagle 3"],
        "eagle 3, chain": EAGLES["eagle 3, chain"],
        "eagle 3 of one": sd.Eagle3(ONE3, GROWN, taps=TAPS),
    }.items()
}


@pytest.mark.parametrize(
    "name", some_slow(NOISY, fast=("chain", "chain-nan", "tree", "eagle 2"))
)
def test_shared_noise(name):
    """What is drafted may depend on anything, on the target's own noise too."""
    drafter, q = NOISY[name]
    cells = [
        (i, *cell)
        for i, prompt in enumerate(PROMPTS)
        for cell in noise_cells(prompt, [P_LAWS[i], Q_LAWS[i]])
    ]
    which, u, v, weight = (np.array(x) for x in zip(*cells, strict=True))
    row = np.arange(len(which))
    start = np.array([len(prompt) for prompt in PROMPTS])[which]
    noise = np.random.default_rng(6).gumbel(size=(len(which), SLOTS + 4, 2))
    for position, x in ((start, u), (start + 1, v)):
        noise[row, position, 0] = noise[row, position, 1] + np.log((1 - x) / x)
    is_scripted = isinstance(drafter, Scripted)
    play = begin(
        [PROMPTS[i] for i in which],
        [P_LAWS[i] for i in which],
        sd.Sampling(temperature=[TEMPERATURES[i] for i in which]),
        target=TWO,
        params=sd.Params(P2, q),
        drafter=sd.Plain() if is_scripted else drafter,
    )
    for _ in range(2):  # two steps: two tokens at least
        if is_scripted:
            trees = [
                likely_tree(text, Q_LAWS[i], x)
                for text, i, x in zip(texts(play), which, noise, strict=True)
            ]
            tokens, parents = (np.array(x) for x in zip(*trees, strict=True))
            valid = np.ones(tokens.shape, bool)
            run = propose(drafter, play.run, tokens, parents, valid)
            play = play._replace(run=run)
        play = listen(play, sd.Params(P2, q), drafter, noise)
    first, second = (play.run.state.tokens[row, start + i] for i in (0, 1))
    found = np.zeros((len(PROMPTS), 2, 2))
    np.add.at(found, (which, first, second), weight)
    for i, (prompt, law) in enumerate(zip(PROMPTS, P_LAWS, strict=True)):
        np.testing.assert_allclose(found[i], joint(law, prompt), atol=1e-6)
    emitted = play.run.state.length - start
    assert (
        name in ("chain-nan", "eagle 3 of one") or emitted.mean() > 2.5
    )  # the drafts have been of use


@pytest.mark.parametrize("kind", ["points", "iid"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_token_that_nothing_may_follow_comes_as_often(rule, kind):
    """A grammar that is over after token 0: its share is the target's, though no law
    behind it is left to pay for a miss. 4,096 rows: five standard errors are 0.024.
    """
    toy = sd.Toy(vocab_size=5)
    weights = jax.tree.map(lambda x: 0.5 * x, toy.init_params(jax.random.key(0)))
    near = jax.tree.map(lambda x: 0.4 * x + jnp.eye(5)[:1], weights)
    over = sd.Constraint(
        jnp.array(False), lambda s: jnp.full(5, True) & ~s, lambda s, t: s | (t == 0)
    )
    found = sd.generate(
        toy,
        sd.Params(weights, near),
        sd.DraftModel(toy, num_nodes=4, kind=kind),
        [[1, 2]],
        sampling=sd.Sampling(temperature=1.0, max_new_tokens=3, seed=5, constrain=over),
        rule=rule,
        samples=4096,
        raise_on_failure=False,
    )
    share = np.mean([row[0] == 0 for row in found.tokens])
    law = jax.nn.softmax(weights["logits"][toy.context([1, 2])])
    assert abs(share - float(law[0])) < 0.024


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("match", "points"),
        *(
            (rule, kind)
            for rule in ("rejection", "block")
            for kind in ("points", "iid")
        ),
    ],
)
@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-20, 1e-30])
def test_hardly_any_temperature_is_none(temperature, rule, kind):
    """The text as at 0, certain of itself: what tells scores apart must outlast their
    division by next to nothing.
    """
    toy = sd.Toy(vocab_size=7)
    weights = jax.tree.map(lambda x: 9 * x, toy.init_params(jax.random.key(0)))
    drafter = sd.DraftModel(toy, kind=kind)
    greedy, cold = (
        sd.generate(
            toy,
            sd.Params(weights, weights),
            drafter,
            [[1, 2], [3]],
            sampling=sd.Sampling(temperature=x, max_new_tokens=24),
            rule=rule,
            logprobs="sampled",
        )
        for x in (0.0, temperature)
    )
    assert cold.logprobs is not None
    for a, b, said in zip(greedy.tokens, cold.tokens, cold.logprobs, strict=True):
        assert a.tolist() == b.tolist()
        np.testing.assert_array_equal(said, 0.0)


@pytest.mark.parametrize("bias", [1e2, 1e6, 1e9])
def test_a_large_bias_leaves_the_law_as_it_is(bias):
    """Of two tokens, as far as float32 tells their scores apart."""
    toy = sd.Toy(vocab_size=7)
    params = sd.Params(toy.init_params(jax.random.key(0)))
    sampling = sd.Sampling(
        temperature=0.7, seed=3, max_new_tokens=1, bias={2: bias, 3: bias}
    )
    found = sd.generate(
        toy, params, sd.Plain(), [[1, 2]], sampling=sampling, samples=4096
    )
    logits = params.target["logits"][toy.context([1, 2])] + jnp.float32(bias)
    law = jax.nn.softmax((logits[2:4] - logits[2:4].max()) / 0.7)
    share = np.mean([row[0] == 2 for row in found.tokens])
    assert abs(share - float(law[0])) < 0.04  # five standard errors
