"""What is held against a GPU: one mark per cause, with when, why, and what it takes to go."""

from dataclasses import dataclass, replace
from typing import Any, Final

from nodeagent.nvml.snapshot import ANY_INSTANCE

WHOLE: Final = (ANY_INSTANCE, ANY_INSTANCE)
"""Place of a mark on the whole GPU."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One cause."""

    cause: str
    """As in `xid 79`, `lost`, `recovery action GPU_RESET`, `quarantine`."""

    fault: str
    """Class by the policy."""

    action: str
    """What the policy asks people to do."""

    first_at: float
    """Seconds since the epoch when it was first reported."""

    last_at: float
    """Seconds since the epoch when it was last reported."""

    count: int = 1
    gi: int = ANY_INSTANCE
    ci: int = ANY_INSTANCE
    note: str = ""
    """Who said it and why, where a person did."""

    def again(self, now: float) -> "Mark":
        """Return the mark reported once more; a clock that went back moves nothing back."""
        return replace(self, last_at=max(self.last_at, now), count=self.count + 1)

    def touches(self, gi: int, ci: int) -> bool:
        """Whether it concerns this instance; a device that is the whole GPU is concerned by every mark on it."""
        if (gi, ci) == WHOLE or self.gi == ANY_INSTANCE:
            return True
        return gi == self.gi and (ci == self.ci or ANY_INSTANCE in (ci, self.ci))

    def to_json(self) -> dict[str, Any]:
        """Write it for the state file."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, body: Any) -> "Mark":
        """Read it; raises ValueError, TypeError or KeyError for what is none."""
        return cls(
            cause=str(body["cause"]),
            fault=str(body["fault"]),
            action=str(body["action"]),
            first_at=float(body["first_at"]),
            last_at=float(body["last_at"]),
            count=int(body["count"]),
            gi=int(body["gi"]),
            ci=int(body["ci"]),
            note=str(body["note"]),
        )
