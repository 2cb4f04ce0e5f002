"""EAGLE's drafts against the head run along one path at a time."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from cases import some_slow
from folders import random_params, tiny_target

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax._options import make_request
from specdec_jax._types import Accepted, Params, Sampler
from specdec_jax.drafters import Eagle, Eagle3
from specdec_jax.nn import Eagle3Config, EagleConfig, _levels

pytestmark = pytest.mark.usefixtures("quick_compile")

TARGET = tiny_target("llama")
WEIGHTS = random_params(TARGET)
HEAD = EagleConfig(width=48, num_heads=4, num_kv_heads=2, head_width=12, mlp_width=80)
HEAD3 = Eagle3Config(
    width=48,
    num_heads=4,
    num_kv_heads=2,
    head_width=12,
    mlp_width=80,
    feature_width=144,
    draft_vocab_size=30,
    num_layers=2,
    norm_each_tap=3,
    norm_before_residual=True,
)
WINDOWED = dataclasses.replace(HEAD, window=4, num_layers=2, own_embedding=True)
TREE = StaticTree("0 1 2 00 01 02 10 11 000 001 010 0000")
GROWN = GrownTree(num_nodes=14, depth=4, width=3)
TAPS = (0, 1, 2)
DRAFTERS: dict[str, Any] = {
    "static": Eagle(HEAD, TREE),
    "grown": Eagle(HEAD, GROWN),
    "drawn": Eagle(HEAD, TREE, kind="without_replacement"),
    "window": Eagle(WINDOWED, GROWN),
    "window, static": Eagle(WINDOWED, TREE),
    "eagle 3": Eagle3(HEAD3, GROWN, taps=TAPS),
    "eagle 3, static": Eagle3(HEAD3, TREE, taps=TAPS),
}
TEXT = [5, 17, 3, 3, 40, 22, 17, 3]  # the last is the root


def params_of(drafter: Any) -> Params:
    return Params(WEIGHTS, drafter.init_params(jax.random.key(3), TARGET))


def state_after(drafter: Any, params: Params, tokens: list[int], root: int) -> Any:
    """As if the tokens had been one prompt chunk."""
    block = _tree.causal_block(jnp.array([tokens], jnp.int32))
    cache = TARGET.init_cache(1, 32)
    output = TARGET.forward(params.target, cache, block, drafter.taps)
    accepted = Accepted(
        block.tokens,
        output.features,
        jnp.array([len(tokens)], jnp.int32),
        jnp.array([root], jnp.int32),
    )
    return drafter.update(TARGET, params, drafter.init(1, 32), accepted)


def sampler_of(
    temperature: float, base: int, *, has_noise: bool, **options: Any
) -> Sampler:
    request = make_request(
        sd.Sampling(temperature=temperature, seed=9, **options), batch=1, vocab_size=61
    )
    return Sampler(
        options=request.options,
        keys=request.keys,
        base=jnp.array([base], jnp.int32),
        generated=jnp.zeros(1, jnp.int32),
        history=None,
        constraint=None,
        noise=request.keys if has_noise else None,
    )


def embed(drafter: Any, params: Params, tokens: list[int]) -> jax.Array:
    ids = jnp.array([tokens], jnp.int32)
    if drafter.config.own_embedding:
        return params.drafter["embedding"][ids]
    return TARGET.embed(params.target, ids)


def logits_along(
    drafter: Any, params: Params, state: Any, path: list[int]
) -> np.ndarray:
    """After the last of some drafted tokens: the head run on each in turn, all before
    it in the cache.
    """
    head = drafter.head(params.drafter)
    hidden, scratch = state.output[:, None], _levels.empty(state.cache)
    for depth, token in enumerate(path):
        embedded = embed(drafter, params, [token])
        hidden, scratch = _levels.read(
            head,
            embedded,
            hidden,
            state.cache,
            scratch,
            jnp.array([[depth]], jnp.int32),
            jnp.ones((1, 1, depth + 1), jnp.bool_),
        )
    logits = np.asarray(drafter.logits(TARGET, params, hidden))[0, 0]
    known = drafter.known(params.drafter)
    if known is None:
        return logits
    whole = np.full(TARGET.vocab_size, -np.inf, np.float32)
    whole[np.asarray(known)] = logits
    return whole


@pytest.mark.parametrize("name", some_slow(DRAFTERS, fast=("window", "drawn")))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_children_are_what_the_head_says_along_their_path(name, temperature):
    """The best of each node in order, under `match` with the noise of their position;
    of a grown tree, the likeliest paths of all that it looks at.
    """
    drafter = DRAFTERS[name]
    params = params_of(drafter)
    *tokens, root = TEXT
    state = state_after(drafter, params, tokens, root)
    is_drawn = drafter.kind != "points"
    sampler = sampler_of(temperature, len(tokens), has_noise=not is_drawn)
    draft, _ = drafter.draft(
        TARGET, params, state, jnp.array([root], jnp.int32), sampler
    )
    found, parents = np.asarray(draft.tokens)[0], np.asarray(draft.parents)[0]
    if is_drawn and temperature == 0:  # a law of one token
        only = [bool(x) for x in draft.valid[0]]
        assert only == [set(path) <= {"0"} for path in ["", *TREE.paths.split()]]
        return
    assert draft.valid.all()
    paths = np.asarray(_tree.paths(draft.parents, size=drafter.max_depth + 1))[0]
    for node in sorted(set(parents.tolist()) - {-1}):
        path = [int(found[n]) for n in paths[node] if n > 0]
        logits = logits_along(drafter, params, state, path)
        children = found[parents == node]
        law = logits - logits.max()
        law -= np.log(np.exp(law).sum())
        if is_drawn:
            assert draft.proposal is not None
            row = int(draft.proposal.row[0, np.flatnonzero(parents == node)[0]])
            if temperature:
                tempered = np.exp(law / temperature)
                np.testing.assert_allclose(
                    np.exp(draft.proposal.log_q[0, row]),
                    tempered / tempered.sum(),
                    atol=1e-5,
                )
            assert len(set(children.tolist())) == len(children)
            continue
        if temperature:
            at = len(tokens) + 1 + len(path)
            key = jax.random.fold_in(jax.random.fold_in(sampler.keys[0], 0), at)
            law = law / temperature + np.asarray(jax.random.gumbel(key, (61,)))
        order = np.argsort(-law, kind="stable")
        assert children.tolist() == order[: len(children)].tolist()


@pytest.mark.parametrize("name", some_slow(DRAFTERS, fast=("grown",)))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_text_with_and_without(name, temperature):
    """The drawn ones only where nothing is drawn."""
    drafter = DRAFTERS[name]
    params = params_of(drafter)
    prompts = [[1, 2, 3, 4, 5], [7], [9] * 20]
    is_drawn = drafter.kind != "points"
    if is_drawn and temperature:
        pytest.skip("another rule, another text of the same law")
    sampling = sd.Sampling(max_new_tokens=24, temperature=temperature, seed=4)
    rule = "rejection" if is_drawn else "match"
    fast = sd.generate(TARGET, params, drafter, prompts, sampling=sampling, rule=rule)
    plain = sd.generate(TARGET, params, sd.Plain(), prompts, sampling=sampling)
    assert [x.tolist() for x in fast.tokens] == [x.tolist() for x in plain.tokens]


def test_the_cache_holds_genuine_rows_only():
    """After any number of steps it is what one reading of the text would make."""
    drafter = DRAFTERS["grown"]
    params = params_of(drafter)
    sampling = sd.Sampling(max_new_tokens=15)
    generation = sd.generate(
        TARGET, params, drafter, [TEXT], sampling=sampling, max_length=32
    )
    text = [*TEXT, *generation.tokens[0].tolist()]
    fresh = state_after(drafter, params, text[:-1], text[-1])
    state = generation.state.drafter
    known = len(text) - 1
    assert state.cache.length.tolist() == fresh.cache.length.tolist() == [known]
    for ours, expected in zip(state.cache.keys, fresh.cache.keys, strict=True):
        np.testing.assert_allclose(
            ours[:, :, :known], expected[:, :, :known], atol=1e-4
        )
    np.testing.assert_allclose(state.output, fresh.output, atol=1e-4)


def logits_without_cache(
    drafter: Any, params: Params, tokens: list[int], path: list[int]
) -> np.ndarray:
    """After the last of some drafted tokens: all rows anew for each, and attention
    written down from what a window is.
    """
    *known, root = tokens
    block = _tree.causal_block(jnp.array([known], jnp.int32))
    cache = TARGET.init_cache(1, len(known))
    states = TARGET.forward(params.target, cache, block, drafter.taps).features
    following = [*known[1:], root]
    head, output = drafter.head(params.drafter), states
    for token in [None, *path]:
        if token is not None:
            following.append(token)
            states = jnp.concatenate([states, output[:, -1:]], axis=1)
        at = np.arange(len(following))
        gap = at[:, None] - at[None, :]
        window = drafter.config.window or len(at)

        def attend(layer, query, key, value, /, *, mask, window=None, scale=None):
            repeats = query.shape[2] // key.shape[2]
            key, value = (np.repeat(x[0], repeats, axis=1) for x in (key, value))
            scores = np.einsum("thd,shd->hts", query[0], key) / query.shape[-1] ** 0.5
            weights = np.where(mask, np.exp(scores), 0.0)
            weights /= weights.sum(-1, keepdims=True)
            read = np.einsum("hts,shd->thd", weights, value)
            return jnp.asarray(read, jnp.float32)[None]

        mask = (gap >= 0) & (gap < window)
        output = head(
            embed(drafter, params, following),
            states,
            jnp.asarray(at, jnp.int32)[None],
            functools.partial(attend, mask=mask),
        )
    return np.asarray(drafter.logits(TARGET, params, output[:, -1:]))[0, 0]


@pytest.mark.parametrize("name", ["grown", "window"])
def test_reading_is_that_of_all_rows_anew(name):
    """A window shorter than the text, and than text and path together."""
    drafter = DRAFTERS[name]
    params = params_of(drafter)
    *tokens, root = TEXT
    state = state_after(drafter, params, tokens, root)
    for path in ([], [8], [8, 30, 2, 2, 11]):
        np.testing.assert_allclose(
            logits_along(drafter, params, state, path),
            logits_without_cache(drafter, params, TEXT, path),
            atol=2e-5,
        )


def test_a_head_that_knows_few_tokens_proposes_no_other():
    """Its ids are the target's, ascending."""
    drafter = DRAFTERS["eagle 3"]
    params = params_of(drafter)
    known = jnp.sort(jax.random.permutation(jax.random.key(1), 61)[:30])
    head = params.drafter | {"tokens": known.astype(jnp.int32)}
    params = Params(WEIGHTS, head)
    *tokens, root = TEXT
    state = state_after(drafter, params, tokens, root)
    sampler = sampler_of(0.0, len(tokens), has_noise=True)
    draft, _ = drafter.draft(
        TARGET, params, state, jnp.array([root], jnp.int32), sampler
    )
    assert draft.valid.all()
    assert set(np.asarray(draft.tokens)[0, 1:].tolist()) <= set(known.tolist())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_is_banned_is_not_proposed_either(temperature):
    """Options are of the target's ids, whichever of them a head knows."""
    drafter = DRAFTERS["eagle 3"]
    params = params_of(drafter)  # the first 30
    *tokens, root = TEXT
    state = state_after(drafter, params, tokens, root)
    banned = tuple(range(1, 25))
    sampler = sampler_of(temperature, len(tokens), has_noise=True, banned_ids=banned)
    draft, _ = drafter.draft(
        TARGET, params, state, jnp.array([root], jnp.int32), sampler
    )
    assert draft.valid.all()
    assert set(np.asarray(draft.tokens)[0, 1:].tolist()) <= {0, *range(25, 30)}


