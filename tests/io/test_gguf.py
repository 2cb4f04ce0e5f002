"""GGUF files: plain metadata, dequantised tensors, errors that say what is wrong."""

import sys

import gguf
import numpy as np
import pytest

from specdec_jax.io import GGUF, TensorInfo

NORM = np.linspace(-1, 1, 5, dtype=np.float32)
MATRIX = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
Q8 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 500.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", ["a", "Ġb", "é"])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 3])
    writer.add_tensor("norm.weight", NORM)
    writer.add_tensor("half.weight", MATRIX.astype(np.float16))
    writer.add_tensor("up.weight", gguf.quantize(MATRIX, Q8), raw_dtype=Q8)
    writer.add_tensor("count", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_is_plain_python(path):
    assert GGUF(path).metadata == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 500.0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.tokens": ["a", "Ġb", "é"],
        "tokenizer.ggml.token_type": [1, 1, 3],
    }
    kinds = {type(value) for value in GGUF(path).metadata.values()}
    assert kinds == {str, int, float, bool, list}


def test_tensors(path):
    file = GGUF(str(path))
    assert file.tensors == {
        "norm.weight": TensorInfo((5,), "F32"),
        "half.weight": TensorInfo((3, 64), "F16"),
        "up.weight": TensorInfo((3, 64), "Q8_0"),
        "count": TensorInfo((4,), "I32"),
    }
    np.testing.assert_array_equal(file.read("norm.weight"), NORM)
    np.testing.assert_array_equal(file.read("half.weight"), MATRIX.astype(np.float16))
    # Q8_0 rounds to the nearest of 255 steps over a block's range.
    step = np.abs(MATRIX).max() / 127
    np.testing.assert_allclose(file.read("up.weight"), MATRIX, atol=0.51 * step)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", ["norm.weight", "half.weight", "up.weight"])
def test_values_are_ours(path, name, dtype):
    """In the asked dtype, and in memory that does not change with the file."""
    values = GGUF(path).read(name, dtype)
    assert values.dtype == dtype and type(values) is np.ndarray
    assert values.flags.owndata and values.flags.writeable


def test_no_such_tensor(path):
    with pytest.raises(ValueError, match="no tensor 'down.weight'; of its 4 .* norm"):
        GGUF(path).read("down.weight")


def test_a_type_without_dequantisation(path):
    with pytest.raises(ValueError, match="stores 'count' as I32, which the gguf"):
        GGUF(path).read("count")


def test_cut_short(path, tmp_path):
    """Wherever it was cut: in the header, a string, an array, the last tensor."""
    whole = path.read_bytes()
    last = np.arange(4, dtype=np.int32).tobytes()
    end = whole.rindex(last) + len(last)  # then there is only padding
    cut = tmp_path / "cut.gguf"
    for size in range(4, end):
        cut.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"cut.gguf .* its {size:,} bytes are"):
            GGUF(cut)
    cut.write_bytes(whole[:end])
    np.testing.assert_array_equal(GGUF(cut).read("norm.weight"), NORM)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04 a zip", b"{}"])
def test_not_gguf(tmp_path, content):
    path = tmp_path / "foreign.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="foreign.bin is not a GGUF file: it starts"):
        GGUF(path)


def test_damaged(path, tmp_path):
    """A tensor far beyond the end, a version of the future, an unknown type."""
    whole = path.read_bytes()
    at = whole.index(b"norm.weight") + len(b"norm.weight") + 4 + 8  # dims, one size
    damages = {
        "version": (4, b"\x63\x00\x00\x00"),
        "type": (at, b"\xff\x00\x00\x00"),
        "offset": (at + 4, b"\xff" * 8),
        "size": (at - 8, b"\x00" * 7 + b"\x10"),
    }
    for name, (start, damage) in damages.items():
        damaged = tmp_path / f"{name}.gguf"
        damaged.write_bytes(whole[:start] + damage + whole[start + len(damage) :])
        with pytest.raises(ValueError, match=f"{name}.gguf cannot be read as GGUF"):
            GGUF(damaged)


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.gguf"):
        GGUF(tmp_path / "absent.gguf")


def test_gguf_is_missing(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"specdec-jax\[hub\]"):
        GGUF(path)
