"""The three rules on trees of at most five nodes, the answers visible.

That they leave the target's law as it was is proved in `test_lossless`.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import _verify
from specdec_jax._types import Draft, Proposal

pytestmark = pytest.mark.usefixtures("quick_compile")

match = jax.jit(_verify.match, static_argnames="size")
rejection, block = (
    jax.jit(x, static_argnames=("kind", "size"))
    for x in (_verify.rejection, _verify.block)
)

#     0       0       0
#    / \      |     / | \
#   1   3     1    1  2  3
#   |         |
#   2         2
FORK, CHAIN, STAR = [-1, 0, 1, 0], [-1, 0, 1], [-1, 0, 0, 0]


def draft_of(
    parents: list[int], tokens: Any, valid: Any = True, q: Any = None
) -> Draft:
    """One row of tokens per sequence, the root's included; `q` is what every node was
    drawn from, for all sequences.
    """
    tokens = np.atleast_2d(np.asarray(tokens, np.int32))
    tree = np.tile(np.array(parents, np.int32), (len(tokens), 1))
    is_valid = np.broadcast_to(np.asarray(valid), tokens.shape)
    proposal = None
    if q is not None:
        log_q = jnp.log(jnp.tile(jnp.asarray(q, jnp.float32), (len(tokens), 1, 1)))
        proposal = Proposal(log_q, jnp.zeros(tokens.shape, jnp.int32))
    return Draft(
        jnp.asarray(tokens), jnp.asarray(tree), jnp.asarray(is_valid), proposal
    )


def judge(rule, draft: Draft, p: Any, coins: Any, kind: str):
    """Path, length and law of what comes next; `p` is the target's after every node."""
    log_p = np.log(np.broadcast_to(p, (*draft.tokens.shape, len(p))))
    coins = jnp.asarray(np.broadcast_to(coins, draft.tokens.shape), jnp.float32)
    path, length, log_law = rule(
        draft,
        jnp.asarray(log_p, jnp.float32),
        coins,
        kind=kind,
        size=draft.tokens.shape[1],
    )
    return np.asarray(path), np.asarray(length), np.exp(log_law)


def judge_one(rule, draft: Draft, p: Any, coins: Any, kind: str):
    """The accepted nodes of the only row, and the next token's law."""
    path, length, law = judge(rule, draft, p, coins, kind)
    assert (path[0, length[0] :] == 0).all()  # unused slots
    return path[0, : length[0]].tolist(), law[0]


# --- match ----------------------------------------------------------------------------


def test_match_goes_as_deep_as_it_can():
    """The target says 5 after the root, then 6, then 7; four rows drafted otherwise."""
    tokens = [[9, 5, 6, 5], [9, 5, 1, 5], [9, 1, 6, 5], [9, 1, 6, 1]]
    said = jnp.array([[5, 6, 7, 8]] * 4, jnp.int32)
    path, length, following = match(draft_of(FORK, tokens), said, size=3)
    np.testing.assert_array_equal(path, [[0, 1, 2], [0, 1, 0], [0, 3, 0], [0, 0, 0]])
    np.testing.assert_array_equal(length, [3, 2, 2, 1])
    np.testing.assert_array_equal(following, [7, 6, 8, 5])


def test_match_follows_the_right_one_of_two_twins():
    """Nodes 1 and 2 are the same token, of the same path, so they say the same; only
    the second one's child is what they say.
    """
    twins = draft_of([-1, 0, 0, 1, 2], [[9, 5, 5, 1, 6]])
    said = jnp.array([[5, 6, 6, 7, 8]], jnp.int32)
    path, length, following = match(twins, said, size=4)
    np.testing.assert_array_equal(path, [[0, 2, 4, 0]])  # the fourth slot is unused
    assert (length[0], following[0]) == (3, 8)


def test_match_never_accepts_what_is_not_valid():
    """Nor what hangs on it, though every token is what the target says."""
    said = jnp.array([[5, 6, 7, 8]] * 3, jnp.int32)
    valid = [[True, False, True, True], [True, True, False, True], [True] * 4]
    draft = draft_of(FORK, [[9, 5, 6, 5]] * 3, valid=valid)
    path, length, following = match(draft, said, size=3)
    np.testing.assert_array_equal(path, [[0, 3, 0], [0, 1, 0], [0, 1, 2]])
    np.testing.assert_array_equal(length, [2, 2, 3])
    np.testing.assert_array_equal(following, [8, 6, 7])


