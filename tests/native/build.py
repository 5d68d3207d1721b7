"""Builds the stand-in for `libnvidia-ml.so.1` with the machine's C compiler, once per content, into a cache."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).with_name("nvml")
SONAME: Final = "libnvidia-ml.so.1"
FLAGS: Final = ("-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-Wl,-soname,{SONAME}")


class NoCompilerError(Exception):
    """There is no C compiler on this machine."""


def build() -> Path:
    """Return the library's path; it lies alone in its folder, fit for LD_LIBRARY_PATH.

    Raises NoCompilerError, and CalledProcessError with the compiler's words if the sources do not compile.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompilerError("no gcc or cc on the PATH; install one to run the tests of the node agent")
    files = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join((compiler.encode(), *map(Path.read_bytes, files), " ".join(FLAGS).encode())))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "gpubank" / "tests" / f"nvml-{digest.hexdigest()[:16]}"
    library = folder / SONAME
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / SONAME
            command = [compiler, *FLAGS, "-o", str(made), *(str(file) for file in files if file.suffix == ".c")]
            subprocess.run(command, check=True, capture_output=True, text=True)
            made.rename(library)  # two test runs at once: the last one wins, with the same content
    return library
