"""The command line on a tiny model: what it prints where, and how it exits."""

import dataclasses
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from tiny import END, POSITIONS, TOKENS, write_tiny, write_tiny_head

import specdec_jax as sd
from specdec_jax.cli import _demo, main
from specdec_jax.cli._cases import CASES
from specdec_jax.cli._chat import next_prompt
from specdec_jax.cli._transcript import Transcript

pytestmark = pytest.mark.usefixtures("quick_compile")

COLOUR = "\x1b[3"  # how escape sequences of colours begin
NEW = 24


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    """Whatever runs the tests: no terminal, and wide enough for any message."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="module")
def model(path):
    return sd.load(path)


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
    return str(write_tiny_head(tmp_path_factory.mktemp("head") / "eagle", model.target))


@pytest.fixture
def run(path, capsys):
    """Run a command on the tiny model; exit status, standard output and error."""

    def run(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([*arguments, "--model", path])
        return stopped.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def talk(run, monkeypatch):
    """`chat` with these lines typed."""

    def talk(*lines: str, options: tuple[str, ...] = ()) -> tuple[Any, str, str]:
        typed = "".join(f"{line}\n" for line in lines)
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        limit = f"--max-new-tokens={NEW}"
        return run("chat", "--slots=64", limit, *options)

    return talk


def turns(*texts: str) -> list[dict[str, str]]:
    """A conversation that a user begins."""
    roles = ("user", "assistant") * len(texts)
    return [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]


def expected(model, prompt: list[int], **options: Any) -> sd.Generation:
    options = {"max_new_tokens": NEW, "stop_ids": model.tokenizer.stop_ids} | options
    return sd.generate(
        model.target,
        sd.Params(model.params),
        sd.Plain(),
        [prompt],
        sampling=sd.Sampling(**options),
        max_length=256,
    )


def expected_text(model, *texts: str, **options: Any) -> str:
    """The answer to a conversation, by plain decoding of all of it."""
    prompt = model.tokenizer.encode_chat(turns(*texts))
    return model.tokenizer.decode(expected(model, prompt, **options).tokens[0])


def test_generate(run, model):
    """The text alone on standard output, numbers beside it, no escape sequences."""
    status, out, err = run("generate", "a cab", f"--max-new-tokens={NEW}")
    assert (status, out) == (0, expected_text(model, "a cab") + "\n")
    assert re.search(r"24 tokens in \d+\.\d\d s: \d+\.\d tokens/s", err)
    assert re.search(r"τ \d\.\d\d tokens per verification", err)
    assert re.search(r"loading .* compiling .* prompt of 24 tokens", err)
    assert re.search(r"drafts kept +at least +where proposed +exactly", err)
    assert "\x1b" not in out + err and "drafted by" not in err


@pytest.mark.parametrize("drafter", ["plain", "ngram", "draft-model", "head"])
def test_json(run, path, head, model, drafter):
    """One object, the same text whatever drafts, and who supplied each token."""
    own = {
        "draft-model": ["--draft-model", path, "--nodes=3"],
        "head": ["--head", head, "--tree=grown:5,2,2"],
    }.get(drafter, [])
    options = ["--max-new-tokens=24", "--logprobs=model", "--json"]
    status, out, err = run("generate", "a cab", "--drafter", drafter, *own, *options)
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert list(answer) == [
        "prompt", "samples", "stats", "seconds", "tokens_per_second", "device",
        "versions",
    ]  # fmt: skip
    prompt = model.tokenizer.encode_chat(turns("a cab"))
    assert answer["prompt"] == {"text": "a cab", "tokens": prompt}
    (sample,) = answer["samples"]
    wanted = expected(model, prompt)
    assert sample["tokens"] == wanted.tokens[0].tolist()
    assert sample["text"] == model.tokenizer.decode(wanted.tokens[0])
    assert sample["reason"] == "length"
    assert len(sample["logprobs"]) == NEW and max(sample["logprobs"]) <= 0
    stats, drafted = answer["stats"], sample["suppliers"].count("draft")
    assert set(sample["suppliers"]) <= {"draft", "target"}
    if drafter != "head":  # a random head may never be right
        assert (drafted > 0) == (drafter != "plain")
    assert stats["steps"] == NEW - drafted == sum(stats["histogram"])
    assert stats["acceptance_length"] == pytest.approx(NEW / stats["steps"])
    assert 1 + sum(stats["acceptance_by_depth"]) == pytest.approx(NEW / stats["steps"])
    assert len(stats["conditional_acceptance"]) == len(stats["acceptance_by_depth"])
    assert set(answer["seconds"]) == {"load", "compile", "prompt", "decode"}
    assert answer["versions"]["jax"] == jax.__version__


def test_every_sampling_option(run, model):
    """Each option arrives where it should."""
    options = {
        "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1,
        "seed": 5, "min_new_tokens": 3,
    }  # fmt: skip
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    lists = ["--bias=68=2.5", "--bias=70=-1", "--banned=69", "--stop-id=71"]
    lists += [f"--allowed={token}" for token in range(60, 80)]
    status, out, _ = run("generate", "a cab", "--no-chat", "--json", *flags, *lists)
    wanted = expected(
        model,
        model.tokenizer.encode("a cab"),
        **options,
        max_new_tokens=128,
        bias={68: 2.5, 70: -1.0},
        banned_ids=[69],
        allowed_ids=range(60, 80),
        stop_ids=[END, 71],
    )
    assert status == 0
    assert json.loads(out)["samples"][0]["tokens"] == wanted.tokens[0].tolist()


def test_where_a_prompt_comes_from(run, model, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text("é cab")
    limit = f"--max-new-tokens={NEW}"
    wanted = expected_text(model, "é cab") + "\n"
    assert run("generate", "--file", str(tmp_path / "prompt.txt"), limit)[1] == wanted
    monkeypatch.setattr(sys, "stdin", io.StringIO("é cab"))
    assert run("generate", "-", limit)[1] == wanted
    system = [{"role": "system", "content": "bad"}, *turns("é cab")]
    wanted = expected(model, model.tokenizer.encode_chat(system)).tokens[0]
    out = run("generate", "é cab", "--system", "bad", limit)[1]
    assert out == model.tokenizer.decode(wanted) + "\n"


def test_samples(run):
    """Each has its title and its own text, the first as if it were alone."""
    options = ("a cab", "--temperature=1", "--top-k=4", f"--max-new-tokens={NEW}")
    status, out, err = run("generate", *options, "--samples=3")
    texts = out.splitlines()
    assert status == 0 and len(set(texts)) == 3
    assert "Sample 1 of 3" in err and "Sample 3 of 3" in err
    assert run("generate", *options)[1] == texts[0] + "\n"


def test_stop_string(run, model):
    """The text ends before it, and none of it was shown."""
    whole = expected_text(model, "a cab")
    stop = whole[9:13]
    status, out, err = run("generate", "a cab", "--stop", stop)
    assert (status, out) == (0, whole[: whole.index(stop)] + "\n")
    assert "ended by: stop_string" in err


@pytest.mark.parametrize("no_color", [False, True])
def test_colours(run, model, monkeypatch, no_color):
    """On a terminal drafted tokens are green, unless NO_COLOR is set."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    _, out, err = run("generate", "a cab", f"--max-new-tokens={NEW}")
    assert (COLOUR in out) == (not no_color)
    assert ("drafted by" in err) == (not no_color)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert text == expected_text(model, "a cab") + "\n"


