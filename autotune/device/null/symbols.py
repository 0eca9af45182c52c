"""What a CUDA build of PyTorch asks of NVIDIA's libraries, read from its own shared objects.

Owns the question "which function of which library". Reads with binutils' `nm` and `readelf`, which come with
every compiler. Must never load a library it reads.
"""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DeviceError

_NVIDIA = re.compile(r"lib(?:cu|nv|nccl)[\w-]*\.so(?:\.\d+)*")
_DRIVER_NAMES = re.compile(
    rb"\x00(cu(?:Init|Driver|Device|Dev|Ctx|Mem|Multicast|GreenCtx|Func|Module|Link|Library|Launch|Occupancy|Pointer|"
    rb"Stream|Event|TensorMap|GetError|Graph|Kernel|Ipc)[A-Za-z0-9]*(?:_v\d)?)(?=\x00)"
)
DRIVER = "libcuda.so.1"
_OTHER_TAGS = ("NVSHMEM",)  # version tags that are no soname
_LOOKED_THROUGH_BYTES = 200 << 20

# Functions that come without a version tag say by their prefix whose they are; longer prefixes first.
_PREFIXES = (
    ("cublasLt", "libcublasLt"),
    ("cublas", "libcublas"),
    ("cudnn", "libcudnn"),
    ("cusparseLt", "libcusparseLt"),
    ("cusparse", "libcusparse"),
    ("cusolver", "libcusolver"),
    ("cufft", "libcufft"),
    ("cuFile", "libcufile"),
    ("curand", "libcurand"),
    ("pnccl", "libnccl"),
    ("nccl", "libnccl"),
    ("nvrtc", "libnvrtc"),
    ("cupti", "libcupti"),
    ("nvshmem", "libnvshmem_host"),
    ("__cuda", "libcudart"),
    ("cuda", "libcudart"),
    ("cu", "libcuda"),
)


@dataclass(frozen=True)
class Library:
    """One library to stand in for: its soname, the version tag its symbols carry (if any), its functions."""

    soname: str
    version: str | None
    functions: tuple[str, ...]

    @property
    def stem(self) -> str:
        """`libcudart` of `libcudart.so.13`."""
        return self.soname.partition(".so")[0]


def read_libraries(objects: Iterable[Path]) -> tuple[Library, ...]:
    """The libraries that `objects` (torch's, and extensions') need, by soname.

    Raises DeviceError when `nm` or `readelf` is missing or can't read a file.
    """
    objects = list(objects)
    sonames = {name for path in objects for name in _needed(path)} | {DRIVER}
    functions: defaultdict[str, set[str]] = defaultdict(set)
    versions: dict[str, str] = {}
    for path in objects:
        for name, version in _undefined(path):
            soname = _owner(name, version, sonames)
            if soname is not None:
                functions[soname].add(name)
                versions |= {soname: version} if version else {}
    functions[DRIVER] |= {name for path in objects for name in _driver_names(path)}
    return tuple(Library(s, versions.get(s), tuple(sorted(functions[s]))) for s in sorted(sonames))


def _needed(path: Path) -> list[str]:
    text = _run("readelf", "-d", "-W", str(path))
    return [name for name in re.findall(r"\(NEEDED\).*\[(.+)\]", text) if _NVIDIA.fullmatch(name)]


def _undefined(path: Path) -> list[tuple[str, str]]:
    """Undefined dynamic symbols as (name, version tag or nothing)."""
    found = []
    for line in _run("nm", "-D", "--undefined-only", str(path)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        found.append((name, version.lstrip("@")))
    return found


def _owner(name: str, version: str, sonames: Iterable[str]) -> str | None:
    if version in sonames:
        return version
    stem = next((stem for prefix, stem in _PREFIXES if re.match(prefix + "(?:[A-Z_]|x_?|id_)", name)), None)
    if version and version not in _OTHER_TAGS:
        return None  # another library's
    return next((soname for soname in sonames if stem and soname.partition(".so")[0] == stem), None)


def _driver_names(path: Path) -> set[str]:
    """Driver functions that a library looks up by name: such names stand in it as strings of their own."""
    if path.stat().st_size > _LOOKED_THROUGH_BYTES:
        return set()  # the kernels' library; it asks through libcaffe2_nvrtc, whose symbols are undefined ones
    names = {match.decode() for match in _DRIVER_NAMES.findall(path.read_bytes())}
    return {name for name in names if not _of_another_library(name)}


def _of_another_library(name: str) -> bool:
    others: Mapping[str, str] = dict(_PREFIXES[:-1])
    return any(name.startswith(prefix) for prefix in others)


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise DeviceError(
            f"the null GPU can't be built: {command[0]} is not installed.",
            "Install the compiler's package (Debian and Ubuntu: build-essential).",
        ) from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no reason given"]
        raise DeviceError(f"the null GPU can't be built: {command[0]}: {lines[-1]}") from None
