"""`compile`, `info` and `fetch`: what they print, and what they refuse."""

import dataclasses
import json
import re
from typing import Any

import blocks
import pytest
from folders import (
    FAMILIES,
    SMALL,
    random_params,
    tensors_of,
    tiny_target,
    write_folder,
)
from heads import published
from tiny import write_tiny

import specdec_jax as sd
from specdec_jax import io, plan, targets
from specdec_jax.cli import _info, main
from specdec_jax.plan import _heads
from specdec_jax.plan._traffic import Collective, Traffic


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def shallow(monkeypatch):
    """Presets of two layers: the arithmetic is the same, and tracing is quicker; one of
    eight, for EAGLE-3's taps.
    """
    for name, config in targets.PRESETS.items():
        layers = 8 if name == "qwen3-8b" else 2
        monkeypatch.setitem(
            targets.PRESETS, name, config | {"num_hidden_layers": layers}
        )


@pytest.fixture
def run(capsys):
    """Run a command; exit status, standard output and error."""

    def run(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        return stopped.value.code, *capsys.readouterr()

    return run


def a_step(drafter: str, nodes: int, seconds: float) -> plan.Step:
    return plan.Step(
        drafter=drafter,
        nodes=nodes,
        drafter_weights=100_000_000 if drafter.startswith("Eagle") else 0,
        drafter_cache=17_000_000 if drafter.startswith("Eagle") else 0,
        compile_seconds=12.5,
        arguments=2_550_000_000,
        aliased=540_000_000,
        temporary=260_000_000,
        flops=275_000_000_000,
        traffic=Traffic(1_880_000_000, 540_000_000, 20_000_000, 60_000_000),
        ideal=2_400_000_000,
        ideal_half=2_130_000_000,
        collectives={"all-reduce": Collective(66, 66_000_000)},
        cache_copies=0,
        cache_copies_in_step=0,
        weight_copies=0,
        written_back=9,
        seconds=seconds,
    )


@pytest.fixture
def compiler(monkeypatch):
    """Stands in for the TPU's; what it was asked for."""
    asked: list[Any] = []

    def compile(model, target, drafters, topology, mesh, *, batch, slots, schedule):
        asked.append((drafters, mesh, batch, slots))
        widths = () if schedule is None else schedule.widths
        size = plan.sizes(target, batch=batch, slots=slots, mesh=mesh)
        steps = [
            a_step(type(x).__name__, x.num_nodes, 2e-3 if x.num_nodes == 1 else 2.5e-3)
            for x in drafters
        ]
        by_width = {width: 2e-3 + 1e-4 * width for width in widths}
        steps[0] = dataclasses.replace(steps[0], widths=by_width)
        return plan.Plan(model, topology, mesh, batch, slots, size, tuple(steps))

    monkeypatch.setattr(plan, "plan", compile)
    return asked


def test_compile(run, compiler):
    """Both steps beside each other, and the speed-up for every τ asked for."""
    status, out, err = run(
        "compile", "--mesh=data=2,model=4", "--nodes=8", "--tau=2", "--tau=3.5"
    )
    assert (status, err) == (0, "")
    ((drafters, mesh, batch, slots),) = compiler
    assert [x.num_nodes for x in drafters] == [8, 1]
    assert (mesh, batch, slots) == ({"data": 2, "model": 4}, 8, 4096)
    assert re.search(r"NGram, 8 nodes +plain", out)
    assert re.search(r"cache read +540\.00 MB +540\.00 MB", out)
    assert re.search(r"moved / ideal +1\.042 +1\.042", out)
    assert re.search(r"all-reduce +66 × 1\.00 MB +66 × 1\.00 MB", out)
    assert re.search(r"copies of the cache +none +none", out)
    assert re.search(r"a step takes at least +2\.50 ms +2\.00 ms", out)
    assert "τ 2: 1.60×   τ 3.5: 2.80×" in out


def test_compile_with_widths(run, compiler):
    """What a step costs where less of a draft is read."""
    options = ("--model=qwen3-8b", "--drafter=dspark", "--widths", "1", "4", "8")
    status, out, err = run("compile", *options)
    assert (status, err) == (0, "")
    assert re.search(r"if 1 are read of each row +2\.10 ms", out)
    assert re.search(r"if 8 are read of each row +2\.80 ms", out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--drafter=dflash", "--widths", "1", "4"),
            "it does not go with --drafter df",
        ),
        (("--drafter=dspark", "--widths", "2", "4"), "the first width of a cost table"),
        (("--drafter=dspark", "--widths", "1", "4", "3"), "needs ascending widths"),
    ],
)
def test_widths_refused(run, compiler, options, words):
    status, _, err = run("compile", "--model=qwen3-8b", *options)
    assert status == 2 and words in err and not compiler


