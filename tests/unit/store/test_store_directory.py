"""A folder of profiles: no half file, no lost file, no file of others touched, no broken file in the way."""

import errno
import json
import os
import stat
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest

import autotune.files
from autotune.device.session import Evidence
from autotune.errors import DiskError, ProfileError
from autotune.posix import lock_file
from autotune.store.directory import DirectoryStore, slug
from autotune.testing.store_contract import StoreContract, sample_profile
from autotune.units import GIB

posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX files")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files without a name")
FIXED = "nvidia-geforce-rtx-3060"


class TestDirectoryStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.root = tmp_path / "profiles"

    def make_store(self):
        return DirectoryStore(self.root)


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def run_python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_profile_lies_under_its_card_and_workload_as_canonical_json(tmp_path):
    profile = sample_profile()
    reference = DirectoryStore(tmp_path).put(profile)
    assert files(tmp_path) == [f"{FIXED}/sd15-lora-fp16-adamw-{profile.digest[:8]}.json"]
    assert Path(reference.location).read_bytes() == profile.canonical_bytes


def test_card_names_make_safe_folder_names():
    assert slug("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert slug("../../etc") == "etc"
    assert slug("名") == "unnamed"


@posix_only
def test_team_mates_can_read_what_was_written(tmp_path):
    old = os.umask(0o022)
    try:
        reference = DirectoryStore(tmp_path).put(sample_profile())
    finally:
        os.umask(old)
    assert stat.S_IMODE(Path(reference.location).stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schema_version": 1, "gpu"', "no JSON"),
        (b'{"schema_version": 7}', "schema_version is '7'"),
        (b"x" * 70_000, "bytes are more than"),
    ],
)
def test_a_broken_file_is_named_and_skipped_and_stays_as_it_is(tmp_path, content, said):
    store, profile = DirectoryStore(tmp_path), sample_profile()
    store.put(profile)
    broken = tmp_path / FIXED / "broken.json"
    broken.write_bytes(content)
    listing = store.find(profile.gpu.name)
    assert listing.profiles == (profile,)
    assert len(listing.notes) == 1
    assert str(broken) in listing.notes[0]
    assert said in listing.notes[0]
    assert store.get(profile.digest) == profile
    assert broken.read_bytes() == content