def test_match_of_the_root_alone():
    """Plain decoding."""
    verdict = match(
        draft_of([-1], [[3], [4]]), jnp.array([[7], [8]], jnp.int32), size=1
    )
    np.testing.assert_array_equal(verdict.path, [[0], [0]])
    np.testing.assert_array_equal(verdict.length, [1, 1])
    np.testing.assert_array_equal(verdict.next, [7, 8])


# --- rejection ------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])), ids=str)
def test_star_of_three_points(order):
    """Points in any order, each tried against what is left of it."""
    p = np.array([0.4, 0.3, 0.2, 0.1])
    left, thresholds = 1.0, np.zeros(4)
    for child, token in enumerate(order, 1):
        thresholds[child] = p[token] / left
        left -= p[token]
    draft = draft_of(STAR, [0, *order])
    above = thresholds + 1e-6
    nodes, law = judge_one(rejection, draft, p, above, "points")
    assert nodes == [0]
    np.testing.assert_allclose(law, [1, 0, 0, 0], atol=1e-6)  # what was not drafted
    for child in (1, 2, 3):
        coins = above.copy()
        coins[child] -= 2e-6
        nodes, law = judge_one(rejection, draft, p, coins, "points")
        assert nodes == [0, child]
        np.testing.assert_allclose(law, p, atol=1e-6)  # the leaf's own


def test_the_twin_of_a_rejected_token():
    """i.i.d.: it has no probability left, but its rejection has a residual of its own.

    .2 .5 .3 less q = .6 .4 0 is 0 1/4 3/4; less q again it is 0 0 1.
    """
    draft = draft_of(STAR[:3], [0, 0, 0], q=[0.6, 0.4, 0.0])
    p = [0.2, 0.5, 0.3]
    assert judge_one(rejection, draft, p, [0, 0.33, 0], "iid")[0] == [0, 1]
    nodes, law = judge_one(rejection, draft, p, [0, 0.34, 0], "iid")
    assert nodes == [0]
    np.testing.assert_allclose(law, [0, 0, 1], atol=1e-6)


def test_siblings_are_drawn_from_what_earlier_ones_left():
    """Token 0, then token 2 of q = .5 .25 .25, hence of 0 .5 .5.

    .25 .45 .3 less q is 0 .8 .2, so token 2 is accepted below .4; less 0 .5 .5 it is
    0 1 0.
    """
    draft = draft_of(STAR[:3], [0, 0, 2], q=[0.5, 0.25, 0.25])
    p = [0.25, 0.45, 0.3]
    kind = "without_replacement"
    assert judge_one(rejection, draft, p, [0, 0.49, 0.99], kind)[0] == [0, 1]
    assert judge_one(rejection, draft, p, [0, 0.51, 0.39], kind)[0] == [0, 2]
    nodes, law = judge_one(rejection, draft, p, [0, 0.51, 0.41], kind)
    assert nodes == [0]
    np.testing.assert_allclose(law, [0, 1, 0], atol=1e-6)


def test_a_law_that_runs_out_of_tokens():
    """q is certain of token 0: there is no second child, whatever it says."""
    draft = draft_of(STAR[:3], [0, 0, 1], q=[1.0, 0.0, 0.0])
    p = [0.25, 0.5, 0.25]
    nodes, law = judge_one(rejection, draft, p, [0, 0.3, 0], "without_replacement")
    assert nodes == [0]
    np.testing.assert_allclose(law, [0, 2 / 3, 1 / 3], atol=1e-6)