@pytest.mark.parametrize("tree", [GROWN, pytest.param(TREE, marks=pytest.mark.slow)])
def test_a_head_that_knows_fewer_tokens_than_a_node_has_children(tree):
    """Each proposes what there is, and the text is the same."""
    drafter = Eagle3(dataclasses.replace(HEAD3, draft_vocab_size=2), tree, taps=TAPS)
    params = params_of(drafter)
    *tokens, root = TEXT
    state = state_after(drafter, params, tokens, root)
    sampler = sampler_of(0.0, len(tokens), has_noise=True)
    draft, _ = drafter.draft(
        TARGET, params, state, jnp.array([root], jnp.int32), sampler
    )
    valid, parents = np.asarray(draft.valid)[0], np.asarray(draft.parents)[0]
    found = np.asarray(draft.tokens)[0]
    for node in range(len(parents)):
        children = found[(parents == node) & valid].tolist()
        assert len(children) == len(set(children)) and set(children) <= {0, 1}
    sampling = sd.Sampling(max_new_tokens=12)
    fast = sd.generate(TARGET, params, drafter, [TEXT], sampling=sampling)
    plain = sd.generate(TARGET, params, sd.Plain(), [TEXT], sampling=sampling)
    assert fast.tokens[0].tolist() == plain.tokens[0].tolist()


