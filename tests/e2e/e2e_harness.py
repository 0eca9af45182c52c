"""Runs the real `autotune` command in subprocesses and looks at what it leaves. Owns no test.

A `Desk` is a folder of one test in which commands run: its own profiles, state and temporary files, so that
nothing of the user's is touched and every leftover is seen.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.testing.photos import list_photos

AUTOTUNE = Path(sys.executable).with_name("autotune")
REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 300.0  # against hangs only: nothing here takes a tenth of it
PHOTOS = ("cat", "coffee", "rocket", "flower")

KOHYA = """\
# my first LoRA, on the card at home
[model]
pretrained_model_name_or_path = "base"   # SD 1.5
v2 = false
v_parameterization = false

[training]
output_dir = "out"
output_name = 'photos'
save_model_as = "safetensors"
max_train_epochs = 1
train_batch_size = 2      # my card should take it
gradient_accumulation_steps = 1
gradient_checkpointing = false
mixed_precision = "bf16"
save_precision = "fp16"
learning_rate = 1e-4
lr_scheduler = "cosine"
optimizer_type = "AdamW8bit"
max_grad_norm = 1.0
seed = 42

[network]
network_module = "networks.lora"
network_dim = 32
network_alpha = 16

[dataset]
train_data_dir = "photos"
resolution = "320,320"
enable_bucket = true
bucket_no_upscale = false
"""

QUICK = ("--set", "max_train_epochs=", "--set", "max_train_steps=2", "--set", "sample_steps=1")


@dataclass(frozen=True)
class Result:
    """What a command left: its exit code, and what a person saw."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.strip()]

    def column(self, word: str) -> list[str]:
        """The texts of the lines that begin with `word`."""
        return [line[9:] for line in self.lines if line.startswith(f"{word:<9}")]


@dataclass
class Desk:
    """A folder to work in."""

    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        return os.environ | {
            "AUTOTUNE_PROFILES": str(self.folder / "store"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "TMPDIR": str(temporary),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *arguments: object, code: int = 0, **environment: str) -> Result:
        """`autotune ARGUMENTS` to its end, which must be `code`."""
        return self.finish(self.start(*arguments, **environment), code)

    def start(
        self, *arguments: object, wrapper: tuple[str, ...] = (), **environment: str
    ) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*wrapper, str(AUTOTUNE), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def finish(self, process: "subprocess.Popen[str]", code: int, seen: str = "") -> Result:
        """Wait for the end; `seen` is what was read of stderr before."""
        out, err = process.communicate(timeout=PATIENCE_S)
        result = Result(process.returncode, out, seen + err)
        assert result.code == code, f"exit code {result.code}, not {code}:\n{result.err}"
        assert_tidy(result)
        self.assert_nothing_is_left()
        return result

    def probe(self, *arguments: object, **environment: str) -> tuple[dict[str, Any], Result]:
        """`autotune probe --json`: the one object on stdout."""
        result = self.run("probe", *arguments, "--json", **environment)
        return json.loads(result.out), result

    def assert_nothing_is_left(self) -> None:
        """No process of ours, and no temporary file of ours, anywhere."""
        wait_until(lambda: not self.processes(), "every process of this command is gone")
        left = list((self.folder / "tmp").glob("autotune*"))
        left += [path for path in self.folder.rglob("*.tmp") if path.is_file()]
        assert not left

    def processes(self) -> list[int]:
        """Living processes that work in this folder."""
        return [pid for pid in _pids() if _folder_of(pid) == str(self.folder)]

    def worker_of(self, controller: "subprocess.Popen[str]") -> int:
        """The worker of a running command, once it is there."""
        found: list[int] = []

        def look() -> bool:
            assert controller.poll() is None, "the command ended too early"
            found[:] = [pid for pid in self.processes() if b"autotune.trial.worker" in _command(pid)]
            return bool(found)

        wait_until(look, "a worker is there")
        return found[0]

    def events(self) -> list[dict[str, Any]]:
        lines = (self.folder / "logs" / "events.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def log(self) -> str:
        return (self.folder / "logs" / "train.log").read_text("utf-8")

    def files(self, name: str = "out") -> list[str]:
        root = self.folder / name
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def assert_tidy(result: Result) -> None:
    """Every line is one of ours: no traceback, no warning of a library, no half sentence, nothing twice."""
    strange = [line for line in result.lines if not _OURS.match(line)]
    assert not strange, result.err
    notes = result.column("note")
    assert len(notes) == len(set(notes)), f"a note is shown twice:\n{result.err}"
    errors = [line for line in result.lines if line.startswith("autotune: ")]
    assert len(errors) == (1 if result.code else 0), result.err
    assert not errors or result.lines[-1] == errors[0], result.err
    assert not errors or result.code == 130 or errors[0].endswith((".", "?")), errors
    assert not errors or ".." not in errors[0].replace("../", "").replace("...", ""), errors


_WORDS = "device|job|note|chosen|receipt|profile|wrote|done|log"
_OURS = re.compile(rf"(?:{_WORDS}) +\S| {{7,}}\S|trial  | +\d+  \S|step \d+/\d+ |[a-z ]+: \d+/\d+$|autotune: \S")


def assert_error(result: Result, *parts: str) -> None:
    """The one line that says what went wrong holds all `parts`."""
    line = result.lines[-1]
    missing = [part for part in parts if part not in line]
    assert not missing, f"{missing} not in: {line}"


def wait_until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline, f"still not true: {what}"
        time.sleep(0.02)


def write_photos(folder: Path, names: tuple[str, ...] = PHOTOS) -> Path:
    """Some of the photographs with .txt captions, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for photo, caption in list_photos():
        if photo.stem in names:
            shutil.copy(photo, folder)
            (folder / f"{photo.stem}.txt").write_text(caption, "utf-8")
    return folder


def sit_down(folder: Path) -> Iterator[Desk]:
    desk = Desk(folder)
    yield desk
    for process in desk.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def furnish(desk: Desk, base: Path) -> None:
    for name in ("base", "base.safetensors"):
        (desk.folder / name).symlink_to(base / name)
    write_photos(desk.folder / "photos" / "1_photo")
    desk.write("config.toml", KOHYA)


def differing_lines(before: str, after: str) -> dict[str, str]:
    """Changed lines by the setting in them; the texts must have equal numbers of lines."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    return {re.split(r"[=:]", new)[0].strip(' "'): new.strip() for old, new in pairs if old != new}


def lora_metadata(path: Path) -> Mapping[str, str]:
    """The metadata of a safetensors file, read by its published layout."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: Mapping[str, str] = header["__metadata__"]
    return metadata


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _folder_of(pid: int) -> str:
    """The folder a living process works in; a zombie has none."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
