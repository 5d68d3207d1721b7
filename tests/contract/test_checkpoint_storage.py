"""Lies about what lies on the storage: the bank reads it itself, and a claim counts for nothing."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from gpubank.adapters.checkpoint import (
    FsspecStorage,
    verify,
)
from gpubank.decide.attest import AttestPolicy, Disbelief, Escape
from gpubank.domain.checkpoint import (
    CheckpointAnswer,
    CheckpointRequest,
    CheckpointTarget,
    FileFact,
)
from gpubank.domain.contract import Transport
from gpubank.domain.errors import BackendError
from gpubank.hook import Answer, Hook
from gpubank.hook.protocol import parse_request

UID = "pod-uid-1"
HASHES = AttestPolicy(check_hashes=True)


def request(name: str = "loan/local/uid-1/1", epoch: int = 1, reason: str = "wanted back") -> CheckpointRequest:
    return CheckpointRequest(id=name, epoch=epoch, deadline=datetime.now(UTC) + timedelta(minutes=10), reason=reason)


@dataclass
class Written:
    """A true checkpoint on a local folder, to be tampered with."""

    folder: Path
    root: Path
    claim: dict[str, Any]

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "manifest.json").read_bytes())
        return found

    def rewrite(self, **changes: Any) -> None:
        """Change the manifest, and the claim so that it fits."""
        manifest = {**self.manifest(), **changes}
        raw = json.dumps(manifest).encode()
        (self.folder / "manifest.json").write_bytes(raw)
        self.claim["manifest"].update(
            sha256=hashlib.sha256(raw).hexdigest(),
            files=len(manifest["files"]),
            bytes=sum(each["size"] for each in manifest["files"]),
        )


@pytest.fixture
def written(tmp_path: Path) -> Written:
    claims: list[Answer] = []
    hook = Hook(tmp_path / "team" / "run", uid=UID, on_status=claims.append)
    hook._desk.ask(_request_of(request("r-1")))
    hook.save(7, lambda folder: (folder / "weights.bin").write_bytes(b"w" * 1000), hook.requested(7))
    latest = hook.latest()
    assert latest is not None
    return Written(latest.path, tmp_path / "team", claims[-1])


def _request_of(asked: CheckpointRequest) -> Any:
    return parse_request(asked.to_wire().encode())


def truncated(written: Written) -> None:
    (written.folder / "weights.bin").write_bytes(b"w" * 999)


def missing(written: Written) -> None:
    (written.folder / "weights.bin").unlink()


def flipped(written: Written) -> None:
    (written.folder / "weights.bin").write_bytes(b"w" * 999 + b"x")


def extra(written: Written) -> None:
    (written.folder / "debug.log").write_bytes(b"more")


def stale(written: Written) -> None:
    written.claim["step"] = 4
    written.rewrite(step=4)


def of_another_request(written: Written) -> None:
    written.rewrite(requestId="r-0")


def of_another_pod(written: Written) -> None:
    written.rewrite(trainerUID="pod-uid-0")


def manifest_gone(written: Written) -> None:
    (written.folder / "manifest.json").unlink()


def manifest_huge(written: Written) -> None:
    with (written.folder / "manifest.json").open("r+b") as file:
        file.truncate(100_000_000_000)


def manifest_swapped(written: Written) -> None:
    (written.folder / "manifest.json").write_bytes(b"{}")


def traversal(written: Written) -> None:
    (written.root / "outside.bin").write_bytes(b"w")
    written.rewrite(files=[{"path": "../../outside.bin", "size": 1, "sha256": "0" * 64}])


def absolute(written: Written) -> None:
    written.rewrite(files=[{"path": "/etc/hostname", "size": 1, "sha256": "0" * 64}])


def link_out(written: Written) -> None:
    outside = written.root.parent / "outside.bin"
    outside.write_bytes(b"w" * 1000)
    (written.folder / "weights.bin").unlink()
    (written.folder / "weights.bin").symlink_to(outside)


def folder_link_out(written: Written) -> None:
    outside = written.root.parent / "outside"
    written.folder.rename(outside)
    written.folder.symlink_to(outside)


def link_to_itself(written: Written) -> None:
    (written.folder / "weights.bin").unlink()
    (written.folder / "weights.bin").symlink_to("weights.bin")


def link_inside(written: Written) -> None:
    (written.folder / "weights.bin").rename(written.folder / "blob")
    (written.folder / "weights.bin").symlink_to("blob")


def pipe(written: Written) -> None:
    (written.folder / "weights.bin").unlink()
    os.mkfifo(written.folder / "weights.bin")


def directory(written: Written) -> None:
    (written.folder / "weights.bin").unlink()
    (written.folder / "weights.bin").mkdir()


def other_scheme(written: Written) -> None:
    written.claim["uri"] = "http://127.0.0.1:1/run"


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (extra, None),
        (link_inside, None),
        (truncated, Disbelief.FILE_SIZE),
        (missing, Disbelief.FILE_MISSING),
        (flipped, Disbelief.FILE_HASH),
        (stale, Disbelief.STALE_STEP),
        (of_another_request, Disbelief.OTHER_REQUEST),
        (of_another_pod, Disbelief.OTHER_TRAINER),
        (manifest_gone, Disbelief.MANIFEST_MISSING),
        (manifest_huge, Disbelief.MANIFEST_TOO_BIG),
        (manifest_swapped, Disbelief.MANIFEST_HASH),
        (traversal, Disbelief.BAD_PATH),
        (absolute, Disbelief.BAD_PATH),
        (link_out, Disbelief.FILE_ESCAPES),
        (folder_link_out, Disbelief.OUTSIDE_STORAGE),
        (link_to_itself, Disbelief.FILE_ESCAPES),
        (pipe, Disbelief.FILE_ESCAPES),
        (directory, Disbelief.FILE_ESCAPES),
        (other_scheme, Disbelief.OUTSIDE_STORAGE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_lies_on_the_storage_decides_and_not_the_claim(
    written: Written, lie: Callable[[Written], None], reason: Disbelief | None
) -> None:
    lie(written)
    storage = FsspecStorage()
    verdict = await verify(
        storage,
        CheckpointAnswer.from_claim(json.dumps(written.claim)),
        request=request("r-1"),
        requested_at=datetime.now(UTC),
        target=CheckpointTarget(
            namespace="a", pod="p", uid=UID, transport=Transport.HTTP, storage=f"file://{written.root}"
        ),
        last_step=5,
        policy=HASHES,
        now=datetime.now(UTC),
    )
    storage.close()
    assert verdict.reason is reason, verdict.detail


async def test_storage_in_memory_is_read_like_any_other() -> None:
    files = MemoryFileSystem()
    files.pipe("/contract/run/manifest.json", b"m" * 50)
    files.pipe("/contract/run/w.bin", b"abc")
    storage, prefix = FsspecStorage(), "memory://contract"
    assert await storage.read_manifest(f"{prefix}/run/manifest.json", prefix=prefix, max_bytes=100) == b"m" * 50
    assert await storage.read_manifest(f"{prefix}/run/manifest.json", prefix=prefix, max_bytes=9) == b"m" * 10
    assert await storage.read_manifest(f"{prefix}/run/none", prefix=prefix, max_bytes=9) is None
    uris = [f"{prefix}/run/w.bin", f"{prefix}/run/none", f"{prefix}/run", "memory://other/x"]
    found = await storage.look_at(uris, prefix=prefix, hashes=True)
    assert found[:2] == [FileFact(size=3, sha256=hashlib.sha256(b"abc").hexdigest()), None]
    assert [type(each) for each in found[2:]] == [Escape, Escape]
    assert await storage.look_at(uris[:1], prefix=prefix, hashes=False) == [FileFact(size=3)]
    storage.close()
    files.rm("/contract", recursive=True)


async def test_scheme_that_is_not_allowed_is_never_opened() -> None:
    storage = FsspecStorage(schemes=frozenset({"s3"}))
    found = await storage.read_manifest("file:///etc/hostname", prefix="file:///etc", max_bytes=9)
    assert isinstance(found, Escape)
    assert "scheme" in found.detail
    storage.close()


async def test_driver_that_is_not_there_is_a_failure_of_the_storage_and_no_verdict() -> None:
    storage = FsspecStorage(schemes=frozenset({"nonsense"}))
    with pytest.raises(BackendError, match="cannot be read"):
        await storage.read_manifest("nonsense://a/b", prefix="nonsense://a", max_bytes=9)
    storage.close()
