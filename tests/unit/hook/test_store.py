"""A checkpoint is complete or not there, whatever happens while it is written."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gpubank.hook.store import MANIFEST, Checkpoint, Store, local_folder, read_checkpoint


class PowerCut(BaseException):
    """The machine died here."""


def written(store: Store, step: int, content: bytes = b"weights", *, request_id: str | None = None) -> Checkpoint:
    partial = store.open(step)
    (partial / "weights.bin").write_bytes(content)
    (partial / "rank-0").mkdir()
    (partial / "rank-0" / "optim.bin").write_bytes(content * 2)
    return store.complete(partial, step=step, request_id=request_id)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run", uid="pod-1")


def test_manifest_names_every_file_with_size_and_hash(store: Store) -> None:
    checkpoint = written(store, 7, b"abc", request_id="r-1")

    manifest = json.loads((checkpoint.path / MANIFEST).read_bytes())
    assert manifest.pop("createdAt").endswith("Z")
    assert manifest == {
        "requestId": "r-1",
        "id": checkpoint.path.name,
        "step": 7,
        "trainerUID": "pod-1",
        "files": [
            {"path": "weights.bin", "size": 3, "sha256": sha256(b"abc").hexdigest()},
            {"path": "rank-0/optim.bin", "size": 6, "sha256": sha256(b"abcabc").hexdigest()},
        ],
    }
    assert checkpoint.manifest_sha256 == sha256((checkpoint.path / MANIFEST).read_bytes()).hexdigest()
    assert (checkpoint.files, checkpoint.bytes) == (2, 9)


def test_folders_made_for_the_first_checkpoint_are_flushed_too(tmp_path: Path, operations: list[str]) -> None:
    written(Store(tmp_path / "team" / "run", uid="pod-1"), 1)
    assert operations[:2] == [f"fsync {tmp_path.name[:15]}", "fsync team"]


def test_latest_is_the_highest_step_and_none_in_an_empty_folder(store: Store) -> None:
    assert store.latest() is None
    written(store, 9)
    written(store, 10_000_000_001)
    written(store, 10)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 10_000_000_001


def test_unfinished_save_is_ignored_and_cleaned(store: Store) -> None:
    good = written(store, 5)
    partial = store.open(6)
    (partial / "weights.bin").write_bytes(b"half")

    assert store.latest() == good
    store.clean()
    assert not partial.exists()
    assert store.latest() == good


def damage_truncate(path: Path) -> None:
    (path / "weights.bin").write_bytes(b"weig")


def damage_remove(path: Path) -> None:
    (path / "rank-0" / "optim.bin").unlink()


def damage_flip(path: Path) -> None:
    (path / "weights.bin").write_bytes(b"WEIGHTS")


def damage_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:-20])


def damage_manifest_gone(path: Path) -> None:
    (path / MANIFEST).unlink()


def damage_escape(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["files"][0]["path"] = "../outside"
    (path / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [damage_truncate, damage_remove, damage_flip, damage_manifest, damage_manifest_gone, damage_escape],
    ids=lambda damage: damage.__name__,
)
def test_damaged_checkpoint_is_passed_over_for_the_next_older(store: Store, damage: Callable[[Path], None]) -> None:
    older = written(store, 5)
    damage(written(store, 6).path)
    assert store.latest() == older


def test_keep_leaves_the_newest_and_the_newest_requested(store: Store) -> None:
    asked = written(store, 1, request_id="r-1")
    for step in range(2, 6):
        store.prune(written(store, step))
    steps = sorted(one.step for path in store.folder.iterdir() if (one := read_checkpoint(path, check_hashes=True)))
    assert steps == [1, 4, 5]
    assert asked.path.exists()
    assert [path.name for path in store.folder.iterdir() if path.name.startswith(".")] == []


def test_keeping_fewer_than_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Store(tmp_path, uid="", keep=1)


def test_save_without_files_and_a_file_named_like_the_manifest_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="wrote no file"):
        store.complete(store.open(1), step=1, request_id=None)
    partial = store.open(2)
    (partial / MANIFEST).write_bytes(b"{}")
    with pytest.raises(ValueError, match="name of the manifest"):
        store.complete(partial, step=2, request_id=None)


def test_link_in_a_checkpoint_is_refused(store: Store) -> None:
    partial = store.open(1)
    (partial / "weights.bin").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        store.complete(partial, step=1, request_id=None)


@pytest.mark.parametrize(
    ("storage", "folder"),
    [("file:///mnt/run 7", "/mnt/run 7"), ("file://localhost/mnt/x", "/mnt/x"), ("/mnt/run", "/mnt/run")],
)
def test_storage_is_a_path_or_a_file_uri(storage: str, folder: str) -> None:
    assert local_folder(storage) == Path(folder)


@pytest.mark.parametrize("storage", ["s3://bucket/run", "file://host/run"])
def test_storage_elsewhere_is_refused_with_the_remedy(storage: str) -> None:
    with pytest.raises(ValueError, match="mount it"):
        local_folder(storage)


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every flush and rename; the one whose number is in `die_at` (as `die:N` at the head) dies instead."""
    log: list[str] = []
    real: dict[str, Callable[..., Any]] = {"fsync": os.fsync, "rename": os.rename}

    def run(name: str, describe: Callable[..., str]) -> Callable[..., Any]:
        def operation(*arguments: Any) -> Any:
            done = [entry for entry in log if not entry.startswith("die:")]
            if f"die:{len(done)}" in log:
                raise PowerCut
            log.append(f"{name} {describe(*arguments)}")
            return real[name](*arguments)

        return operation

    def rename_text(source: Any, target: Any) -> str:
        return f"{Path(source).name} -> {Path(target).name[:15]}"

    monkeypatch.setattr(os, "fsync", run("fsync", lambda fd: Path(os.readlink(f"/proc/self/fd/{fd}")).name[:15]))
    monkeypatch.setattr(os, "rename", run("rename", rename_text))
    return log


def test_everything_is_flushed_before_the_manifest_and_the_manifest_before_the_rename(
    store: Store, operations: list[str]
) -> None:
    written(store, 2)
    operations.clear()
    written(store, 3)
    partial = ".step-0000000003.partial"
    assert operations == [
        "fsync weights.bin",
        "fsync optim.bin",
        "fsync rank-0",
        f"fsync {partial[:15]}",
        "fsync .manifest.json.",
        "rename .manifest.json.tmp -> manifest.json",
        f"fsync {partial[:15]}",
        f"rename {partial} -> step-0000000003",
        "fsync run",
    ]


@pytest.mark.parametrize("die_at", range(9))
def test_power_cut_at_any_step_leaves_the_previous_or_the_complete_new_checkpoint(
    store: Store, operations: list[str], die_at: int
) -> None:
    previous = written(store, 3)
    operations[:] = [f"die:{die_at}"]
    with pytest.raises(PowerCut):
        written(store, 4, b"newer")
    operations.clear()

    restarted = Store(store.folder, uid="pod-2")
    restarted.clean()
    latest = restarted.latest()
    assert latest is not None
    # Only a cut after the last rename leaves the new one, and then all of it.
    assert latest.step == (4 if die_at == 8 else 3)
    assert read_checkpoint(previous.path, check_hashes=True) == previous
