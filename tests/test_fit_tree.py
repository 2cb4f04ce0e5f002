"""Static trees fitted to measured rates, against every tree there is."""

import math

import numpy as np
import pytest

import specdec_jax as sd


def value(rates: np.ndarray, paths: list[str]) -> float:
    """Tokens that a tree accepts on average."""
    return sum(
        math.prod(rates[depth, int(rank)] for depth, rank in enumerate(path))
        for path in paths
    )


def every_tree(depths: int, ranks: int, count: int) -> set[frozenset[str]]:
    """All trees of `count` nodes, the root not among them."""
    trees = {frozenset[str]()}
    for _ in range(count):
        trees = {
            tree | {parent + str(rank)}
            for tree in trees
            for parent in ("", *tree)
            for rank in range(ranks)
            if len(parent) < depths
            and parent + str(rank) not in tree
            and (rank == 0 or parent + str(rank - 1) in tree)
        }
    return trees


def random_rates(seed: int, depths: int, ranks: int) -> np.ndarray:
    """Not always in the order of ranks, some zero."""
    random = np.random.default_rng(seed)
    rates = random.dirichlet(np.ones(ranks + 1), depths)[:, :ranks]
    return rates * (random.random(rates.shape) < 0.8)


@pytest.mark.parametrize("sizes", [(3, 2), (2, 3), (6, 1), (3, 3)])
@pytest.mark.parametrize("num_nodes", [2, 4, 5, 7])
def test_no_tree_is_better(sizes, num_nodes):
    depths, ranks = sizes
    trees = every_tree(depths, ranks, num_nodes - 1)
    for seed in range(10):
        rates = random_rates(seed, depths, ranks)
        tree = sd.fit_tree(rates, num_nodes=num_nodes)
        assert tree.num_nodes == num_nodes and tree.max_depth <= depths
        best = max(value(rates, list(paths)) for paths in trees)
        assert value(rates, tree.paths.split()) == pytest.approx(best)


def test_rates_in_order_take_the_best_node_that_is_left():
    rates = np.array([[0.6, 0.2, 0.1], [0.5, 0.25, 0.1], [0.5, 0.2, 0.0]])
    # Worth 0.6, 0.3, 0.2, 0.15 (twice), 0.1 …
    assert sd.fit_tree(rates, num_nodes=6).paths == "0 1 00 01 000"
    assert sd.fit_tree(rates[:2], num_nodes=5).paths == "0 1 00 01"


def test_an_elder_sibling_comes_along():
    """Where the second guess is the better one, the first is a price to pay."""
    rates = np.array([[0.1, 0.7], [0.1, 0.6]])
    assert sd.fit_tree(rates, num_nodes=3).paths == "0 1"
    assert sd.fit_tree(rates, num_nodes=5).paths == "0 1 10 11"


def test_many_nodes():
    """As large as published ones; rates in order, so the best nodes one by one."""
    rates = np.sort(random_rates(0, 7, 10), axis=1)[:, ::-1]
    tree = sd.fit_tree(rates, num_nodes=60)
    paths: list[str] = []
    while len(paths) < 59:
        options = {
            parent + str(sum(x[:-1] == parent for x in paths))
            for parent in ("", *paths)
            if len(parent) < 7
        }
        fits = [path for path in options if int(path[-1]) < 10]
        paths.append(max(fits, key=lambda path: value(rates, [path])))
    assert value(rates, tree.paths.split()) == pytest.approx(value(rates, paths))


@pytest.mark.parametrize(
    ("rates", "num_nodes", "message"),
    [
        (np.ones((2, 11)) / 11, 4, "at most 10 ranks"),
        (np.ones(3) / 3, 4, "a table of depths"),
        (np.array([[0.1, 1.2]]), 2, "between 0 and 1"),
        (np.array([[-0.1, 0.2]]), 2, "between 0 and 1"),
        (np.array([[np.nan, 0.2]]), 2, "between 0 and 1"),
        (np.ones((2, 2)) / 2, 8, "must be 2 … 7, not 8"),
        (np.ones((2, 2)) / 2, 1, "must be 2 … 7, not 1"),
    ],
)
def test_what_cannot_be_fitted(rates, num_nodes, message, unchecked):
    with pytest.raises(ValueError, match=message):
        sd.fit_tree(rates, num_nodes=num_nodes)
