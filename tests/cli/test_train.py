"""From prompts to a drafter that answers, on the command line."""

import json
from pathlib import Path

import pytest
import tiny

from specdec_jax import cli

pytestmark = pytest.mark.usefixtures("quick_compile")

RECIPE = """
from specdec_jax import Eagle3, GrownTree
from specdec_jax.nn import Eagle3Config
from specdec_jax.train import Data, Evaluation, Optimizer, Recipe, TrainingTimeTest

recipe = Recipe(
    target={model!r},
    drafter=Eagle3(
        Eagle3Config(
            width=16, num_heads=2, num_kv_heads=2, head_width=8, mlp_width=32,
            feature_width=32, draft_vocab_size=32,
        ),
        tree=GrownTree(num_nodes=3, depth=2, width=1),
        taps=(0, 1),
    ),
    objective=TrainingTimeTest(steps=2),
    data=Data(length=64, rows=2, held_out=2),
    optimizer=Optimizer(warmup=2),
    evaluation=Evaluation(every=4, prompts=2, new_tokens=8),
    steps=4,
)
"""


def run(*arguments: object):
    with pytest.raises(SystemExit) as exit:
        cli.main([str(x) for x in arguments])
    return exit.value.code


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model, prompts, and a recipe in a folder of its own."""
    folder = tmp_path_factory.mktemp("train")
    model = tiny.write_tiny(folder / "tiny.gguf")
    rows = [
        {"id": str(i), "task": task, "prompt": f"{task} {i}"}
        for task in ("add", "tell")
        for i in range(4)
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    (folder / "prompts.jsonl").write_text(lines)
    (folder / "head").mkdir()
    recipe = folder / "head" / "recipe.py"
    recipe.write_text(RECIPE.format(model=str(model)))
    return folder


@pytest.mark.slow
def test_from_prompts_to_a_drafter(place, capsys):
    prompts, model = place / "prompts.jsonl", place / "tiny.gguf"
    corpus, recipe = place / "corpus", place / "head" / "recipe.py"
    new = ("--max-new-tokens", 24)
    assert (
        run(
            "regenerate",
            "--prompts",
            prompts,
            "--output",
            corpus,
            "--own",
            2,
            "--model",
            model,
            "--batch",
            4,
            *new,
        )
        == 0
    )
    assert "10 texts" in capsys.readouterr().out

    files, out = ("--data.corpus", corpus / "*.npz"), ("--output", place / "run")
    assert run("train", recipe, *files, *out) == 0
    said = capsys.readouterr()
    assert "best τ" in said.out and "data.length" in said.err
    for name in ("metrics.jsonl", "recipe.json", "curves.png", "checkpoints"):
        assert (place / "run" / name).exists()

    assert run("train", recipe, *files, *out, "--optimizer.peak", 0.1) == 2
    assert "optimizer.peak was 0.001, is 0.1" in capsys.readouterr().err
    assert run("train", recipe, *files, *out, "--no-such", 1) == 2
    assert "--no-such" in capsys.readouterr().err

    head = place / "exported"
    of_run = ("--run", place / "run", "--format", "specforge")
    assert run("export", recipe, head, *of_run) == 0
    assert run("export", recipe, head, *of_run) == 2
    assert "holds config.json and model.safetensors already" in capsys.readouterr().err

    numbers = place / "evaluated.json"
    files = ("--prompts", prompts, "--model", model, "--output", numbers)
    ask = ("evaluate", head, *files, "--new-tokens", 8, "--per-task", 3)
    hot = ("--temperatures", 0, 0.8)
    assert run(*ask, "--trees", "chain:2", *hot) == 0
    saved = json.loads(numbers.read_text())
    saved["trees"]["chain:2"][0]["prompts"] = 12345
    numbers.write_text(json.dumps(saved))
    assert run(*ask, "--trees", "chain:2", "grown:4,2,2", *hot) == 0
    assert "kept by depth" in capsys.readouterr().out
    found = json.loads(numbers.read_text())["trees"]
    assert found["chain:2"] == saved["trees"]["chain:2"]  # not measured again
    tasks = [(x["task"], x["temperature"]) for x in found["chain:2"]]
    assert tasks == [(t, x) for x in (0.0, 0.8) for t in ("add", "tell", "all tasks")]
    for row in found["grown:4,2,2"]:
        assert 1 <= row["low"] <= row["tau"] <= row["high"] <= 3

    assert run(*ask, "--max-prompt", 50) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "other arguments (max_prompt None, now 50)" in said
    assert run(*ask, "--output", prompts) == 2
    assert "no file of specdec-jax evaluate" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "{place}/none.py"], "there is no recipe"),
        (["train", "{place}/head/recipe.py"], "there is no corpus: name the .npz"),
        (
            ["train", "{place}/head/recipe.py", "--data.corpus", "{place}/*.npy"],
            "there is no corpus",
        ),
        (["export", "{place}/head/recipe.py", "{place}/x"], "holds no run"),
        (["regenerate", "--output", "{place}/c"], "name --prompts, a jsonl file, or"),
        (
            [
                "evaluate",
                "{place}",
                "--prompts",
                "{place}/prompts.jsonl",
            ],
            "No such file or directory",
        ),
    ],
)
def test_what_cannot_be(place, capsys, arguments, said):
    assert run(*(x.format(place=place) for x in arguments)) == 2
    assert said in " ".join(capsys.readouterr().err.split())