def test_a_terminal_gets_no_control_characters(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    escape = f"--allowed={188 + 27}"  # in the vocabulary, byte n < 33 is 188 + n
    _, out, _ = run("generate", "a cab", escape, "--max-new-tokens=2")
    assert re.sub(r"\x1b\[[0-9;]*m", "", out) == r"\x1b\x1b" + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a prompt, - for standard input, or --file"),
        (("a", "--file=a"), "give a prompt, - for standard input, or --file"),
        (("a", "--bias=7"), "--bias takes ID=VALUE, like 42=-1.5, not '7'"),
        (("a", "--longest=2", "--drafter=plain"), "--longest does not go with"),
        (("a", "--draft-model=b"), "--draft-model does not go with --drafter ngram"),
        (("a", "--drafter=draft-model"), "needs --draft-model"),
        (("a", "--head=b"), "--head does not go with --drafter ngram"),
        (
            ("a", "--tree=chain:2", "--drafter=plain"),
            "--tree does not go with --drafter",
        ),
        (("a", "--drafter=head"), "--drafter head needs --head"),
        (("a", "--nodes=0"), "NGram needs num_nodes >= 1"),
        (("a", "--system=b", "--no-chat"), "--system needs --chat"),
        (("a", "--temperature=-1"), "temperature must be >= 0"),
        (("a", "--max-new-tokens=600"), "beyond the 512 positions"),
        (("a", "--max-length=40"), "raise max_length to 148"),
        (("a", "--samples=0"), "samples must be a whole number, at least 1"),
        (("a", "--file-that-is-no-option"), "nrecognized options"),
        (("a", "--rule=best"), "invalid choice"),
    ],
)
def test_errors(run, arguments, message):
    """One line on standard error, status 2."""
    status, out, err = run("generate", *arguments)
    assert (status, out) == (2, "")
    assert message in err and "Traceback" not in err


