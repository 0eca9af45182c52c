"""A fake NVML: a small C library that replays captures, so that tests run the real pynvml code path.

Owns the building of the library and the two ways to use it: in this process, or in a child through its
environment. It stands in for the driver only; autotune and pynvml run unchanged. Never used by the product.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CAPTURE_VARIABLE = "AUTOTUNE_NVML_CAPTURE"
LIBRARY_NAME = "libnvidia-ml.so.1"
_HERE = Path(__file__).parent


def capture_names() -> list[str]:
    """The names of the captures that come with the package, sorted."""
    return sorted(path.stem for path in (_HERE / "captures").glob("*.capture"))


def capture_path(name: str) -> Path:
    """The file of the packaged capture `name`. Raises FileNotFoundError naming those there are."""
    path = _HERE / "captures" / f"{name}.capture"
    if not path.is_file():
        raise FileNotFoundError(f"no capture {name!r}; there are: {', '.join(capture_names())}")
    return path


def compiler() -> str | None:
    """The system's C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_library(directory: Path) -> Path:
    """Compile the fake library into `directory` (unless it is there) and return its file.

    Raises RuntimeError without a C compiler or with what the compiler said.
    """
    library = directory / LIBRARY_NAME
    program = compiler()
    if library.exists():
        return library
    if program is None:
        raise RuntimeError("the fake NVML needs a C compiler (cc), and there is none on the PATH")
    command = [program, "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library), str(_HERE / "nvml.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the fake NVML does not compile: {done.stderr.strip()}")
    return library


def replay_environment(library: Path, capture: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a child process whose NVML is `library` replaying `capture`."""
    paths = [str(library.parent), environ.get("LD_LIBRARY_PATH", "")]
    return {
        **environ,
        "LD_LIBRARY_PATH": ":".join(path for path in paths if path),
        CAPTURE_VARIABLE: str(capture),
    }


@contextmanager
def replaying(library: Path, capture: Path) -> Iterator[None]:
    """In this process, pynvml talks to `library` replaying `capture`; afterwards all is as before."""
    with _pynvml_on(ctypes.CDLL(str(library))):
        before = os.environ.get(CAPTURE_VARIABLE)
        os.environ[CAPTURE_VARIABLE] = str(capture)
        try:
            yield
        finally:
            if before is None:
                del os.environ[CAPTURE_VARIABLE]
            else:
                os.environ[CAPTURE_VARIABLE] = before


@contextmanager
def missing_library() -> Iterator[None]:
    """In this process, pynvml finds no NVML library, whatever the machine has."""
    import pynvml

    def refuse(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    with _pynvml_on(None):
        real, pynvml.CDLL = pynvml.CDLL, refuse
        try:
            yield
        finally:
            pynvml.CDLL = real


@contextmanager
def _pynvml_on(library: ctypes.CDLL | None) -> Iterator[None]:
    import pynvml

    before = pynvml.nvmlLib
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
