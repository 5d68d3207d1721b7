"""What a real kubelet needs of the machine itself, and how the lab takes it and gives it back.

A kubelet's folder is fixed in its source, so one lab of a machine can have one, and none may where another kubelet
works. A claim, a file in that folder, names the lab; whoever finds the claim of a lab that is gone clears up after it.

    claim ──▶ /var/lib/kubelet, /run/gpubank-lab, cgroups, an address on lo, kernel settings ──▶ release

`release` trusts nothing that a process could have done in an orderly end: it works the same after a SIGKILL.
"""

import ctypes
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from gpubank.lab import loopback
from gpubank.lab.errors import StateError
from gpubank.lab.locks import locked
from gpubank.lab.names import NODE_ADDRESS
from gpubank.lab.state import strays, write_whole
from gpubank.simulation.processes import stop

KUBELET: Final = Path("/var/lib/kubelet")
"""The kubelet's folder: the device plugins' socket in it is fixed in the kubelet's source."""
RUN: Final = Path("/run/gpubank-lab")
"""containerd's state and sockets: on a path that is short enough for a socket, whatever the lab's folder is called."""
TASKS: Final = RUN / "containerd" / "io.containerd.runtime.v2.task" / "k8s.io"
"""One folder per running container."""
NETWORK: Final = "gpubank-lab"
"""Name of the pods' network."""