def test_error_of_the_model(run, tmp_path, capsys):
    """Status 1 where the model's numbers fail; --debug raises."""
    broken = str(write_tiny(tmp_path / "nan.gguf", weight=float("nan")))
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "a", "--model", broken])
    assert stopped.value.code == 1
    assert "error: row 0 ended after 0 tokens" in capsys.readouterr().err
    with pytest.raises(sd.GenerationError):
        main(["generate", "a", "--model", broken, "--debug"])
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "a", "--model", str(tmp_path / "none.gguf")])
    assert stopped.value.code == 2
    assert "there is neither a file" in capsys.readouterr().err


def test_no_chat_template(run, tmp_path, model, capsys):
    """A model without one continues the prompt."""
    path = str(write_tiny(tmp_path / "base.gguf", template=None))
    with pytest.raises(SystemExit):
        main(["generate", "a cab", f"--max-new-tokens={NEW}", "--model", path])
    wanted = expected(model, model.tokenizer.encode("a cab")).tokens[0]
    assert capsys.readouterr().out == model.tokenizer.decode(wanted) + "\n"
    with pytest.raises(SystemExit) as stopped:
        main(["chat", "--model", path])
    assert stopped.value.code == 2
    assert "no chat template" in capsys.readouterr().err


def test_compiled_programs_are_kept(tmp_path):
    """In the cache folder, unless the user has chosen another."""
    program = """
import jax
from specdec_jax.cli._main import set_up_jax

set_up_jax()
print(jax.config.values["jax_compilation_cache_dir"])
"""
    chosen = str(tmp_path / "chosen")
    for more, folder in (
        ({}, str(tmp_path / "xla")),
        ({"JAX_COMPILATION_CACHE_DIR": chosen}, chosen),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"SPECDEC_JAX_CACHE": str(tmp_path)} | more,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == folder + "\n"