def test_what_cannot_be():
    with pytest.raises(ValueError, match="a grown tree keeps children for what they"):
        Eagle(HEAD, GROWN, kind="without_replacement")
    with pytest.raises(ValueError, match="not \"iid\"|not 'iid'"):
        Eagle(HEAD, TREE, kind="iid")
    sampling = sd.Sampling(max_new_tokens=3)
    wide = Eagle(dataclasses.replace(HEAD, width=64), TREE)
    with pytest.raises(ValueError, match="states of 64 numbers.* target's have 48"):
        sd.generate(TARGET, params_of(wide), wide, [TEXT], sampling=sampling)
    with pytest.raises(ValueError, match="needs params.drafter, its own parameters"):
        sd.generate(
            TARGET, Params(WEIGHTS), DRAFTERS["grown"], [TEXT], sampling=sampling
        )
    shallow = Eagle3(HEAD3, GROWN, taps=(1, 2, 3))
    with pytest.raises(ValueError, match="taps layer 3, but the target has layers"):
        sd.generate(TARGET, params_of(shallow), shallow, [TEXT], sampling=sampling)


@pytest.mark.parametrize("drafter", [small.EAGLE, small.EAGLE3, small.DSPARK])
def test_a_head_may_be_narrower_than_its_target(drafter):
    """bfloat16 beside float32."""
    config = dataclasses.replace(drafter.config, dtype="bfloat16")
    drafter = dataclasses.replace(drafter, config=config)
    own = drafter.init_params(jax.random.key(0), small.TARGET)
    params = sd.Params(small.WEIGHTS, own)
    sampling = sd.Sampling(max_new_tokens=6)
    with jax.numpy_dtype_promotion("standard"):
        found, plain = (
            sd.generate(small.TARGET, params, way, [[1, 2, 3]], sampling=sampling)
            for way in (drafter, sd.Plain())
        )
    assert found.tokens[0].tolist() == plain.tokens[0].tolist()
