"""What a lab reports while it works, so that the CLI can show it and a library caller may ignore it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """How far one component is."""

    WAITING = "waiting"
    BUILDING = "building"
    BUILT = "built"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Progress:
    """One step of one component."""

    component: str
    stage: Stage
    detail: str = ""
    """What is being waited for, for people."""
    seconds: float | None = None
    """How long the finished step took; None while it runs."""


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore progress."""
