"""Trees of a fixed shape, and trees that keep the likeliest paths."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax._grow import GrownTree, Pool, StaticTree, best, extend

# Of the authors' tree, by hand (Li et al. 2024, arXiv 2401.15077, Figure 9).
EAGLE_PARENTS = (
    -1, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 5, 5, 6, 6, 7, 7, 8, 13, 13, 13, 21, 21,
)  # fmt: skip


def test_the_authors_tree():
    tree = StaticTree()
    assert (tree.num_nodes, tree.max_depth) == (26, 5)
    assert tree.parents == EAGLE_PARENTS
    assert [len(level) for level in tree.levels] == [1, 4, 8, 8, 3, 2]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("", "needs a path"),
        ("0 1 1", "level by level"),
        ("1 0", "level by level"),
        ("0 00 1", "level by level"),
        ("0 10", "has '10', but not its parent"),
        ("0 2", "has '2', but not '1'"),
    ],
)
def test_what_is_no_tree(paths, message):
    with pytest.raises(ValueError, match=message):
        StaticTree(paths)


@pytest.mark.parametrize("sizes", [(1, 2, 3), (14, 2, 3), (5, 0, 3), (5, 2, 0)])
def test_what_cannot_be_grown(sizes):
    with pytest.raises(ValueError, match="num_nodes must be 2 …"):
        GrownTree(*sizes)


def pool_of(scores: list[float], parents: list[int]) -> Pool:
    tokens = jnp.arange(len(scores), dtype=jnp.int32)[None]
    return Pool(
        tokens, jnp.array([scores], jnp.float32), jnp.array([parents], jnp.int32)
    )


def test_the_likeliest_nodes_in_their_order():
    pool = pool_of([-1.0, -3.0, -1.5, -1.2, -9.0], [-1, -1, 0, 0, 1])
    chosen, parents, is_valid = best(pool, 3)
    assert chosen.tolist() == [[0, 2, 3]]
    assert parents.tolist() == [[0, 1, 1]] and is_valid.all()


def test_ties_go_to_the_parent():
    pool = pool_of([-1.0, -1.0, -1.0, -1.0], [-1, -1, 0, 2])
    chosen, parents, is_valid = best(pool, 2)
    assert chosen.tolist() == [[0, 1]] and parents.tolist() == [[0, 0]]
    assert is_valid.all()


def test_what_is_no_proposal_takes_no_part():
    """A NaN, and a path without mass: never a child of what is not there."""
    nan, none = float("nan"), -float("inf")
    pool = pool_of([-1.0, nan, none, nan, -2.0], [-1, -1, 0, 1, 0])
    chosen, parents, is_valid = best(pool, 4)
    kept = dict(zip(chosen[0].tolist(), is_valid[0].tolist(), strict=True))
    assert {node for node, valid in kept.items() if valid} == {0, 4}
    assert (np.asarray(parents)[0] < np.arange(1, 5)).all()


def test_random_pools_give_trees():
    """A child is never likelier than its parent; whatever else, it has one."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        pool, scores, parents = None, np.zeros(1), np.array([-1])
        for _ in range(3):
            gains = np.minimum(0, rng.integers(-3, 1, (len(scores), 3)))
            reached = (scores[:, None] + gains).ravel()
            new = (
                jnp.asarray(rng.integers(0, 9, (1, len(reached))), jnp.int32),
                jnp.asarray(reached[None], jnp.float32),
                jnp.asarray(np.repeat(parents, 3)[None], jnp.int32),
            )
            offset = 0 if pool is None else pool.tokens.shape[1]
            pool = Pool(*new) if pool is None else extend(pool, *new)
            keep = np.argsort(-reached, kind="stable")[:2]
            scores, parents = reached[keep], offset + keep
        assert pool is not None
        chosen, at, is_valid = best(pool, 6)
        assert is_valid.all()
        ids = chosen[0].tolist()
        assert ids == sorted(ids)
        for node, parent in enumerate(at[0].tolist(), start=1):
            assert parent < node
            above = int(pool.parents[0, ids[node - 1]])
            assert above == (-1 if parent == 0 else ids[parent - 1])
