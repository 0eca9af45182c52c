"""Builds the null GPU's libraries for one build of torch, once, into the user's cache.

Owns generating the do-nothing functions, compiling with the system's C++ compiler, and the cache. Two processes
may build at once: each does so in a folder of its own, and the first to finish gives it its name.
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path

from autotune.device.null.places import cache_folder
from autotune.device.null.symbols import Library, read_libraries
from autotune.device.null.toolkit import Torch
from autotune.errors import DeviceError

NATIVE = Path(str(files(__package__))) / "native"
CORE = "libautotune_null.so"
NVML = "libnvidia-ml.so.1"
_DEFINED = re.compile(r"^(?:NULL_API|NONE)\b.*?\b(\w+)\(|^NONE\((\w+),", re.MULTILINE)
_TOUCHES_MEMORY = re.compile(r"alloc|free(?!z)|buffersize|workspace|pool|mem(?!set|cpy)|map|ipc", re.IGNORECASE)
_ONLY_DESCRIBE = ("libcudart", "libcuda", "libcupti")  # whose reviewed functions run nothing on a card
_COMPILERS = ("c++", "g++", "clang++")
_WITHIN_S = 300
_NOT_SUPPORTED = 801  # cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED; no library's status for success


@dataclass(frozen=True)
class Stubs:
    """Built libraries: their folder, and in which order they are preloaded."""

    folder: Path
    preload: tuple[Path, ...]


def build_stubs(torch: Torch, extensions: Sequence[Path] = ()) -> Stubs:
    """The libraries for `torch` and the CUDA `extensions` beside it, from the cache or built now.

    Raises DeviceError with the way out when there is no compiler or it fails.
    """
    folder = cache_folder() / "stubs" / _key(torch, extensions)
    if not (folder / CORE).exists():
        _build_into(folder, torch, extensions)
    return Stubs(folder, (folder / CORE, *sorted(path for path in folder.glob("lib*.so*") if path.name != CORE)))


def unmodelled_functions(libraries: Sequence[Library]) -> dict[str, list[str]]:
    """By soname, the functions without a behaviour that no review called compute-only either."""
    found = {lib.soname: [f for f in lib.functions if _kind(lib, f) == "unmodelled"] for lib in libraries}
    return {soname: names for soname, names in found.items() if names}


def touches_memory(function: str) -> bool:
    """Whether a name sounds as if the function handed out, took back or measured memory."""
    return bool(_TOUCHES_MEMORY.search(function))


def behaviours(stem: str) -> frozenset[str]:
    """The functions that the C++ file of a library defines."""
    path = NATIVE / f"{stem}.cpp"
    return _defined_in(path.read_text("utf-8")) if path.exists() else frozenset()


def _key(torch: Torch, extensions: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(NATIVE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update((NATIVE.parent / "build.py").read_bytes() + (NATIVE.parent / "symbols.py").read_bytes())
    digest.update((torch.folder / "version.py").read_bytes())
    for path in (*torch.libraries(), *extensions):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    return f"{torch.version}-{digest.hexdigest()[:16]}"


def _build_into(folder: Path, torch: Torch, extensions: Sequence[Path]) -> None:
    compiler = _compiler()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder.parent) as name:
        workplace = Path(name) / "stubs"
        workplace.mkdir()
        _compile_all(_Job(compiler, torch, workplace), read_libraries([*torch.libraries(), *extensions]))
        with suppress(OSError):  # somebody else was quicker: theirs is equal
            workplace.rename(folder)
    if not (folder / CORE).exists():
        raise DeviceError(f"the null GPU can't be built: {folder} can't be written.", "Free disk space there.")


@dataclass(frozen=True)
class _Job:
    compiler: str
    torch: Torch
    folder: Path

    def compile(self, output: str, sources: Sequence[Path], *options: str) -> None:
        number = self.torch.cuda_number
        command = [self.compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{NATIVE}"]
        command += [f"-DCUDA_MAJOR={number // 1000}", f"-DCUDA_VERSION_NUMBER={number}", *map(str, sources)]
        command += [f"-Wl,-soname,{output}", "-Wl,-rpath,$ORIGIN", "-o", str(self.folder / output), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S)
        if done.returncode != 0:
            error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
            raise DeviceError(f"the null GPU can't be built: {self.compiler} says {error.strip()}.")


def _compile_all(job: _Job, libraries: Sequence[Library]) -> None:
    job.compile(CORE, [NATIVE / "core.cpp"])
    nvml = Library(NVML, None, ())
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda library: _compile_library(job, library), [*libraries, nvml]))
    for leftover in (*job.folder.glob("*_generated.cpp"), *job.folder.glob("*.map")):
        leftover.unlink()


def _compile_library(job: _Job, library: Library) -> None:
    generated = job.folder / f"{library.stem}_generated.cpp"
    generated.write_text(_generate(library), "utf-8")
    sources, options = [generated], [f"-L{job.folder}", "-lautotune_null"]
    if (NATIVE / f"{library.stem}.cpp").exists():
        sources.append(NATIVE / f"{library.stem}.cpp")
    if library.version is not None:
        script = job.folder / f"{library.stem}.map"
        script.write_text(f"{library.version} {{ global: *; }};\n", "utf-8")
        options.append(f"-Wl,--version-script={script}")
    job.compile(library.soname, sources, *options)


def _generate(library: Library) -> str:
    """C++ text of every function that has no behaviour."""
    lines = ['#include "core.h"']
    runs = "" if library.stem in _ONLY_DESCRIBE else "null_gpu_launched(), "
    for function in library.functions:
        kind = _kind(library, function)
        if kind == "compute-only":
            lines.append(f"NULL_API long {function}(void) {{ return {runs}0; }}")
        elif kind == "unmodelled":
            status = _NOT_SUPPORTED if touches_memory(function) else 0
            lines.append(
                f'NULL_API long {function}(void) {{ return null_gpu_unmodelled("{function}"), {status}; }}'
            )
    return "\n".join(lines) + "\n"


def _kind(library: Library, function: str) -> str:
    if function in behaviours(library.stem):
        return "behaviour"
    reviewed = any(fnmatchcase(function, pattern) for pattern in _compute_only())
    # a pattern never covers a function that hands memory out: those are reviewed one by one
    plain = reviewed and (function in _compute_only() or not touches_memory(function))
    return "compute-only" if plain else "unmodelled"


@cache
def _compute_only() -> frozenset[str]:
    lines = (NATIVE / "compute_only.txt").read_text("utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


@cache
def _defined_in(text: str) -> frozenset[str]:
    names = {first or second for first, second in _DEFINED.findall(text)}
    macros = set(re.findall(r"NONE\((cusolverDn\w*)##dtype##(\w+),", text))
    return frozenset(names | {f"{a}{dtype}{b}" for a, b in macros for dtype in "SDCZ"})


def _compiler() -> str:
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise DeviceError(
            "the null GPU can't be built: there is no C++ compiler (looked for c++, g++, clang++).",
            "Install one (Debian and Ubuntu: build-essential). Shared tables, profiles and trials work without.",
        )
    return found
