"""Lies about what lies on the storage: the bank reads it itself, and a claim counts for nothing."""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
from tests.fakes.written import (
    Written,
    absolute,
    directory,
    extra,
    flipped,
    folder_link_out,
    link_inside,
    link_out,
    link_to_itself,
    manifest_gone,
    manifest_huge,
    manifest_swapped,
    missing,
    of_another_pod,
    of_another_request,
    other_scheme,
    pipe,
    stale,
    traversal,
    truncated,
    write,
)

UID = "pod-uid-1"
HASHES = AttestPolicy(check_hashes=True)


def request(name: str = "loan/local/uid-1/1", epoch: int = 1, reason: str = "wanted back") -> CheckpointRequest:
    return CheckpointRequest(id=name, epoch=epoch, deadline=datetime.now(UTC) + timedelta(minutes=10), reason=reason)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write(tmp_path / "team" / "run", request("r-1"), uid=UID, root=tmp_path / "team")


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


async def test_a_checkpoint_of_very_many_files_is_looked_at_in_parts_and_in_order(tmp_path: Path) -> None:
    for number in range(0, 3000, 3):
        (tmp_path / f"{number}").write_bytes(b"x" * (number % 7))
    storage, prefix = FsspecStorage(threads=4), tmp_path.as_uri()
    found = await storage.look_at([f"{prefix}/{number}" for number in range(3000)], prefix=prefix, hashes=False)
    storage.close()
    assert found == [None if number % 3 else FileFact(size=number % 7) for number in range(3000)]
