"""A true checkpoint on a local folder, and what can be wrong with it: each lie tampers with one that was honest."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubank.domain.checkpoint import CheckpointRequest
from gpubank.hook import Answer, Hook
from gpubank.hook.protocol import parse_request


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


def write(storage: Path, asked: CheckpointRequest, *, uid: str, root: Path | None = None, step: int = 7) -> Written:
    """Have the real hook answer a request truly, below `storage`; `root` is what the bank may read of."""
    claims: list[Answer] = []
    hook = Hook(storage, uid=uid, on_status=claims.append)
    hook.requested(step)  # it has come so far when it is asked
    hook._desk.ask(parse_request(asked.to_wire().encode()))
    hook.save(step, lambda folder: (folder / "weights.bin").write_bytes(b"w" * 1000), hook.requested(step))
    latest = hook.latest()
    assert latest is not None
    return Written(latest.path, root or storage, claims[-1])


Lie = Callable[[Written], None]


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


def counts_extra(written: Written) -> None:
    written.claim["manifest"]["files"] += 1


def lists_extra(written: Written) -> None:
    written.rewrite(files=[*written.manifest()["files"], {"path": "optim.bin", "size": 7, "sha256": "0" * 64}])


def manifest_garbage(written: Written) -> None:
    raw = b"[" * 20_000
    (written.folder / "manifest.json").write_bytes(raw)
    written.claim["manifest"]["sha256"] = hashlib.sha256(raw).hexdigest()


def claimed_by_another_pod(written: Written) -> None:
    written.claim["trainerUID"] = "pod-uid-0"


def answers_another_request(written: Written) -> None:
    written.claim["id"] = "r-0"


def from_the_future(written: Written) -> None:
    written.claim["durableAt"] = "2999-01-01T00:00:00Z"


def from_the_past(written: Written) -> None:
    written.claim["durableAt"] = "2020-01-01T00:00:00Z"


def names_no_manifest(written: Written) -> None:
    del written.claim["manifest"]


def of_another_team(written: Written) -> None:
    """Lead to a checkpoint that is whole, and somebody else's."""
    other = written.root.with_name(f"{written.root.name}-other") / written.folder.name
    shutil.copytree(written.folder, other)
    written.claim["uri"] = other.as_uri()
    written.claim["manifest"]["uri"] = (other / "manifest.json").as_uri()


def storage_gone(written: Written) -> None:
    shutil.rmtree(written.root)


def on(storage: str) -> Lie:
    """Let the checkpoint lie elsewhere than it was written, under `storage`."""

    def lie(written: Written) -> None:
        here, there = written.root.as_uri(), storage.rstrip("/")
        written.claim["uri"] = written.claim["uri"].replace(here, there)
        written.claim["manifest"]["uri"] = written.claim["manifest"]["uri"].replace(here, there)

    return lie