def test_nobody_reads_on():
    """`specdec-jax --help | head -1` ends quietly."""
    program = "from specdec_jax.cli import main; main(['--help'])"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_version_and_help(capsys):
    for arguments, wanted in (
        (["--version"], r"specdec_jax \d.*, jax \d.*, jaxlib \d.*, python 3"),
        ([], r"generate[\s\S]*chat[\s\S]*demo"),
        (["generate", "--help"], r"--top-p[\s\S]*--stop TEXT"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        assert re.search(wanted, capsys.readouterr().out)


@pytest.fixture
def press(monkeypatch):
    """Press Ctrl-C when the third tokens of the first text come."""
    push, pushes = Transcript.push, itertools.count(1)

    def pressing(self: Transcript, *arguments: Any) -> Any:
        if next(pushes) == 3:
            signal.raise_signal(signal.SIGINT)
        return push(self, *arguments)

    monkeypatch.setattr(Transcript, "push", pressing)


def test_interrupted_generate(run, model, press):
    """Ctrl-C: what there is stays, the numbers come, status 130."""
    handler = signal.getsignal(signal.SIGINT)
    status, out, err = run("generate", "a cab", f"--max-new-tokens={NEW}")
    text = out.removesuffix("\n")
    assert status == 130
    assert 3 <= len(text) < NEW and expected_text(model, "a cab").startswith(text)
    assert "ended by: Ctrl-C" in err
    assert signal.getsignal(signal.SIGINT) is handler


def test_chat(talk, model):
    """Three turns, each answered as all of the conversation would be; the cache of 64
    slots grows on the way.
    """
    status, out, err = talk("a cab", "bed", "cab, cab")
    first = expected_text(model, "a cab")
    second = expected_text(model, "a cab", first, "bed")
    third = expected_text(model, "a cab", first, "bed", second, "cab, cab")
    assert (status, out) == (0, f"{first}\n{second}\n{third}\n")
    assert err.count("24 tokens ·") == 3


def test_chat_reuses_its_state(talk, monkeypatch):
    """What was said is not read again; the cache doubles when it runs out."""
    slots, stream = [], sd.stream

    def spy(*arguments: Any, state: Any, **options: Any) -> Any:
        slots.append(None if state is None else state.tokens.shape[1])
        return stream(*arguments, state=state, **options)

    monkeypatch.setattr(sd, "stream", spy)
    assert talk("a", "b", "c", "/reset", "d")[0] == 0
    assert slots == [None, None, 128, 256, None]  # the first compiles


def test_next_prompt_keeps_the_tokens_of_the_model(model, tmp_path):
    """An answer cut into other tokens than `encode` would: they stay."""
    tokenizer = model.tokenizer
    begun = tokenizer.encode_chat(turns("a"))
    spaces = [TOKENS.index("Ġ"), TOKENS.index("Ġ")]  # one token for `encode`
    messages = turns("a", "  ", "b")
    ending = tokenizer.encode_chat(turns("a", "", "b"))[len(begun) :]
    for end in ([], [END]):
        tokens = [*begun, *spaces, *end]
        assert next_prompt(tokenizer, messages, tokens) == [*begun, *spaces, *ending]
    # Where nothing but text ends a turn, it cannot be told from the answer's own.
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    path = write_tiny(tmp_path / "text.gguf", template=template)
    other = sd.load(path).tokenizer
    assert next_prompt(other, messages, tokens) == other.encode_chat(messages)


def test_chat_commands(talk, model):
    first = expected_text(model, "a cab")
    lines = (
        "/stats",
        "a cab",
        "",
        "/reset",
        "a cab",
        "/stats",
        "/help",
        "/no",
        "/exit",
    )
    status, out, err = talk(*lines, "never read")
    assert (status, out) == (0, f"{first}\n{first}\n")
    assert "no answer yet" in err and "48 tokens in" in err
    assert "there is no /no; /help lists commands" in err
    assert "/reset   forget the conversation" in err


def test_chat_goes_on_after_an_error(talk, model):
    """A turn that does not fit is forgotten."""
    status, out, err = talk("a cab", "b" * POSITIONS, "bed")
    first = expected_text(model, "a cab")
    second = expected_text(model, "a cab", first, "bed")
    assert (status, out) == (0, f"{first}\n{second}\n")
    assert f"beyond the {POSITIONS} positions" in err


def test_chat_interrupted_twice(talk, model, monkeypatch):
    """Even where no step ends in time: the turn goes, the conversation stays."""
    push, pushes = Transcript.push, itertools.count(1)

    def pressing(self: Transcript, *arguments: Any) -> Any:
        if next(pushes) == NEW + 3:  # in the second turn
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return push(self, *arguments)

    monkeypatch.setattr(Transcript, "push", pressing)
    status, out, err = talk("a cab", "bed", "cab, cab", options=("--drafter=plain",))
    first = expected_text(model, "a cab")
    assert status == 0 and "interrupted; this turn is forgotten" in err
    assert out.splitlines()[-1] == expected_text(model, "a cab", first, "cab, cab")


def test_chat_interrupted(talk, model, press):
    """Ctrl-C stops the answer; the next turn goes on from what there is."""
    status, out, err = talk("a cab", "bed")
    first, second = out.splitlines()
    assert status == 0 and "stopped" in err
    assert 3 <= len(first) < NEW and expected_text(model, "a cab").startswith(first)
    assert second == expected_text(model, "a cab", first, "bed")


def test_demo(run, monkeypatch):
    monkeypatch.setattr(_demo, "_RUNS", 1)
    status, out, err = run("demo", "--max-new-tokens=6")
    assert (status, err) == (0, "")
    assert out.count("✓ The same 6 tokens") == len(CASES)
    assert out.count("─ plain ") == out.count("─ speculative ") == len(CASES)
    assert re.search(r"prompt +tokens +plain +speculative +speed-up +τ", out)
    assert len(re.findall(r"\d tok/s +\d+\.\d tok/s +\d+\.\d\d×", out)) == len(CASES)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--rule=rejection", "only --rule match"),
        ("--drafter=plain", "choose another drafter"),
    ],
)
def test_demo_of_what_it_cannot_show(run, option, message):
    status, _, err = run("demo", option)
    assert status == 2 and message in " ".join(err.split())


