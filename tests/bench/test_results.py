"""A file of results is gone on from, or left alone."""

import pytest

from specdec_jax.bench import begin

ARGUMENTS = {"model": "m", "batches": [1, 8], "temperatures": [0.0]}
GROUP = {"task": "a", "temperature": 0.0, "batch": 1, "part": 3, "runs": {}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "bench.json"
    results = begin(path, ARGUMENTS, {"cores": 2}, restart=False)
    results.groups.append(GROUP)
    results.left_out = {"a": 1}
    results.save(path, [])
    return path


def test_goes_on(file):
    """With the machine that it began on."""
    results = begin(file, dict(ARGUMENTS), {"cores": 4}, restart=False)
    assert results.done == {("a", 0.0, 1, 3)}
    assert results.machine == {"cores": 2} and results.left_out == {"a": 1}
    before = file.read_text()
    results.save(file, [])
    assert file.read_text() == before
    assert [path.name for path in file.parent.iterdir()] == ["bench.json"]


def test_other_arguments(file):
    other = ARGUMENTS | {"batches": [1], "model": "n"}
    with pytest.raises(
        ValueError, match=r"model m, now n; batches 1 8, now 1\).*--restart"
    ):
        begin(file, other, {}, restart=False)
    assert begin(file, other, {}, restart=True).groups == []


def test_no_folder(tmp_path):
    with pytest.raises(ValueError, match="there is no folder .*none for bench.json"):
        begin(tmp_path / "none" / "bench.json", ARGUMENTS, {}, restart=False)


@pytest.mark.parametrize("content", ["{}", "[1]", "no JSON", '{"kind": "other"}'])
def test_a_foreign_file_is_left_alone(tmp_path, content):
    """Even by --restart."""
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="is no file of specdec-jax bench"):
        begin(path, ARGUMENTS, {}, restart=True)
