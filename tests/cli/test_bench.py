"""`specdec-jax bench` on a tiny model."""

import json
import sys

import pytest
from tiny import write_tiny, write_tiny_head

import specdec_jax as sd
from specdec_jax import bench as measuring
from specdec_jax.cli import main

pytestmark = pytest.mark.usefixtures("quick_compile")

TEXTS = {"x": ["a cab", "bad fed cab"], "y": ["dead " * 3, "a", "face" * 125]}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def prompts(tmp_path):
    rows = [
        {"id": f"{task}/{i}", "task": task, "turns": [text, "and?"]}
        for task, texts in TEXTS.items()
        for i, text in enumerate(texts)
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture
def run(path, prompts, tmp_path, capsys, monkeypatch):
    """Exit status, standard output and error, and the results that were written."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments: str):
        output = tmp_path / "out.json"
        fixed = ["--prompts", str(prompts), "--model", path, "--output", str(output)]
        with pytest.raises(SystemExit) as stopped:
            main(["bench", *fixed, "--new-tokens=12", *arguments])
        results = json.loads(output.read_text()) if output.exists() else None
        return stopped.value.code, *capsys.readouterr(), results

    return run


@pytest.mark.slow
def test_bench(run, path, monkeypatch):
    """Every drafter on every task, at every temperature and batch size."""
    monkeypatch.setattr(sys, "argv", ["specdec-jax", "bench", "as it was typed"])
    drafters = ["--drafters", "ngram", f"draft-model:{path}", "--nodes=4"]
    status, out, err, results = run(
        *drafters, "--temperatures", "0", "0.8", "--batches", "2"
    )
    assert status == 0 and "out.json" in err
    assert len(results["groups"]) == 2 * 2
    assert results["left_out"] == [{"y": 1}]
    assert "Left out as too long: 1 prompt (1 of y)" in out
    for temperature in ("0", "0.8"):
        assert f"temperature {temperature}, batch 2" in out
    assert len(results["summary"]) == 2 * 3 * 2
    for row in results["summary"]:
        assert row["same_text"] == row["rows"]
        if row["drafter"] != "ngram":  # the model itself: all but the cut is kept
            assert row["acceptance_length"] > 2
    assert results["machine"]["command"] == "specdec-jax bench 'as it was typed'"
    assert results["arguments"]["prompts"] == "prompts.jsonl"


def test_a_head(run, path, tmp_path):
    """From its folder; random, it is rarely right, and the text is the same."""
    head = write_tiny_head(tmp_path / "head", sd.load(path).target)
    options = ("--tasks", "x", "--per-task=1", "--drafters")
    status, _, _, results = run(*options, f"head:{head}")
    (summary,) = results["summary"]
    assert status == 0 and summary["drafter"] == head.name
    assert summary["same_text"] == summary["rows"] == 1
    (tmp_path / "out.json").unlink()
    status, _, err, _ = run(*options, f"head:{tmp_path}")
    assert status == 2 and "config.json" in err


def test_heads_of_one_name(run, path, tmp_path):
    """Two folders that are called the same are told apart by their paths."""
    target = sd.load(path).target
    heads = [str(write_tiny_head(tmp_path / x / "head", target)) for x in ("a", "b")]
    options = ("--tasks", "x", "--per-task=1", "--drafters", "ngram")
    names = [f"head:{x}" for x in heads]
    status, _, _, results = run(*options, *names, f"{names[0]}@chain:2")
    assert status == 0
    shown = [row["drafter"] for row in results["summary"] if row["task"] == "x"]
    assert shown == ["ngram", *names, "head@chain:2"]


def test_resumes(run, monkeypatch):
    """Ctrl-C loses nothing; the same command goes on; another one is refused."""
    measure, calls = measuring.measure, []

    def interrupted(group, *arguments, **more):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(group.key)
        return measure(group, *arguments, **more)

    monkeypatch.setattr(measuring, "measure", interrupted)
    status, out, err, results = run("--batches", "1")
    assert (status, out) == (130, "") and "2 of 4 batches" in err
    before = results["groups"]
    monkeypatch.setattr(measuring, "measure", measure)
    status, _, _, results = run()  # the default
    assert status == 0 and results["groups"][:2] == before
    assert len(results["groups"]) == 4
    status, _, err, _ = run("--per-task", "1")
    assert status == 2 and "per_task 10, now 1" in err and "--restart" in err
    status, _, _, results = run("--per-task", "1", "--restart")
    assert status == 0 and len(results["groups"]) == 2


@pytest.mark.slow
def test_pictures_profile_and_synthetic(run, tmp_path):
    """What was measured already is only drawn."""
    options = ("--drafters", "plain", "--synthetic-acceptance=1", "--tasks", "x")
    status, out, _, results = run(*options)
    assert status == 0 and "synthetic 1 is no drafter" in out
    (summary,) = results["summary"]
    assert summary["drafter"] == "synthetic 1" and summary["acceptance_length"] > 4
    status, out, err, results = run(*options, "--plot", "--profile")
    assert status == 0 and "one step, milliseconds" in out
    assert [x["drafter"] for x in results["profile"]] == ["plain", "synthetic 1"]
    for name in ("speed", "histogram", "depth"):
        picture = tmp_path / f"out-{name}.png"
        assert picture.name in err
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafters", "eagle9"], "there is no drafter 'eagle9'"),
        (["--drafters", "draft-model:"], "there is no drafter 'draft-model:'"),
        (["--drafters", "head:"], "there is no drafter 'head:'"),
        (["--drafters", "draft-model:none.gguf"], "there is neither a file"),
        (["--drafters", "ngram", "ngram"], "--drafters has ngram twice"),
        (["--tasks", "z"], "there is no task 'z': there are x, y"),
        (["--per-task=0"], "--per-task must be at least 1"),
        (["--new-tokens=1"], "--new-tokens must be at least 2"),
        (["--batches", "0"], "--batches must be at least 1"),
        (["--temperatures", "-1"], "--temperatures must be 0 or above"),
        (["--temperatures", "nan"], "--temperatures must be 0 or above"),
        (["--max-prompt=3"], "all 5 prompts have more than 3 tokens"),
        (["--synthetic-acceptance=2"], "must be in [0, 1], not 2"),
        (
            ["--synthetic-acceptance=0.5", "--temperatures", "1"],
            "goes with --temperatures 0 only",
        ),
        (["--nodes=0"], "NGram needs num_nodes >= 1"),
    ],
)
def test_errors(run, arguments, message):
    """One line, and nothing was written."""
    status, out, err, results = run(*arguments)
    assert (status, out, results) == (2, "", None)
    assert message in err and "Traceback" not in err


def test_bad_prompts(run, prompts):
    prompts.write_text('{"prompt": "a"}\n{"prompt"')
    status, _, err, _ = run()
    assert status == 2 and "line 2 is no JSON" in err
    prompts.unlink()
    status, _, err, _ = run()
    assert status == 2 and "No such file" in err


def test_without_matplotlib(run, monkeypatch):
    """Said before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err, results = run("--plot")
    assert (status, results) == (2, None)
    assert "pip install 'specdec-jax[plot]'" in err