def test_compile_as_json(run, compiler):
    status, out, err = run("compile", "--model=smollm2-135m", "--topology=v5e:1x1",
                           "--batch=1", "--slots=64", "--tau=2", "--json")  # fmt: skip
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["mesh"] == {"data": 1, "model": 1}
    assert found["topology"] == "v5e:1x1" and found["sizes"]["parameters"] > 35e6
    speculative, plain = found["steps"]
    assert (speculative["nodes"], plain["nodes"]) == (16, 1)
    assert speculative["traffic"]["total"] == 2_500_000_000
    assert speculative["collectives"]["all-reduce"] == {"times": 66, "bytes": 66000000}
    assert speculative["cache_copies"] == 0
    assert found["speed_up"] == {"2": pytest.approx(1.6)}


def test_compile_eagle3(run, compiler):
    """A head of the target's sizes, which knows the 32,000 most frequent tokens."""
    status, out, err = run("compile", "--model=qwen3-8b", "--drafter=eagle3",
                           "--nodes=20", "--depth=4", "--width=3")  # fmt: skip
    assert (status, err) == (0, "")
    ((drafters, _, _, _),) = compiler
    head, plain = drafters
    assert head.tree == sd.GrownTree(num_nodes=20, depth=4, width=3)
    assert head.taps == (1, 3, 4) and plain == sd.Plain()
    config = head.config
    assert (config.width, config.mlp_width, config.feature_width) == (
        4096,
        12288,
        12288,
    )
    assert (config.num_heads, config.num_kv_heads, config.head_width) == (32, 8, 128)
    assert (config.draft_vocab_size, config.num_layers) == (32000, 1)
    assert config.dtype == "bfloat16"
    assert re.search(r"Eagle3, 20 nodes +plain", out)
    assert re.search(r"drafter's weights +100\.00 MB +none", out)
    assert re.search(r"drafter's cache +17\.00 MB +none", out)


def test_compile_eagle(run, compiler):
    """Published trees have 60 nodes; the output layer is the target's."""
    assert run("compile", "--drafter=eagle")[0] == 0
    assert "drafter's" not in run("compile")[1]
    ((head, _), *_), _ = compiler
    assert head.tree == sd.GrownTree(num_nodes=60, depth=8, width=10)
    assert head.taps == ("final",) and head.config.mlp_width == 14336


@pytest.mark.parametrize("drafter", ["dflash", "dspark"])
def test_compile_a_block_drafter(run, compiler, drafter):
    """Five layers of the target's sizes, over five taps."""
    assert run("compile", "--model=qwen3-8b", f"--drafter={drafter}")[0] == 0
    ((head, _), *_), *_ = compiler
    config = head.config
    assert (config.width, config.num_layers, config.feature_width) == (4096, 5, 20480)
    assert head.taps == (1, 2, 3, 4, 5)
    assert head.num_nodes == {"dflash": 16, "dspark": 8}[drafter]
    assert (config.markov is None) == (drafter == "dflash")


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (32, 5, (1, 8, 15, 22, 29)),
        (40, 8, (1, 6, 11, 16, 22, 27, 32, 37)),
        (48, 5, (1, 12, 23, 34, 45)),
        (61, 6, (1, 12, 24, 35, 47, 58)),
    ],
)
def test_taps_of_block_drafters(layers, count, taps):
    """Of published ones (Chen et al. 2026)."""
    assert _heads._even_taps(layers, count) == taps


