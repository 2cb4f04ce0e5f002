"""Rates by depth and rank, of drafters that are always right at one rank."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import Oracle

import specdec_jax as sd

pytestmark = pytest.mark.usefixtures("quick_compile")

TOY = sd.Toy()
TABLE = TOY.init_params(jax.random.key(0))
PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6])
FULL = sd.StaticTree("0 1 00 01 10 11 000 001 010 011 100 101 110 111")


@dataclasses.dataclass(frozen=True)
class Turned(Oracle):
    """Puts its second guess first."""

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        tokens, gains, law = super()._children(
            target, params, sampler, outputs, paths, count, slot
        )
        return jnp.flip(tokens, -1), jnp.flip(gains, -1), law


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_ranks(rank):
    drafter = (Oracle, Turned)[rank](tree=FULL)
    sampling = sd.Sampling(temperature=[0.0, 0.7, 1.0], max_new_tokens=[9, 18, 26])
    rates = sd.measure_acceptance(
        TOY, sd.Params(TABLE), drafter, PROMPTS, sampling=sampling
    )
    np.testing.assert_array_equal(rates, np.eye(2)[[rank] * 3])
    chain = sd.fit_tree(rates, num_nodes=4 + 3 * rank)
    path = str(rank) * 3
    assert path in chain.paths.split()


@pytest.mark.slow
def test_a_chain_of_rates_is_its_acceptance_length():
    """τ is 1 + the sum of their products."""
    near = TOY.init_params(jax.random.key(1))["logits"]
    params = sd.Params(TABLE, {"logits": TABLE["logits"] + 0.5 * near})
    drafter = Oracle(tree=sd.StaticTree("0 00 000 0000"))
    sampling = sd.Sampling(max_new_tokens=200)
    case = TOY, params, drafter, PROMPTS[:1]
    rates = sd.measure_acceptance(*case, sampling=sampling)
    assert rates.shape == (4, 1)
    length = 1 + np.cumprod(rates[:, 0]).sum()
    stats = sd.generate(*case, sampling=sampling).stats
    # A token that the limit cuts off was right or wrong all the same.
    assert abs(length - stats.acceptance_length()) < 4 / int(stats.steps[0])
