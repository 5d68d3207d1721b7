"""Take the images' lock files from requirements.lock: `python -m containers.locks` in an environment made of it.

    runtime.lock    what the project depends on, with the extra `nodeagent`: the controller serves nodes over gRPC
    nodeagent.lock  what the processes on a node import, and no more
    build.lock      what builds its wheel

The whole lock holds tests, lab and trainer too, and no edges between packages; those are read off what is installed.
"""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ("hatchling", "editables")
NODEAGENT: Final = ("cryptography", "pydantic", "pydantic-settings", "pyyaml", "temporalio")
"""What the processes on a node import besides the extra; Temporal is the reporter's."""

TARGET: Final = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
_HEAD: Final = "# Written by `python -m containers.locks` from requirements.lock.\n"


def closure(*roots: str) -> set[str]:
    """Return the names of everything that the requirements `roots` need on Linux, themselves included."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        for text in distribution(requirement.name).requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or _holds(wanted.marker, requirement.extras):
                waiting.append(wanted)
    return {name for name, _ in seen}


def blocks() -> dict[str, str]:
    """Return the lock's entries by name: pin, marker and hashes."""
    parts = re.split(r"\n(?=[A-Za-z0-9])", "\n" + (ROOT / "requirements.lock").read_text(encoding="utf-8").strip())
    return {canonicalize_name(re.split(r"[=\[ ]", part)[0]): part for part in parts if part.strip()}


def files() -> dict[str, str]:
    """Render the lock files, by name."""
    known = blocks()
    wanted = {
        "runtime.lock": closure(*_dependencies(), *_extra("nodeagent")),
        "nodeagent.lock": closure(*NODEAGENT, *_extra("nodeagent")),
        "build.lock": closure(*BUILD),
    }
    return {
        file: _HEAD + "".join(f"{known[name].rstrip()}\n" for name in sorted(names)) for file, names in wanted.items()
    }


def _dependencies() -> list[str]:
    found: list[str] = _project()["dependencies"]
    return found


def _extra(name: str) -> list[str]:
    found: list[str] = _project()["optional-dependencies"][name]
    return found


def _project() -> dict[str, Any]:
    # From the project file, for an editable installation may remember an older one.
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def _holds(marker: Marker, extras: set[str]) -> bool:
    return any(marker.evaluate({**TARGET, "extra": extra}) for extra in extras or {""})


if __name__ == "__main__":
    for file, text in files().items():
        (ROOT / "containers" / file).write_text(text, encoding="utf-8")