def test_compile_says_where_the_cache_is_whole(run, compiler):
    _, out, _ = run("compile", "--model=llama-3.3-70b", "--topology=v5e:4x4",
                    "--mesh=data=1,model=16")  # fmt: skip
    assert "8 kv heads do not divide over model=16: each of these 16 chips" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model=llama-4",), "no preset is called 'llama-4'; known are gemma-3-12b"),
        (("--topology=v5e:3x3",), "v5e comes in slices of 1x1, 2x2"),
        (("--mesh=8",), "--mesh takes data=N,model=M, like data=1,model=8, not '8'"),
        (("--mesh=data=1,model=2",), "is a mesh of 2 chips, but v5e:2x4 has 8"),
        (("--batch=0",), "--batch and --slots must be at least 1"),
        (("--drafter=plain", "--nodes=4"), "--nodes does not go with --drafter plain"),
        (("--depth=4",), "--depth is of the trees of eagle and eagle3: it does not go"),
        (("--drafter=plain", "--width=4"), "does not go with --drafter plain"),
        (("--drafter=eagle", "--depth=0"), "--depth and --width must be at least 1"),
        (
            ("--drafter=eagle", "--nodes=8", "--depth=2", "--width=2"),
            "--nodes 8: a tree of --depth 2 and --width 2 has 2 … 7 nodes",
        ),
        (("--drafter=eagle", "--nodes=1"), "--nodes 1: a tree of --depth 8 and"),
        (
            ("--model=qwen3-8b", "--drafter=eagle3", "--width=40000"),
            "--width 40000: the head knows 32,000 tokens only",
        ),
        (
            ("--drafter=dspark", "--nodes=4"),
            "--nodes does not go with --drafter dspark",
        ),
        (("--drafter=dflash", "--depth=4"), "does not go with --drafter dflash"),
        (("--drafter=eagle3",), "a model of 2 layers is too shallow"),
        (("--nodes=0",), "NGram needs num_nodes >= 1"),
        (("--tau=0.5",), "--tau is at least 1"),
        (("--batch=16000",), "has 16 GB, but with data=1,model=8 it is to hold"),
        (("--slots=4000000",), "is outside 1 … 131072, the positions that"),
    ],
)
def test_compile_refuses(run, arguments, message):
    """One line on standard error, before anything compiles."""
    status, out, err = run("compile", *arguments)
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1