_CLAIM: Final = ".gpubank-lab.json"
_LOCK: Final = Path("/run/gpubank-lab.lock")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_SHIM_SOCKETS: Final = Path("/run/containerd/s")
"""Where every containerd's shims listen, whatever its state folder; each removes its own."""
_CNI_RESULTS: Final = Path("/var/lib/cni/results")
_LOG_LINKS: Final = Path("/var/log/containers")
_SYSCTLS: Final = (
    # The kubelet sets the first six, the plugin of the pods' network the last.
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
_DETACH: Final = 2 | 8  # MNT_DETACH: also what is in use; UMOUNT_NOFOLLOW: never through a link
_DEATH_SECONDS: Final = 10.0


class Claim(BaseModel):
    """Whose the machine's kubelet folder is, and how the machine was before."""

    model_config = ConfigDict(frozen=True)

    lab: str
    folder: Path
    sysctls: dict[str, str]
    made_folder: bool
    """Whether the kubelet's folder was not there."""
    mounted: bool
    """Whether it was a mount of its own; if not, the kubelet makes it one."""


def claim(lab: str, folder: Path) -> None:
    """Take the machine's one kubelet for the lab in `folder`, clearing up after a lab that is gone.

    Raises StateError if this is not root, or if the machine's kubelet is somebody else's.
    """
    if os.geteuid() != 0:
        raise StateError(
            f"a real kubelet needs root, and this is uid {os.geteuid()};"
            " run the command as root, or leave `--with kubelet` out"
        )
    with locked(_LOCK):
        found = claimed()
        if found and found.folder != folder:
            if next(strays(found.folder), None) is not None:
                raise StateError(
                    f"this machine's kubelet belongs to lab {found.lab!r} in {found.folder}, which runs;"
                    f" run `gpubank lab down --name {found.lab}` first"
                )
            _release(found)
            found = None
        if found is None:
            _refuse_foreign()
            fresh = not KUBELET.exists()
            KUBELET.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = Claim(lab=lab, folder=folder, sysctls=_sysctls(), made_folder=fresh, mounted=KUBELET.is_mount())
            write_whole(KUBELET / _CLAIM, made.model_dump_json(indent=2) + "\n")
        RUN.mkdir(mode=0o711, parents=True, exist_ok=True)
        loopback.add(NODE_ADDRESS)


def release(folder: Path) -> None:
    """Give back whatever the lab in `folder` took of the machine; nothing if it has no claim.

    Raises StateError if something of it does not go away.
    """
    found = claimed()
    if found is None or found.folder != folder:
        return
    with locked(_LOCK):
        _release(found)


def claimed() -> Claim | None:
    """Return the claim on the machine's kubelet, or None."""
    try:
        return Claim.model_validate_json((KUBELET / _CLAIM).read_bytes())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except ValidationError:
        # Of a version that cannot be read: then it is a stranger's.
        return None


def _refuse_foreign() -> None:
    remedy = "use a machine that is no node of a cluster, or leave `--with kubelet` out"
    for pid in _kubelets():
        raise StateError(f"a kubelet that is no lab's runs on this machine, pid {pid}; {remedy}")
    if KUBELET.is_dir() and any(not each.is_dir() or each.is_symlink() for each in KUBELET.rglob("*")):
        raise StateError(f"{KUBELET} holds the files of a kubelet that is no lab's; {remedy}")


def _kubelets() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == "kubelet" and (entry / "exe").exists():
                yield int(entry.name)


def _release(claim_: Claim) -> None:
    for stray in strays(claim_.folder):
        stop(stray, 0)
    containers = [each.name for each in TASKS.iterdir()] if TASKS.is_dir() else []
    groups = [
        group for each in containers for group in (*_CGROUPS.glob(f"*/k8s.io/{each}"), *_CGROUPS.glob(f"k8s.io/{each}"))
    ]
    _end_all(groups)
    _remove_groups(groups)
    for each in containers:
        for address in (TASKS / each).glob("*.sock"):
            address.unlink(missing_ok=True)
        _remove_shim_socket(TASKS / each)
    _unmount(RUN)
    _unmount(KUBELET, itself=not claim_.mounted)
    for result in (*_CNI_RESULTS.glob(f"{NETWORK}-*"), *_log_links(claim_.folder)):
        result.unlink(missing_ok=True)
    _remove_empty(_CNI_RESULTS, _CNI_RESULTS.parent, _LOG_LINKS, _SHIM_SOCKETS, _SHIM_SOCKETS.parent)
    loopback.remove()
    for name, value in claim_.sysctls.items():
        with suppress(OSError):
            Path("/proc/sys", name).write_text(value)
    shutil.rmtree(RUN, ignore_errors=True)
    # The claim goes last: whatever interrupts this, the next one finds it and starts over.
    for entry in KUBELET.iterdir():
        if entry.name != _CLAIM:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (KUBELET / _CLAIM).unlink(missing_ok=True)
    if claim_.made_folder:
        KUBELET.rmdir()


def _end_all(groups: list[Path]) -> None:
    """Kill every process in `groups` and wait until there is none."""
    deadline = time.monotonic() + _DEATH_SECONDS
    while left := {pid for group in groups for pid in _processes(group)}:
        if time.monotonic() > deadline:
            raise StateError(
                f"processes {sorted(left)} of the lab's containers do not die; look at what holds them, then try again"
            )
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _processes(group: Path) -> Iterator[int]:
    for file in (group / "cgroup.procs", *group.glob("**/cgroup.procs")):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def _remove_groups(groups: list[Path]) -> None:
    for group in groups:
        for folder in sorted((each for each in group.glob("**/") if each.is_dir()), reverse=True):
            with suppress(OSError):
                folder.rmdir()
    # Those of containers that ended are gone already. Not if another containerd's containers are in it.
    _remove_empty(_CGROUPS / "k8s.io", *_CGROUPS.glob("*/k8s.io"))


def _remove_shim_socket(bundle: Path) -> None:
    for file in ("bootstrap.json", "address"):
        with suppress(OSError, ValueError):
            text = (bundle / file).read_text()
            start = text.index("unix://") + len("unix://")
            Path(text[start:].split('"')[0].strip()).unlink(missing_ok=True)


def _unmount(place: Path, *, itself: bool = False) -> None:
    """Take away every mount below `place`, and `place` itself if it is one of the lab's."""
    libc = ctypes.CDLL(None, use_errno=True)
    for point in reversed(_mounts(place, itself=itself)):
        libc.umount2(os.fsencode(point), _DETACH)
    if left := _mounts(place, itself=itself):
        raise StateError(
            f"{left[0]} is still mounted, so nothing below {place} was removed; unmount it, then try again"
        )


def _mounts(place: Path, *, itself: bool) -> list[Path]:
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Spaces and the like stand as octal numbers in it.
        point = Path(line.split()[4].encode().decode("unicode_escape"))
        if place in point.parents or (itself and point == place):
            points.append(point)
    return points


def _log_links(folder: Path) -> list[Path]:
    if not _LOG_LINKS.is_dir():
        return []
    return [each for each in _LOG_LINKS.iterdir() if each.is_symlink() and folder in Path(os.readlink(each)).parents]


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _sysctls() -> dict[str, str]:
    found = {}
    for name in _SYSCTLS:
        with suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text().strip()
    return found