@pytest.mark.parametrize(
    ("gap", "status", "message"),
    [(1e-5, 0, "1.0e-05 apart, a near-tie"), (0.5, 1, "5.0e-01 apart, a fault")],
)
def test_demo_says_where_texts_part(run, monkeypatch, gap, status, message):
    def race(programs: Any, params: Any, prompt: Any, sampling: Any) -> Any:
        plain = programs["Plain"](params, [prompt], sampling=sampling)
        tokens = plain.tokens[0] + (np.arange(4) == 2)
        other = dataclasses.replace(plain, tokens=[tokens.astype(np.int32)])
        return [_demo.Result(plain, 1.0), _demo.Result(other, 1.0)]

    parts = sd.Divergence(row=0, position=2, expected=64, found=65, gap=gap)
    report = sd.LosslessReport(1, 4, 1.0, 1e-3, (parts,))
    monkeypatch.setattr(_demo, "_race", race)
    monkeypatch.setattr(sd, "check_lossless", lambda *args, **options: report)
    found, out, _ = run("demo", "--max-new-tokens=4")
    assert found == status
    assert out.count("Token 3 differs: plain 'a', speculative 'b'") == len(CASES)
    assert message in out and "✓" not in out


@pytest.mark.slow
@pytest.mark.skipif(
    bool(os.environ.get("PIP_NO_INDEX")),
    reason="PIP_NO_INDEX is set: pip cannot download the model",
)
class TestRealModel:
    """SmolLM2, as a user's own process runs it: no import hook, no strict mode."""

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = "from specdec_jax.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_generate(self):
        done = self.command(
            "generate", "What is the capital of France?", "--json", "--max-new-tokens=8"
        )
        assert (done.returncode, done.stderr) == (0, "")
        answer = json.loads(done.stdout)
        assert "Paris" in answer["samples"][0]["text"]

    def test_demo(self):
        done = self.command("demo", "--max-new-tokens=16")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("✓ The same") == len(CASES)