def test_info_of_a_preset(run):
    """Bytes follow from its shapes, without weights."""
    status, out, err = run("info", "llama-3.1-8b", "--batch=2", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    layer = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096
    assert found["parameters"] == 2 * layer + 2 * 128256 * 4096 + 4096
    assert found["weight_bytes"] == 2 * found["parameters"]
    assert found["cache_bytes_per_token"] == 2 * 2 * 8 * 128 * 2
    assert found["cache_bytes"] == 2 * 4096 * found["cache_bytes_per_token"]
    assert found["architecture"]["kv_heads"] == 8
    assert found["needed_bytes"] > found["weight_bytes"] + found["cache_bytes"]
    assert found["device"]["source"] == "memory of the host"


def test_info_as_a_table(run, monkeypatch):
    device = _info.Device("a chip", 1_000_000_000, "memory")
    monkeypatch.setattr(_info, "_device", lambda: device)
    status, out, _ = run("info", "qwen3-30b-a3b")
    assert status == 0
    assert re.search(r"experts +128", out)
    assert re.search(r"cache per token +4\.10 kB", out)
    assert re.search(r"memory \(a chip\) +1\.00 GB: not enough", out)
    assert "1.00 GB: enough" in run("info", "smollm2-135m")[1]
    assert re.search(r"layers with window +2", run("info", "gemma-3-12b")[1])


def test_info_of_files(run, tmp_path):
    """A GGUF file and a Hugging Face folder: the configuration alone is read."""
    path = str(write_tiny(tmp_path / "tiny.gguf"))
    found = json.loads(run("info", path, "--max-length=64", "--json")[1])
    assert found["architecture"]["layers"] == 2 and found["max_length"] == 64
    target = tiny_target("qwen3")
    tensors = tensors_of(target, random_params(target))
    folder = write_folder(tmp_path / "qwen3", SMALL | FAMILIES["qwen3"], tensors)
    found = json.loads(run("info", str(folder), "--dtype=float32", "--json")[1])
    assert found["parameters"] == sum(x.size for x in tensors.values())
    assert found["weight_bytes"] == 4 * found["parameters"]
    assert found["max_length"] == 256


def test_info_of_a_head(run, tmp_path):
    """As its folder says it."""
    config, tensors = published("speculators")
    path = str(write_folder(tmp_path / "a", config, tensors))
    status, out, _ = run("info", path, "--json")
    found = json.loads(out)
    assert status == 0 and found["head_of"] == "EAGLE-3"
    assert found["taps_after_layers"] == [1, 3, 4] and found["window"] == 4
    assert found["vocabulary"] == 13 and found["target_vocabulary"] == 61
    sizes = {k: x.size for k, x in tensors.items() if k not in ("d2t", "t2d")}
    assert found["parameters"] == sum(sizes.values())
    status, out, _ = run("info", path)
    assert status == 0 and re.search(r"taps after layers +1, 3, 4", out)
    status, out, _ = run(
        "info", str(write_folder(tmp_path / "b", *published("eagle3")))
    )
    assert re.search("not said: those of the authors", out)


@pytest.mark.parametrize("name", blocks.PUBLISHED)
def test_info_of_a_block_drafter(run, tmp_path, name):
    path = blocks.write(tmp_path / "head", name)
    status, out, err = run("info", str(path), "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    drafter, _ = sd.load_drafter(path, blocks.TARGET, blocks.WEIGHTS)
    assert found["head_of"] == type(drafter).__name__
    assert found["drafts"] == drafter.max_depth
    assert found["taps_after_layers"] in (None, list(drafter.taps))
    assert run("info", str(path))[0] == 0


def test_info_refuses(run):
    status, out, err = run("info", "no-such-model")
    assert (status, out) == (2, "") and "gemma3-270m, smollm2-135m-instruct" in err
    status, out, err = run("info", "smollm2-135m", "--max-length=9000")
    assert (status, out) == (2, "") and "made for 8,192 positions" in err


def test_lists(run, monkeypatch, tmp_path):
    """Without a name, both say which there are."""
    monkeypatch.setenv("SPECDEC_JAX_CACHE", str(tmp_path))
    status, out, _ = run("info")
    assert status == 0
    assert all(name in out for name in [*io.MODELS, *targets.PRESETS])
    assert json.loads(run("info", "--json")[1])["presets"] == list(targets.PRESETS)
    file = tmp_path / io.MODELS["gemma3-270m"].file
    file.write_bytes(b"")
    status, out, _ = run("fetch")
    assert status == 0 and str(file) in out and "not fetched yet" in out
    listed = json.loads(run("fetch", "--json")[1])["models"]
    assert {"model": "gemma3-270m", "path": str(file)} in listed


def test_fetch(run, monkeypatch, tmp_path):
    """The path alone on standard output."""
    monkeypatch.setattr(io, "fetch", lambda name: tmp_path / f"{name}.gguf")
    path = str(tmp_path / "some.gguf")
    assert run("fetch", "some") == (0, f"{path}\n", "")
    assert json.loads(run("fetch", "some", "--json")[1])["path"] == path


def test_fetch_refuses(run):
    status, out, err = run("fetch", "some")
    assert (status, out) == (2, "") and "no model is called 'some'; known are" in err
