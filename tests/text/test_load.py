"""`load`: a model and its tokenizer, from a file or by name, or what is wrong."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import DFLASH, EAGLE
from tiny import TOKENS, write_tiny

import specdec_jax as sd
from specdec_jax._cache import for_backend
from specdec_jax.text import _load as module

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.mark.parametrize("kind", [str, Path])
def test_text_in_text_out(path, kind):
    model = sd.load(kind(path))
    generation = sd.generate(
        model.target,
        sd.Params(model.params),
        sd.Plain(),
        [model.tokenizer.encode("a cab")],
        sampling=sd.Sampling(max_new_tokens=5),
    )
    assert len(model.tokenizer.decode(generation.tokens[0])) == 5


def test_dtype(path):
    target, params, tokenizer = sd.load(path, dtype=jnp.bfloat16)
    assert params["embedding"].dtype == jnp.bfloat16
    assert target.init_cache(1, 8).keys[0].dtype == jnp.float32
    assert tokenizer.vocab_size == target.vocab_size == len(TOKENS)


@pytest.mark.parametrize(
    ("backend", "dtype", "cache"),
    [
        ("cpu", "bfloat16", "float32"),
        ("cpu", "float32", "float32"),
        ("cpu", "float16", "float16"),
        ("tpu", "bfloat16", "bfloat16"),
    ],
)
def test_the_cache_of_a_machine(path, monkeypatch, backend, dtype, cache):
    """A CPU would copy one of bfloat16 at every step; no other does."""

    def here(model):
        config = dataclasses.replace(model.config, dtype=dtype)
        return for_backend(dataclasses.replace(model, config=config))

    target = sd.load(path).target
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    keys = (
        *here(target).init_cache(1, 8).keys,
        *here(EAGLE).init(1, 8).cache.keys,
        *here(DFLASH).init(1, 8).keys,
    )
    assert {x.dtype for x in keys} == {jnp.dtype(cache)}


def test_by_name(path, monkeypatch):
    """The name's file is fetched; the caller says whether progress is shown."""
    asked = []

    def fetch(name: str, *, progress: bool) -> Path:
        asked.append((name, progress))
        return path

    monkeypatch.setattr(module, "fetch", fetch)
    named = sd.load("smollm2-135m-instruct", progress=False)
    assert asked == [("smollm2-135m-instruct", False)]
    np.testing.assert_array_equal(
        named.params["embedding"], sd.load(path).params["embedding"]
    )


def test_neither_name_nor_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="known by name.*smollm2-135m-instruct"):
        sd.load(str(tmp_path / "smolm2"))
    with pytest.raises(FileNotFoundError, match="config.json"):
        sd.load(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="is not a GGUF file"):
        sd.load(tmp_path / "notes.txt")


def test_a_name_of_the_hub(tmp_path, monkeypatch):
    """Files are asked for that hold weights and descriptions, and no code."""
    asked = []

    def download(name: str, *, allow_patterns: list[str], ignore_patterns) -> str:
        asked.append((name, allow_patterns))
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(RuntimeError, match="owner/model could not be fetched.*no netw"):
        sd.load("owner/model")
    assert asked == [("owner/model", ["*.json", "*.safetensors", "*.jinja"])]


@pytest.mark.parametrize("dtype", ["float64", "int8", "nonsense"])
def test_other_dtypes(path, dtype):
    with pytest.raises(ValueError, match=f"float16, not '{dtype}'"):
        sd.load(path, dtype=dtype)


def test_vocabularies_differ(tmp_path):
    path = write_tiny(tmp_path / "tiny.gguf", rows=len(TOKENS) + 1)
    with pytest.raises(ValueError, match="tokenizer of 259 tokens, but a model of 260"):
        sd.load(path)


def test_import_without_the_extras():
    """Only what needs an extra asks for it, and says which."""
    program = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"gguf", "jinja2", "tokenizers", "tyro"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import specdec_jax as sd

try:
    sd.load(sys.argv[1])
except ImportError as error:
    print(error)
from specdec_jax.cli import main

main(["--version"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, __file__],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("reading GGUF files needs the package gguf: pip")
    assert done.stderr == (
        "error: the command line needs the package tyro: "
        "pip install 'specdec-jax[cli,hub]'\n"
    )
    assert done.returncode == 2
