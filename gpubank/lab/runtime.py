"""What a real node needs beside what Go builds: runc, and the image that every pod starts with.

runc is taken from the machine. A machine without it gets Debian's package into the cache: nothing is installed. The
image holds one program, compiled from a C file of a few lines.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from gpubank.lab import oci
from gpubank.lab.errors import BuildError
from gpubank.lab.paths import cache_root

PAUSE_IMAGE: Final = "gpubank.dev/lab/pause:1"
"""Image of a pod that does nothing, and of every pod's first process."""
_SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where runc is although a user's PATH does not say so."""
_ARCHIVE: Final = "pause.tar"


def provide() -> None:
    """Get runc and the image; what the cache or the machine has is taken from there. Raises BuildError."""
    if runc() is None:
        _fetch_runc()
    if not pause_archive().exists():
        _make_pause()


def runc() -> Path | None:
    """Return runc, from PATH or from the cache, or None."""
    for found in _places():
        if found.is_file() and os.access(found, os.X_OK):
            return found
    return None


def pause_archive() -> Path:
    """Return where the image is kept; `provide` makes it."""
    return cache_root() / f"pause-{_pause_digest()}" / _ARCHIVE


def _places() -> Iterator[Path]:
    for folder in (*os.environ.get("PATH", os.defpath).split(os.pathsep), *_SYSTEM_FOLDERS):
        yield Path(folder) / "runc"
    yield from sorted(cache_root().glob("runc-debian-*/usr/sbin/runc"))


def _fetch_runc() -> None:
    remedy = "install runc 1.1 or newer and put it on PATH"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise BuildError(f"runc is not on this machine, and it is no Debian to take the package of; {remedy}")
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-runc-", dir=root) as scratch:
        folder = Path(scratch)
        # As root, apt would drop to a user that cannot write here.
        fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "runc"]
        done = _run(fetch, folder)
        if done.returncode and os.geteuid() == 0:
            # A fresh machine has no package lists.
            _run(["apt-get", "update"], folder)
            done = _run(fetch, folder)
        packages = list(folder.glob("runc_*.deb"))
        if done.returncode or not packages:
            raise BuildError(
                f"runc is not on this machine, and `apt-get download runc` failed: {done.stderr.strip()[-500:]};"
                f" run `apt-get update` as root, or {remedy}"
            )
        version = packages[0].name.split("_")[1].replace("%", "-")
        done = _run(["dpkg-deb", "-x", packages[0].name, "made"], folder)
        if done.returncode:
            raise BuildError(f"runc {version}: its package does not unpack: {done.stderr.strip()[-500:]}; {remedy}")
        target = root / f"runc-debian-{version}"
        shutil.rmtree(target, ignore_errors=True)
        (folder / "made").rename(target)


def _make_pause() -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    remedy = "install gcc and the C library's static files (Debian: gcc, libc6-dev)"
    if compiler is None:
        raise BuildError(f"the image of a pod's first process needs a C compiler, and there is none; {remedy}")
    root, target = cache_root(), pause_archive()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-pause-", dir=root) as scratch:
        folder = Path(scratch)
        (folder / "pause.c").write_bytes(_pause_source())
        done = _run([compiler, "-static", "-Os", "-s", "-o", "pause", "pause.c"], folder)
        if done.returncode:
            raise BuildError(f"the program of a pod's first process does not compile; {remedy}:\n{done.stderr[-800:]}")
        program = (folder / "pause").read_bytes()
        image = oci.archive(
            PAUSE_IMAGE, {"pause": program}, ["/pause"], machine=platform.machine(), folders=["tmp", "var/tmp"]
        )
        made = folder / "made"
        made.mkdir()
        (made / _ARCHIVE).write_bytes(image)
        if not target.exists():
            made.rename(target.parent)


def _pause_source() -> bytes:
    return (resources.files("gpubank.lab") / "c" / "pause.c").read_bytes()


def _pause_digest() -> str:
    recipe = resources.files("gpubank.lab") / "oci.py"
    return hashlib.sha256(_pause_source() + recipe.read_bytes() + PAUSE_IMAGE.encode()).hexdigest()[:12]


def _run(argv: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