def test_rejection_passes_over_what_is_not_valid():
    """Node 1 would be accepted, or leave a residual: neither happens. Node 2 hangs on
    it and is never reached. Node 3 is tried as if alone.
    """
    draft = draft_of(FORK, [0, 1, 1, 2], valid=[True, False, True, True])
    p = [0.5, 0.3, 0.2]
    assert judge_one(rejection, draft, p, [0, 0, 0, 0.19], "points")[0] == [0, 3]
    nodes, law = judge_one(rejection, draft, p, [0, 0, 0, 0.21], "points")
    assert nodes == [0]
    np.testing.assert_allclose(law, [0.625, 0.375, 0], atol=1e-6)


# --- block ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "ninths"), [(rejection, 10), (block, 11)], ids=["rejection", "block"]
)
def test_accepted_tokens_in_ninths(rule, ninths):
    """Two drafts of q = 2/3 1/3 for p = 1/3 2/3 (Sun et al. 2024): token by token 10/9
    are accepted, block by block 11/9; no rule exceeds 12/9. All thresholds are fourths,
    so four coins a node are all there are.
    """
    p, q = np.array([1, 2]) / 3, np.array([2, 1]) / 3
    coins = (np.arange(4) + 0.5) / 4
    cells = np.array(list(itertools.product([0, 1], [0, 1], coins, coins)))
    tokens, coin = np.zeros((64, 3), int), np.zeros((64, 3))
    tokens[:, 1:], coin[:, 1:] = cells[:, :2], cells[:, 2:]
    _, length, _ = judge(rule, draft_of(CHAIN, tokens, q=q), p, coin, "iid")
    weight = q[tokens[:, 1]] * q[tokens[:, 2]] / 16
    assert weight @ (length - 1) == pytest.approx(ninths / 9)
    both = np.minimum(np.outer(p, p), np.outer(q, q))
    assert np.minimum(p, q).sum() + both.sum() == pytest.approx(12 / 9)


def test_block_accepts_a_node_for_the_sake_of_the_next():
    """Drafts 0 1 of the same laws: the weights are 1/2 and 1/2 · 2, so both stand at
    any coin, though half the coins of `rejection` refuse the first.
    """
    draft = draft_of(CHAIN, [0, 0, 1], q=[2 / 3, 1 / 3])
    p = [1 / 3, 2 / 3]
    assert judge_one(rejection, draft, p, 0.51, "iid")[0] == [0]
    nodes, law = judge_one(block, draft, p, 0.99, "iid")
    assert nodes == [0, 1, 2]
    np.testing.assert_allclose(law, p, atol=1e-6)


@pytest.mark.parametrize("rule", [rejection, block], ids=["rejection", "block"])
def test_a_chain_ends_where_a_node_is_not_valid(rule):
    """What comes after it does not count, valid or not."""
    valid = [True, True, False, True]
    draft = draft_of([*CHAIN, 2], [0, 1, 1, 1], valid=valid, q=[0.2, 0.8])
    p = [0.6, 0.4]
    nodes, law = judge_one(rule, draft, p, 0.49, "iid")
    assert nodes == [0, 1]
    np.testing.assert_allclose(law, p, atol=1e-6)
    nodes, law = judge_one(rule, draft, p, 0.51, "iid")
    assert nodes == [0]
    np.testing.assert_allclose(law, [1, 0], atol=1e-6)


# --- both -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [rejection, block], ids=["rejection", "block"])
def test_a_residual_of_no_mass(rule):
    """p is below q by what the largest coin can tell, and nowhere above: back to p."""
    draft = draft_of(CHAIN[:2], [0, 0], q=[0.5, 0.5])
    coin = np.nextafter(np.float32(1), np.float32(0))
    nodes, law = judge_one(rule, draft, [0.499999, 0.5], coin, "iid")
    assert nodes == [0]
    np.testing.assert_allclose(law, [0.5, 0.5], atol=1e-5)


@pytest.mark.parametrize("rule", [rejection, block], ids=["rejection", "block"])
def test_the_root_alone(rule):
    """Plain decoding: the law is the root's own, in every row."""
    p = [0.1, 0.9]
    path, length, law = judge(rule, draft_of([-1], [[0], [1]]), p, 0.0, "points")
    np.testing.assert_array_equal(path, [[0], [0]])
    np.testing.assert_array_equal(length, [1, 1])
    np.testing.assert_allclose(law, [p, p], atol=1e-6)
