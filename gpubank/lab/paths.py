"""Where a lab keeps things: what can be rebuilt in the cache, what belongs to one running lab in the state folder."""

import os
import re
from pathlib import Path
from typing import Final

from gpubank.lab.errors import StateError

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def cache_root() -> Path:
    """Folder of the built servers: `GPUBANK_LAB_CACHE`, else below `XDG_CACHE_HOME`, else below `~/.cache`."""
    if chosen := os.environ.get("GPUBANK_LAB_CACHE"):
        return Path(chosen).expanduser().absolute()
    return _xdg("XDG_CACHE_HOME", ".cache") / "gpubank" / "lab"


def state_root() -> Path:
    """Folder with one folder per lab: `GPUBANK_LAB_STATE`, else below `XDG_STATE_HOME` or `~/.local/state`."""
    if chosen := os.environ.get("GPUBANK_LAB_STATE"):
        return Path(chosen).expanduser().absolute()
    return _xdg("XDG_STATE_HOME", ".local/state") / "gpubank" / "lab"


def checked_name(name: str) -> str:
    """Return `name`, or raise StateError unless it is a DNS label: it names a folder and certificates."""
    if not _NAME.fullmatch(name):
        raise StateError(f"lab name {name!r} is not a DNS label; use lower-case letters, digits and dashes, at most 40")
    return name


def _xdg(variable: str, default: str) -> Path:
    # The XDG specification wants relative values ignored.
    value = os.environ.get(variable, "")
    return Path(value) if os.path.isabs(value) else Path.home() / default
