"""The CUDA build of PyTorch that the null GPU stands under: where it lies, what it was built for.

Owns finding it for a given Python without importing it. Must never install anything.
"""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from autotune.errors import DeviceError

_LIBRARIES = (
    "libtorch_cuda.so",
    "libc10_cuda.so",
    "libtorch_python.so",
    "libtorch_cpu.so",
    "libtorch_cuda_linalg.so",
    "libtorch_nvshmem.so",
    "libcaffe2_nvrtc.so",
)
_ASK = (
    "import importlib.util as u, json\n"
    "spec = {n: u.find_spec(n) for n in ('torch', 'bitsandbytes')}\n"
    "print(json.dumps({n: s and s.submodule_search_locations[0] for n, s in spec.items()}))"
)


@dataclass(frozen=True)
class Torch:
    """An installed torch: its folder, its version (`2.13.0+cu130`), the CUDA version it was built for or None."""

    folder: Path
    version: str
    cuda: str | None

    @property
    def release(self) -> str:
        """The version without the build: `2.13.0`."""
        return self.version.partition("+")[0]

    @property
    def cuda_number(self) -> int:
        """The CUDA version as the runtime counts: 13000 for 13.0."""
        major, _, minor = (self.cuda or "0").partition(".")
        return 1000 * int(major) + 10 * int(minor or 0)

    def libraries(self) -> list[Path]:
        """Its shared objects that call NVIDIA's libraries."""
        return [path for name in _LIBRARIES if (path := self.folder / "lib" / name).exists()]


@dataclass(frozen=True)
class Python:
    """What an interpreter would import, without its having done so: torch (if any) and bitsandbytes' folder."""

    torch: Torch | None
    bitsandbytes: Path | None

    def extensions(self, cuda: str) -> list[Path]:
        """CUDA libraries beside torch's, for this CUDA version (`13.0`)."""
        if self.bitsandbytes is None:
            return []
        wanted = self.bitsandbytes / f"libbitsandbytes_cuda{cuda.replace('.', '')}.so"
        return [wanted] if wanted.exists() else []


def look_at(python: str = sys.executable) -> Python:
    """What `python` would import. Raises DeviceError when it can't be asked."""
    folders = _own_folders() if python == sys.executable else _ask(python)
    torch, bitsandbytes = (folders.get(name) for name in ("torch", "bitsandbytes"))
    return Python(read_torch(Path(torch)) if torch else None, Path(bitsandbytes) if bitsandbytes else None)


def read_torch(folder: Path) -> Torch | None:
    """The torch in `folder`, read from its version.py; None if there is none."""
    try:
        tree = ast.parse((folder / "version.py").read_text("utf-8"))
    except (OSError, SyntaxError):
        return None
    values: dict[str, str | None] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            values |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}  # type: ignore[misc]
    return Torch(folder, str(values.get("__version__", "0")), values.get("cuda"))


def _own_folders() -> dict[str, str | None]:
    specs = {name: find_spec(name) for name in ("torch", "bitsandbytes")}
    return {
        name: spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None
        for name, spec in specs.items()
    }


@cache
def _ask(python: str) -> dict[str, str | None]:
    try:
        # -P only: its environment and site-packages count, the current folder does not
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=60)
        answer: dict[str, str | None] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise DeviceError(f"{python} can't be asked which torch it has: {error}.") from None
    return answer
