"""Edges of health: what is new in what the plugin holds against its GPUs. Pure; the plugin's answer and a memory in.

    marks now, marks told before ──▶ a mark that is new, or came again after a silence ──▶ one edge, with its own id

Ids follow from the marks, so that a reporter that dies before it has noted what it told tells the same again.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from gpubank.domain.incident import GpuMark, HealthEdge

QUARANTINE: Final = "quarantine"
"""Cause of the mark that people, and incidents, make; no fault of the GPU."""


class Told(NamedTuple):
    """One mark as it was told last."""

    first_at: float
    last_at: float


Memory = Mapping[str, Mapping[str, Told]]
"""What was told, by GPU and cause."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the plugin's answer found."""

    edges: Mapping[str, tuple[HealthEdge, ...]] = field(default_factory=dict)
    """New edges by GPU."""

    repeated: frozenset[str] = frozenset()
    """Ids of those whose fault was told before."""

    memory: Memory = field(default_factory=dict)


def look(inspected: Mapping[str, Any], before: Memory, *, node: str, boot_id: str, burst: float) -> Look:
    """Compare the plugin's answer with what was told before; `burst` in seconds."""
    edges: dict[str, tuple[HealthEdge, ...]] = {}
    repeated: set[str] = set()
    memory: dict[str, dict[str, Told]] = {}
    for gpu in inspected["gpus"]:
        uuid, known = str(gpu["uuid"]), before.get(str(gpu["uuid"]), {})
        found = []
        for mark in faults(gpu):
            cause, told = str(mark["cause"]), known.get(str(mark["cause"]))
            first, last = float(mark["first_at"]), float(mark["last_at"])
            same = told is not None and told.first_at == first
            if told is None or not same or last - told.last_at > burst:
                edge = _edge(mark, node=node, uuid=uuid, boot_id=boot_id, again=same)
                found.append(edge)
                if same:
                    repeated.add(edge.id)
            memory.setdefault(uuid, {})[cause] = Told(first, last)
        if found:
            edges[uuid] = tuple(sorted(found, key=lambda edge: (edge.first_at, edge.cause)))
    return Look(edges=edges, repeated=frozenset(repeated), memory=memory)


def faults(gpu: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Marks of a GPU that are no person's word."""
    return (mark for mark in gpu["marks"] if mark["cause"] != QUARANTINE)


def as_mark(mark: Mapping[str, Any]) -> GpuMark:
    """Put one of the plugin's marks into the incident's words."""
    return GpuMark(
        cause=str(mark["cause"]),
        fault=str(mark["fault"]),
        action=str(mark["action"]),
        first_at=_moment(mark["first_at"]),
        last_at=_moment(mark["last_at"]),
        count=int(mark["count"]),
    )


def _edge(mark: Mapping[str, Any], *, node: str, uuid: str, boot_id: str, again: bool) -> HealthEdge:
    told = as_mark(mark)
    # A fault that lasts moves its `last_at` with every poll; only a repetition is told apart by it.
    moment = f"{mark['first_at']}/{mark['last_at']}" if again else str(mark["first_at"])
    digest = hashlib.sha256(f"{node}/{uuid}/{told.cause}/{moment}".encode()).hexdigest()[:24]
    return HealthEdge(
        id=digest,
        cause=told.cause,
        fault=told.fault,
        action=told.action,
        first_at=told.first_at,
        last_at=told.last_at,
        count=told.count,
        boot_id=boot_id,
    )


def _moment(seconds: Any) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)
