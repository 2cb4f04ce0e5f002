"""The self-checks: they pass what is right and fail what is not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec_jax as sd
from specdec_jax import _check, nn, targets
from specdec_jax._options import make_request
from specdec_jax._rescore import next_scores
from specdec_jax._types import Block, TargetOutput

TOY = sd.Toy()
DECODER = targets.ModuleTarget(
    nn.Decoder,
    nn.DecoderConfig(
        vocab_size=31,
        width=16,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_width=8,
        mlp_width=32,
        max_length=64,
    ),
)


@dataclasses.dataclass(frozen=True)
class Broken(sd.Toy):
    """A target that breaks one rule of the contract."""

    fault: str = ""

    def forward(self, params, cache, block: Block, taps) -> TargetOutput:
        if self.fault == "sees its siblings":
            block = block._replace(mask=jnp.ones_like(block.mask))
        if self.fault == "reads unused slots":
            cache = cache._replace(length=jnp.full_like(cache.length, 16))
        output = super().forward(params, cache, block, taps)
        if self.fault == "taps the wrong layer":
            output = output._replace(features=jnp.roll(output.features, 1, axis=-1))
        return output


@pytest.mark.parametrize("target", [TOY, DECODER], ids=["toy", "decoder"])
def test_a_good_target_passes(target):
    found = sd.check_target(target, target.init_params(jax.random.key(0)))
    assert max(found.values()) < 1e-4


@pytest.mark.parametrize(
    "fault", ["sees its siblings", "reads unused slots", "taps the wrong layer"]
)
def test_a_broken_target_does_not(fault):
    target = Broken(fault=fault)
    with pytest.raises(ValueError, match="breaks its contract"):
        sd.check_target(target, target.init_params(jax.random.key(0)))


SAMPLING = sd.Sampling(
    max_new_tokens=24,
    temperature=[0.9, 0.0],
    top_p=0.9,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.1,
)
PROMPTS = [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("schedule", "least", "most"), [(None, 3, 4), (sd.schedule.FixedWidth(2), 1.5, 2)]
)
def test_speculation_is_found_lossless(schedule, least, most):
    """And no more is accepted than a schedule verifies."""
    params = DECODER.init_params(jax.random.key(0))
    report = sd.check_lossless(
        DECODER,
        sd.Params(params, params),
        sd.DraftModel(DECODER, num_nodes=4),
        PROMPTS,
        sampling=SAMPLING,
        schedule=schedule,
    )
    assert report.is_lossless and report.tokens == 48
    assert least < report.acceptance_length <= most


def test_a_lossy_generate_is_found_out(monkeypatch):
    """Every draft accepted: what comes out is the drafter's, and the gap says so."""
    params = sd.Params(TOY.init_params(jax.random.key(0)))
    right = _check.generate

    def lossy(target, params, drafter, prompts, **options):
        generation = right(target, params, sd.Plain(), prompts, **options)
        if not isinstance(drafter, sd.Plain):
            wrong = generation.tokens[1].copy()
            wrong[7] = (wrong[7] + 1) % 13
            generation.tokens[1] = wrong
        return generation

    monkeypatch.setattr(_check, "generate", lossy)
    report = sd.check_lossless(TOY, params, sd.NGram(), PROMPTS, sampling=SAMPLING)
    assert not report.is_lossless
    assert [(d.row, d.position) for d in report.divergences] == [(1, 7)]
    assert report.divergences[0].gap > 1e-3


class Sparse(nn.Decoder):
    """A module of one's own, which does not say what it embeds, or what it is told to
    keep to itself.
    """

    hidden: int = -1

    def __call__(self, tokens, positions, attend, tap):
        def some(layer, x):
            if layer not in (-1, self.hidden):
                tap(layer, x)

        return super().__call__(tokens, positions, attend, some)


class Silent(Sparse):
    hidden = 1


def test_what_a_module_has_to_show():
    target = dataclasses.replace(DECODER, module=Sparse)
    params = target.init_params(jax.random.key(0))
    assert sd.check_target(target, params)["embedding tap"] == 0
    silent = dataclasses.replace(DECODER, module=Silent)
    with pytest.raises(ValueError, match=r"Silent does not show.*layers \[1\] make"):
        sd.check_target(silent, params)


@pytest.mark.parametrize("row", [0, 1])
def test_scores_are_those_that_plain_decoding_picks_by(row):
    params = sd.Params(DECODER.init_params(jax.random.key(0)))
    plain = sd.generate(DECODER, params, sd.Plain(), PROMPTS, sampling=SAMPLING)
    both = make_request(SAMPLING, batch=2, vocab_size=31)
    request = jax.tree.map(lambda x: x[row : row + 1], both)
    for at in (0, 9, 23):
        said = plain.tokens[row][:at]
        scores = next_scores(DECODER, params, request, PROMPTS[row], said, 64)
        assert np.argmax(scores) == plain.tokens[row][at]
