"""How much of a draft to verify, on the command line: `measure-cost`, `calibrate`,
`--schedule`.
"""

import dataclasses
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import write_tiny, write_tiny_block, write_tiny_head

import specdec_jax as sd
from specdec_jax.cli import main
from specdec_jax.cli._heads import HeadName, read_name
from specdec_jax.cli._measure_cost import usual_widths
from specdec_jax.schedule import Calibration, CostTable, Profile

pytestmark = pytest.mark.usefixtures("quick_compile")

PROMPT = "a cab fed"
TEXTS = ["a cab", "bad fed cab", "dead dead", "face a bee", "a", "deaf cab", "b", "fee"]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def head(path, tmp_path):
    """A folder of its own for each test: calibrations go there."""
    return write_tiny_block(tmp_path / "spark", sd.load(path).target)


@pytest.fixture
def costs(path, head, tmp_path):
    """A table with this machine's fingerprint, whose numbers make four tokens pay."""
    model = sd.load(path)
    drafter, weights = sd.load_drafter(head, model.target, model.params)
    params = sd.Params(model.params, weights)
    seconds = (1.0, 1.01, 1.02, 1.03, 1.04)
    file = tmp_path / "costs.json"
    return write_costs(file, model.target, params, drafter, seconds)


def write_costs(file, target, params, drafter, seconds):
    fingerprint = sd.schedule.Fingerprint.of(target, params, drafter)
    widths = tuple(range(1, len(seconds) + 1))
    CostTable((1,), widths, (seconds,), (0.01,), fingerprint, 0.0, 64).save(file)
    return file


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return file


@pytest.fixture
def run(path, capsys):
    """Run a command on the tiny model; exit status, standard output and error."""

    def run(*arguments: Any) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([*map(str, arguments), "--model", path])
        return stopped.value.code, *capsys.readouterr()

    return run


def drafting(head) -> tuple[Any, ...]:
    return "--drafter", "head", "--head", head


def answer(run, *arguments: Any) -> dict[str, Any]:
    status, out, err = run(
        "generate", PROMPT, "--max-new-tokens=24", "--json", *arguments
    )
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize(
    "word", ["width:2", "early-stop", "lagged-budget", "best-width"]
)
def test_the_text_stays(run, head, costs, word):
    """Whatever is verified; and the widths that were read are told."""
    plain = answer(run, "--drafter=plain")
    found = answer(run, *drafting(head), "--schedule", word, "--costs", costs)
    assert found["samples"][0]["tokens"] == plain["samples"][0]["tokens"]
    widths = found["stats"]["widths"]
    assert sum(widths.values()) == found["stats"]["steps"]
    assert set(widths) - {"1"}, widths
    assert word != "width:2" or set(widths) <= {"1", "2"}
    assert plain["stats"]["widths"] is None


def test_widths_are_shown(run, head):
    _, out, err = run("generate", PROMPT, *drafting(head), "--schedule=width:2",
                      "--max-new-tokens=8")  # fmt: skip
    assert "tokens read at once: 2 in" in err, (out, err)


def test_chat_takes_one(run, head, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a cab\n"))
    options = ("--slots=64", "--max-new-tokens=8")
    status, out, _ = run("chat", *options, *drafting(head), "--schedule=width:2")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a cab\n"))
    _, plain, _ = run("chat", *options, "--drafter=plain")
    assert status == 0 and out == plain


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--costs", "COSTS"), "--costs is for --schedule"),
        (("--schedule", "early-stop"), "give --costs a file"),
        (("--schedule", "width:x"), "there is no schedule 'width:x'"),
        (
            ("--schedule", "soon"),
            "no schedule 'soon': there are width:N, early",
        ),
        (("--schedule", "width:6"), "a width of 6, but .* has 5 nodes"),
        (
            ("--schedule", "best-width", "--costs", "COSTS", "--rule", "rejection"),
            "looks at all of a draft",
        ),
    ],
)
def test_what_is_refused(run, head, costs, options, words):
    options = [costs if x == "COSTS" else x for x in options]
    status, out, err = run("generate", PROMPT, *drafting(head), *options)
    assert (status, out) == (2, "")
    assert re.search(words, err), err


