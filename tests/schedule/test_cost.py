"""The cost table: what it says, what it refuses, and that it comes back from a file."""

import json

import numpy as np
import pytest
from confident import costs

from specdec_jax.schedule import CostTable, Fingerprint, FixedWidth, Work

HERE = Fingerprint("1 × a chip", "Toy 1", "Head 2")


def test_measurements_become_monotone():
    table = CostTable.monotone(
        [1, 4], [1, 2, 4], [[1.0, 1.3, 1.2], [0.9, 1.5, 3.0]], [0.1, -0.01], HERE
    )
    assert table.verify == ((1.0, 1.3, 1.3), (1.0, 1.5, 3.0))
    assert table.draft == (0.1, 0.0)


def test_what_lies_between_costs_what_comes_next():
    table = CostTable((2, 8), (1, 4, 8), ((1.0, 2.0, 3.0), (2.0, 4.0, 9.0)), (0.5, 0.6))
    np.testing.assert_allclose(table.seconds(1, (1, 2, 4, 5)), [1.5, 2.5, 2.5, 3.5])
    np.testing.assert_allclose(table.seconds(3, (1, 8)), [2.6, 9.6])
    assert table.plain(2) == 1.0 and table.plain(8) == 2.0
    with pytest.raises(ValueError, match="ends at 8 rows, and this batch has 9"):
        table.plain(9)
    with pytest.raises(ValueError, match="ends at 8 tokens of a row.*a width of 9"):
        table.seconds(1, (1, 9))
    with pytest.raises(ValueError, match="ends at 8 tokens"):
        FixedWidth(9, table)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (((), (1, 2), (), ()), "needs ascending batches"),
        (((1,), (), ((),), (0.1,)), "needs ascending widths"),
        (((1,), (2, 1), ((1.0, 2.0),), (0.1,)), "needs ascending widths"),
        (((1,), (2, 4), ((1.0, 2.0),), (0.1,)), "the first width.*is 1"),
        (((1,), (1, 2), ((1.0,),), (0.1,)), "1 batches and 2 widths needs as many"),
        (((1,), (1, 2), ((1.0, 2.0),), ()), "as many numbers in draft"),
        (((1,), (1, 2), ((0.0, 0.0),), (0.1,)), "above 0"),
        (((1,), (1, 2), ((1.0, float("nan")),), (0.1,)), "above 0"),
        (((1,), (1, 2), ((1.0, 2.0),), (-0.1,)), ">= 0"),
        (((1,), (1, 2, 3), ((1.0, 3.0, 2.0),), (0.1,)), "cannot cost less"),
        (((1,), (1, 8), ((1.0, 1.0),), (0.1,)), r"is flat.*FixedWidth\(8\)"),
        (((1, 2), (1, 8), ((1.0, 1.005), (2.0, 2.0)), (0.1, 0.1)), "is flat"),
    ],
)
def test_tables_that_say_nothing(table, words):
    with pytest.raises(ValueError, match=words):
        CostTable(*table)


def test_there_and_back(tmp_path):
    table = CostTable.monotone([1], [1, 2], [[1.0, 1.5]], [0.1], HERE)
    table.save(tmp_path / "cost.json")
    found = CostTable.load(tmp_path / "cost.json")
    assert found == table and hash(found) == hash(table)
    bare = costs(1.0, 1.5)
    bare.save(tmp_path / "bare.json")
    assert CostTable.load(tmp_path / "bare.json") == bare


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: "not json", "is no cost table"),
        (lambda x: "[]", "is no cost table"),
        (lambda x: json.dumps({**x, "format": "other"}), "another format"),
        (lambda x: json.dumps({**x, "verify": 3}), "is no cost table"),
        (lambda x: json.dumps({k: x[k] for k in x if k != "draft"}), "is no cost tab"),
        (lambda x: json.dumps({**x, "verify": [[1.0, 1.0]]}), "cost.json.*flat"),
    ],
    ids=["text", "list", "format", "shape", "missing", "flat"],
)
def test_other_files(tmp_path, change, words):
    path = tmp_path / "cost.json"
    CostTable.monotone([1], [1, 2], [[1.0, 1.5]], [0.1]).save(path)
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(ValueError, match=words):
        CostTable.load(path)


def test_roofline():
    """Memory first, then arithmetic; 100 bytes and 1000 operations a second."""
    target, drafter = Work(weights=100, flops=50, cache=10), Work(weights=10, flops=5)
    table = CostTable.roofline(
        flops=1000,
        bandwidth=100,
        target=target,
        drafter=drafter,
        batches=(1, 8),
        widths=(1, 4, 32),
        passes=3,
        overhead=0.5,
    )
    np.testing.assert_allclose(table.verify, [[1.6, 1.6, 2.1], [2.3, 2.3, 13.3]])
    np.testing.assert_allclose(table.draft, [0.3, 0.3])
    assert table.fingerprint is None


def test_fingerprint():
    HERE.check(HERE)
    HERE.check(Fingerprint("", "Toy 1", "Head 2"))  # parameters that are no arrays yet
    with pytest.raises(ValueError, match="another device, 1 × a chip, not 2 × a chip"):
        HERE.check(Fingerprint("2 × a chip", "Toy 1", "Head 2"))
    with pytest.raises(ValueError, match="another drafter, Head 2, not Head 3"):
        HERE.check(Fingerprint("1 × a chip", "Toy 1", "Head 3"))