@posix_only
def test_a_pipe_or_folder_named_like_a_profile_does_not_block_reading(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put(sample_profile())
    os.mkfifo(tmp_path / FIXED / "pipe.json")
    (tmp_path / FIXED / "folder.json").mkdir()
    listing = store.list()
    assert len(listing.profiles) == 1
    assert all("no regular file" in note for note in listing.notes)
    assert len(listing.notes) == 2


def test_files_beside_the_card_folders_are_no_profiles(tmp_path):
    (tmp_path / "schema-v1.json").write_text("{}")
    assert DirectoryStore(tmp_path).list().notes == ()


def test_a_renamed_and_reformatted_profile_is_still_found(tmp_path):
    store, profile = DirectoryStore(tmp_path), sample_profile()
    written = Path(store.put(profile).location)
    other = tmp_path / "my-card" / "mine.json"
    other.parent.mkdir()
    other.write_text(json.dumps(json.loads(written.read_bytes()), indent=2))
    written.unlink()
    assert store.get(profile.digest) == profile
    assert store.find(profile.gpu.name).profiles == (profile,)


def test_a_file_of_others_with_our_name_is_left_alone(tmp_path):
    store, profile = DirectoryStore(tmp_path), sample_profile()
    taken = Path(store.put(profile).location)
    taken.write_text("mine")
    reference = store.put(profile)
    assert taken.read_text() == "mine"
    assert reference.location.endswith(f"-{profile.digest[:16]}.json")
    assert store.put(profile) == reference
    assert store.get(profile.digest) == profile


@pytest.mark.parametrize("where", ["write", "fsync", "rename", pytest.param("name", marks=linux_only)])
def test_a_full_disk_is_one_clear_error_and_leaves_everything_as_it_was(tmp_path, monkeypatch, where):
    store, old = DirectoryStore(tmp_path), sample_profile()
    store.put(old)
    before = files(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "fsync":
        monkeypatch.setattr(autotune.files.os, "fsync", full)
    elif where == "name":
        monkeypatch.setattr(autotune.files, "name_file", full)
    else:
        monkeypatch.setattr(autotune.files, "open_unnamed", lambda folder: nullcontext(None))
        monkeypatch.setattr(Path, "replace" if where == "rename" else "open", full)
    with pytest.raises(DiskError, match="No space left on device"):
        store.put(sample_profile(budget_bytes=9 * GIB))
    monkeypatch.undo()
    assert files(tmp_path) == before
    assert store.get(old.digest) == old


@posix_only
def test_a_file_size_limit_hit_in_mid_write_leaves_no_half_file(tmp_path):
    DirectoryStore(tmp_path).put(sample_profile())
    before = files(tmp_path)
    done = run_python(
        """
        import resource, sys
        from pathlib import Path
        from autotune.errors import DiskError
        from autotune.store.directory import DirectoryStore
        from autotune.testing.store_contract import sample_profile
        profile = sample_profile(budget_bytes=7)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            DirectoryStore(Path(sys.argv[1])).put(profile)
        except DiskError as error:
            print(error)
        """,
        tmp_path,
    )
    assert "File too large" in done.stdout, done.stderr
    assert files(tmp_path) == before


@posix_only
def test_a_writer_that_dies_in_mid_write_leaves_no_profile_and_its_leftover_is_swept(tmp_path):
    code = """
        import os, sys
        from pathlib import Path
        from autotune.store.directory import DirectoryStore
        import autotune.files
        from contextlib import nullcontext
        from autotune.testing.store_contract import sample_profile
        autotune.files.open_unnamed = lambda folder: nullcontext(None)
        Path.replace = lambda *_: os._exit(9)
        DirectoryStore(Path(sys.argv[1])).put(sample_profile())
        """
    assert run_python(code, tmp_path).returncode == 9
    store = DirectoryStore(tmp_path)
    assert store.list().entries == ()
    assert store.list().notes == ()
    assert len(files(tmp_path)) == 1
    store.put(sample_profile(budget_bytes=9 * GIB))
    assert [name for name in files(tmp_path) if name.endswith(".tmp")] == []


@linux_only
def test_a_writer_that_dies_before_its_file_has_a_name_leaves_nothing(tmp_path):
    code = """
        import os, sys
        from pathlib import Path
        import autotune.files
        autotune.files.name_file = lambda *_: os._exit(9)
        autotune.files.write_atomically(Path(sys.argv[1]) / "lora.safetensors", b"x" * 1000)
        """
    assert run_python(code, tmp_path).returncode == 9
    assert files(tmp_path) == []


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from autotune.store.directory import DirectoryStore
        from autotune.testing.store_contract import sample_profile
        store = DirectoryStore(Path(sys.argv[1]))
        sys.stdin.readline()
        for budget in range(1, 21):
            store.put(sample_profile(budget_bytes=budget * int(sys.argv[2])))
        """
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path), step],
            stdin=subprocess.PIPE,
            text=True,
        )
        for step in ("1", "1", "1000")
    ]
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    listing = DirectoryStore(tmp_path).list()
    assert listing.notes == ()
    expected = {*range(1, 21), *range(1000, 21_000, 1000)}
    assert sorted(profile.budget_bytes for profile in listing.profiles) == sorted(expected)


@posix_only
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_a_clear_error(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DiskError, match="Permission denied"):
            DirectoryStore(tmp_path).put(sample_profile())
    finally:
        tmp_path.chmod(0o700)


def test_a_file_where_the_folder_should_be_is_a_clear_error(tmp_path):
    root = tmp_path / "profiles"
    root.write_text("a file")
    with pytest.raises(DiskError, match="can't be kept in"):
        DirectoryStore(root).put(sample_profile())
    assert root.read_text() == "a file"
    assert DirectoryStore(root).list().entries == ()


@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.MEASURED, Evidence.FORECAST])
def test_simulated_profiles_never_enter_a_repository(tmp_path, evidence):
    store, profile = DirectoryStore(tmp_path, allow_simulated=False), sample_profile(evidence=evidence)
    if evidence is Evidence.SIMULATED:
        with pytest.raises(ProfileError, match=r"simulated numbers \(virtual GPU\)"):
            store.put(profile)
        assert files(tmp_path) == []
    else:
        assert store.put(profile).digest == profile.digest


@posix_only
def test_a_lock_held_too_long_by_another_is_told(tmp_path):
    with lock_file(tmp_path) as held:
        assert held
        with pytest.raises(DiskError, match="locked by another process for 0 s"):
            with lock_file(tmp_path, timeout_seconds=0):
                pass
    with lock_file(tmp_path, timeout_seconds=0) as held:
        assert held