def test_who_says_nothing_is_refused(run, path, costs, tmp_path):
    """An EAGLE head reports no confidence; and the table is another drafter's."""
    eagle = write_tiny_head(tmp_path / "eagle", sd.load(path).target)
    options = ("--schedule", "early-stop", "--costs", costs)
    status, _, err = run("generate", PROMPT, *drafting(eagle), *options)
    assert status == 2 and "reports none" in err
    options = ("--schedule", "width:2", "--costs", costs)
    status, _, err = run("generate", PROMPT, *drafting(eagle), *options)
    assert status == 2 and "another drafter" in err


@pytest.mark.slow
def test_measure_cost(run, head, tmp_path, monkeypatch):
    """By rows and widths, with a fingerprint that the next command accepts."""
    file = tmp_path / "measured.json"
    status, out, err = run("measure-cost", *drafting(head), "--batches", 1, 2,
                           "--slots=64", "--output", file)  # fmt: skip
    if "flat" in err:  # on so small a model noise may be all there is
        pytest.skip(err)
    assert status == 0 and "read 5" in out and "Written" in err
    table = CostTable.load(file)
    assert table.batches == (1, 2) and table.widths == (1, 2, 4, 5)
    answer(run, *drafting(head), "--schedule=early-stop", "--costs", file)


def test_measure_cost_refused(run, head, tmp_path):
    status, _, err = run("measure-cost", *drafting(head), "--output",
                         tmp_path / "no" / "file.json")  # fmt: skip
    assert status == 2 and "there is no folder" in err
    status, _, err = run("measure-cost", "--drafter=plain", "--output", head / "x.json")
    assert status == 2 and "nothing to choose" in err
    status, _, err = run("measure-cost", *drafting(head), "--widths", 9, "--output",
                         tmp_path / "file.json")  # fmt: skip
    assert status == 2 and "widths must be 1 … 5" in err


def test_usual_widths():
    assert usual_widths(8) == [1, 2, 4, 8]
    assert usual_widths(7) == [1, 2, 4, 7]
    assert usual_widths(1) == [1]


@pytest.mark.slow
def test_calibrate(run, head, costs, prompts):
    """A file for each temperature beside the head; `generate` finds the one it needs,
    and says so where there is none.
    """
    options = ("--new-tokens=24", "--batch=3", "--loss=nll")
    status, out, err = run("calibrate", head, "--prompts", prompts,
                           "--temperatures", 0, 1, *options)  # fmt: skip
    assert status == 0, err
    assert out.count("depth 4") == 2 and "8 prompts" in out
    for temperature in (0.0, 1.0):
        profile = Profile("match", "points", temperature)
        assert len(Calibration.load(head, profile).temperatures) == 4
        assert profile.file_name in err
    scheduled = (*drafting(head), "--schedule=early-stop", "--costs", costs)
    command = ("generate", PROMPT, "--max-new-tokens=8", *scheduled)
    for temperature, is_missed in ((1.0, False), (0.5, True)):
        status, _, err = run(*command, "--temperature", temperature)
        assert status == 0
        assert ("beside the head: what it says" in err) is is_missed


def test_calibrate_refused(run, path, head, prompts, tmp_path):
    eagle = write_tiny_head(tmp_path / "eagle", sd.load(path).target)
    status, _, err = run("calibrate", eagle, "--prompts", prompts, "--new-tokens=8")
    assert status == 2 and "calibrated on chains" in err
    for option in ("--batch=0", "--max-prompt=0", "--temperatures"):
        status, _, err = run("calibrate", head, "--prompts", prompts, option)
        assert status == 2 and "at least 1, not 0" in err, err
        status, _, err = run("evaluate", head, "--prompts", prompts, option)
        assert status == 2 and "at least 1, not 0" in err, err
    options = ("--prompts", prompts, "--output", tmp_path / "no")
    status, _, err = run("calibrate", head, *options)
    assert status == 2 and "there is no folder" in err


def test_each_drafter_has_a_table(run, path, head, costs, prompts, tmp_path):
    """A narrow one of another drafter, given first, is not taken for this one's."""
    model = sd.load(path)
    other = (model.target, sd.Params(model.params), sd.NGram(num_nodes=2))
    narrow = write_costs(tmp_path / "narrow.json", *other, (1.0, 1.5))
    status, _, err = run(
        "bench", "--prompts", prompts, "--per-task=1", "--new-tokens=4", "--nodes=2",
        "--drafters", "ngram", f"head:{head}@width:4", "--costs", narrow, costs,
        "--output", tmp_path / "out.json",
    )  # fmt: skip
    assert status == 0, err


