"""A table of the machine at hand, and who may use it."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import NEAR, PROMPTS, TABLE, TOY
from confident import Confident, tables

import specdec_jax as sd
from specdec_jax import _measure_cost
from specdec_jax.schedule import BestWidth, FixedWidth

pytestmark = pytest.mark.usefixtures("quick_compile")

DRAFTER = Confident(TOY, 4)
PARAMS = sd.Params(TABLE, tables(NEAR["logits"], np.full(TOY.num_contexts, 0.7)))


def slowly(*args):
    """As long as the step says: a tenth of a second a token, a twentieth to draft."""
    program, *_ = args
    width = program.schedule.width
    return _measure_cost._STEPS * (0.1 * max(width, 1) + 0.05 * (width > 0))


def measure(**options):
    options = {"batches": [1, 2], "widths": [2, 4], "slots": 64, "rounds": 1} | options
    return sd.measure_cost(TOY, PARAMS, DRAFTER, **options)


@pytest.fixture(scope="module")
def real():
    """Steps of a toy cost what they cost; a slow clock is added so that it is not
    flat.
    """
    timed, said = _measure_cost._timed, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _measure_cost, "_timed", lambda *args: timed(*args) + 100 * slowly(*args)
        )
        return measure(report=said.append), said


def test_a_table_of_real_steps(real):
    table, said = real
    assert table.batches == (1, 2) and table.widths == (1, 2, 4)
    np.testing.assert_allclose(table.verify, [[10, 20, 40]] * 2, rtol=0.2)
    np.testing.assert_allclose(table.draft, [5, 5], rtol=0.3)
    assert table.fingerprint is not None and "Confident" in table.fingerprint.drafter
    assert len(said) == 2 and said[0].startswith("1 rows: verify ")


def test_the_parts_of_a_step(monkeypatch):
    monkeypatch.setattr(_measure_cost, "_timed", slowly)
    table = measure()
    np.testing.assert_allclose(table.verify, [[0.1, 0.2, 0.4]] * 2)
    np.testing.assert_allclose(table.draft, [0.05, 0.05])


def test_a_flat_machine_is_refused(monkeypatch):
    monkeypatch.setattr(_measure_cost, "_timed", lambda *args: 1.0)
    with pytest.raises(ValueError, match="this cost table is flat"):
        measure()


def test_bad_measurements():
    with pytest.raises(ValueError, match="widths must be 1 … 4, the nodes of"):
        measure(widths=[5])
    with pytest.raises(ValueError, match="a batch and a round at least"):
        measure(batches=[])


def test_who_may_use_it(real):
    """The machine, the models and the shapes that it was measured with."""
    table, _ = real
    sampling = sd.Sampling(max_new_tokens=4)

    def use(schedule, target=TOY, drafter=DRAFTER, params=PARAMS, prompts=PROMPTS[:2]):
        sd.generate(
            target, params, drafter, prompts, sampling=sampling, schedule=schedule
        )

    use(BestWidth(table))
    use(FixedWidth(4, table))
    assert table.fingerprint is not None
    elsewhere = dataclasses.replace(table.fingerprint, device="1 × another chip")
    with pytest.raises(ValueError, match="another device, 1 × another chip, not 1 ×"):
        use(BestWidth(dataclasses.replace(table, fingerprint=elsewhere)))
    with pytest.raises(ValueError, match="another target"):
        use(BestWidth(table), target=sd.Toy(vocab_size=7, max_length=128))
    with pytest.raises(ValueError, match="another drafter"):
        use(BestWidth(table), drafter=Confident(TOY, 5))
    with pytest.raises(ValueError, match="ends at 2 rows, and this batch has 3"):
        use(BestWidth(table), prompts=PROMPTS)
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), PARAMS)
    sd.compile(
        TOY, abstract, DRAFTER, batch=2, max_length=64, schedule=FixedWidth(2, table)
    )
