"""Tree algebra, against trees that one can draw and against a walk in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import _tree
from specdec_jax._types import Draft

pytestmark = pytest.mark.usefixtures("quick_compile")

paths = jax.jit(_tree.paths, static_argnames="size")
depths, ancestors, path_tokens, draft_block, causal_block = (
    jax.jit(x)
    for x in (
        _tree.depths,
        _tree.ancestors,
        _tree.path_tokens,
        _tree.draft_block,
        _tree.causal_block,
    )
)

# Three trees of five nodes:   0      0       0
#                             / \     |    / | | \
#                            1   3    1   1  2 3  4
#                            |   |    |
#                            2   4    2-3-4
PARENTS = np.array([[-1, 0, 1, 0, 3], [-1, 0, 1, 2, 3], [-1, 0, 0, 0, 0]], np.int32)


def test_depths():
    np.testing.assert_array_equal(
        depths(PARENTS),
        [[0, 1, 2, 1, 2], [0, 1, 2, 3, 4], [0, 1, 1, 1, 1]],
    )


def test_ancestors_include_the_node_itself():
    above = np.asarray(ancestors(PARENTS))
    np.testing.assert_array_equal(
        above[0],
        [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 0, 0, 1, 0],
            [1, 0, 0, 1, 1],
        ],
    )
    np.testing.assert_array_equal(above[1], np.tri(5))


def test_paths():
    found = np.asarray(paths(PARENTS, size=4))
    np.testing.assert_array_equal(
        found[0],
        [
            [0, -1, -1, -1],
            [0, 1, -1, -1],
            [0, 1, 2, -1],
            [0, 3, -1, -1],
            [0, 3, 4, -1],
        ],
    )
    # Node 4 of the chain is deeper than there are slots: it keeps the top of its path.
    np.testing.assert_array_equal(found[1, 3:], [[0, 1, 2, 3], [0, 1, 2, 3]])


def test_path_tokens():
    tokens = jnp.array([[7, 5, 6, 5, 9], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0]], jnp.int32)
    found = path_tokens(tokens, paths(PARENTS, size=3))
    np.testing.assert_array_equal(
        found[0], [[7, -1, -1], [7, 5, -1], [7, 5, 6], [7, 5, -1], [7, 5, 9]]
    )
    # Token 0 is a token; -1 is none.
    np.testing.assert_array_equal(found[2, 1], [0, 0, -1])


def test_chain():
    np.testing.assert_array_equal(_tree.chain(2, 4), [[-1, 0, 1, 2]] * 2)
    np.testing.assert_array_equal(_tree.chain(1, 1), [[-1]])


def test_blocks():
    """A draft shows each node its path; a chain of a draft is a causal block."""
    tokens = jnp.arange(15, dtype=jnp.int32).reshape(3, 5)
    valid = jnp.ones((3, 5), jnp.bool_)
    block = draft_block(Draft(tokens, jnp.asarray(PARENTS), valid))
    np.testing.assert_array_equal(block.tokens, tokens)
    np.testing.assert_array_equal(block.depths, depths(PARENTS))
    np.testing.assert_array_equal(block.mask, ancestors(PARENTS))
    causal = causal_block(tokens)
    np.testing.assert_array_equal(causal.tokens, tokens)
    np.testing.assert_array_equal(causal.depths[1], block.depths[1])
    np.testing.assert_array_equal(causal.mask[1], block.mask[1])


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5, 9, 16, 17])
def test_random_trees(num_nodes):
    """Sizes on either side of the powers of two, at which one squaring more is due."""
    random = np.random.default_rng(num_nodes)
    parents = np.full((7, num_nodes), -1, np.int32)
    for node in range(1, num_nodes):
        parents[:, node] = random.integers(0, node, 7)
    parents[0] = np.arange(-1, num_nodes - 1)  # the deepest there is
    expected = np.full((7, num_nodes, num_nodes), -1)
    for row in range(7):
        for node in range(num_nodes):
            path = [node]
            while path[0] != 0:
                path.insert(0, parents[row, path[0]])
            expected[row, node, : len(path)] = path
    np.testing.assert_array_equal(paths(parents, size=num_nodes), expected)
    np.testing.assert_array_equal(depths(parents), (expected >= 0).sum(-1) - 1)