@pytest.mark.slow
def test_bench(run, head, costs, prompts, tmp_path):
    """Schedules beside fixed widths; and a prediction of what is verified whole."""
    name, output = f"head:{head}", tmp_path / "out.json"
    words = ("width:2", "early-stop", "best-width")
    command = ("bench", "--prompts", prompts, "--per-task=2", "--new-tokens=12",
               "--costs", costs, "--drafters", name,
               *(f"{name}@{word}" for word in words), "--output", output)  # fmt: skip
    status, out, err = run(*command)
    assert err.count("beside the head: what it says") == 2  # not for a fixed width
    assert status == 0, err
    results = json.loads(output.read_text())
    shown = {x["drafter"]: x for x in results["summary"]}
    assert list(shown) == ["spark", *(f"spark@{word}" for word in words)]
    for row in shown.values():
        assert row["same_text"] == row["rows"] == 2
    (cost,) = results["costs"]
    assert cost["drafter"] == "spark" and cost["nodes"] == 5
    tau = shown["spark"]["acceptance_length"]
    assert f"{tau * 1.0 / (0.01 + 1.04):.2f}" in out and "64 slots" in out
    status, _, err = run(*command)  # all is there: shown again
    assert status == 0, err
    profile = Profile("match", "points", 0.0)
    Calibration(profile, (1.0, 1.0, 1.0, 1.0)).save(head)
    status, _, err = run(*command)  # the schedules would be others
    assert status == 2 and "weighed" in err and "--restart" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("NAME@early-stop",), "give --costs"),
        (("NAME@early-stop", "--costs", "COSTS", "--profile"), "leave one of them out"),
        (("NAME@early-stop@width:2",), "two schedules"),
        (("NAME@early_stop",), "neither a tree .* nor a schedule .*early-stop"),
        (
            ("NAME@chain:2@early-stop", "--costs", "COSTS"),
            "written for this model, drafter and machine",
        ),
        (("NAME@chain:2", "--costs", "COSTS"), "measured with none of these drafters"),
        (("NAME", "--costs", "COSTS", "COSTS"), "another of --costs is of"),
        (("NAME", "--nodes=4"), "--nodes is not for heads"),
    ],
)
def test_bench_refused(run, head, costs, prompts, options, words):
    shown = {"COSTS": costs}
    options = [shown.get(x, x.replace("NAME", f"head:{head}")) for x in options]
    status, _, err = run("bench", "--prompts", prompts, "--drafters", *options)
    assert status == 2 and re.search(words, err), err


def test_a_table_that_is_narrow_predicts_nothing(run, head, costs, prompts, tmp_path):
    """It does not stop what has no schedule."""
    table = CostTable.load(costs)
    narrow = ((1.0, 1.01),)
    dataclasses.replace(table, widths=(1, 2), verify=narrow).save(costs)
    output = tmp_path / "out.json"
    status, _, err = run("bench", "--prompts", prompts, "--per-task=1", "--costs",
                         costs, "--new-tokens=4", "--drafters", f"head:{head}",
                         "--output", output)  # fmt: skip
    assert status == 0, err
    assert json.loads(output.read_text())["costs"] == []


def test_names():
    assert read_name("a/b") == HeadName(Path("a/b"))
    assert read_name("a/b@width:2@chain:3") == HeadName(
        Path("a/b"), "chain:3", "width:2"
    )
    assert read_name("a/b@width:2@chain:3").short == "b@chain:3@width:2"
    with pytest.raises(ValueError, match="two trees"):
        read_name("a@static@chain:2")


def test_a_mask_that_is_a_word(run, head):
    """An open slot of a block must not look like a token of a text."""
    file = head / "config.json"
    config = json.loads(file.read_text())
    config["dflash_config"]["mask_token_id"] = 0
    file.write_text(json.dumps(config))
    status, _, err = run("generate", PROMPT, *drafting(head))
    assert status == 2 and "its mask token 0 is a token of texts" in err
