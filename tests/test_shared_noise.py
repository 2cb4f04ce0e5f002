"""What it brings to draft by the noise that the target will say its tokens by."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import some_slow
from oracle import Oracle

import specdec_jax as sd

pytestmark = pytest.mark.usefixtures("quick_compile")

TOY = sd.Toy()
TABLE = TOY.init_params(jax.random.key(0))
OTHER = TOY.init_params(jax.random.key(1))
NEAR = {"logits": TABLE["logits"] + 0.5 * OTHER["logits"]}
TREES = {
    "chain": sd.StaticTree("0 00 000"),
    "static": sd.StaticTree("0 1 00 01 10 000"),
    "grown": sd.GrownTree(num_nodes=7, depth=3, width=3),
}


@dataclasses.dataclass(frozen=True)
class Deaf(Oracle):
    """Ranks by what it thinks of the tokens alone."""

    def _children(self, target, params, sampler, outputs, paths, count, slot):
        sampler = sampler._replace(noise=None)
        return super()._children(target, params, sampler, outputs, paths, count, slot)


@pytest.mark.parametrize("tree", some_slow(TREES, fast=("chain",)))
def test_more_is_accepted(tree):
    """At the temperatures of sampled text, and the text is the same."""
    prompts = np.random.default_rng(0).integers(0, 13, (16, 3))
    sampling = sd.Sampling(temperature=[0.8, 1.0] * 8, seed=2, max_new_tokens=60)
    heard, deaf = (
        sd.generate(
            TOY, sd.Params(TABLE, NEAR), kind(tree=TREES[tree]), prompts,
            sampling=sampling,
        )
        for kind in (Oracle, Deaf)
    )  # fmt: skip
    assert [x.tolist() for x in heard.tokens] == [x.tolist() for x in deaf.tokens]
    by_row = [x.stats.acceptance_length_by_row() for x in (heard, deaf)]
    for temperature in (0, 1):
        one, other = (x[temperature::2].mean() for x in by_row)
        assert one > 1.2 * other
