"""One collection of attribution: ask every source once, and go on with what was known where one is silent."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from gpubank.domain.attribution import NodeMetadata
from gpubank.domain.errors import BackendError
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.checkpoint import Holdings
from nodeagent.attribution.identity import Witnesses
from nodeagent.attribution.inventory import Inventory
from nodeagent.attribution.kubelet import KubeletAbsentError
from nodeagent.attribution.mapping import UNKNOWN, Attribution, attribute
from nodeagent.attribution.memory import Memory
from nodeagent.attribution.store import SnapshotStore

log = logging.getLogger(__name__)

T = TypeVar("T")

KEEP_SECONDS: Final = 600.0
"""How long the last allocations count while the kubelet is silent; after that nobody can say who holds what."""

FRESH_SECONDS: Final = 300.0
"""How old a snapshot may be to tell a pod's UID from its name."""


class Source(StrEnum):
    """Where attribution comes from."""

    POD_RESOURCES = "pod_resources"
    PODS_API = "pods_api"
    CHECKPOINT = "checkpoint"


class AllocationSource(Protocol):
    """What was handed to whom."""

    def list(self) -> Sequence[Allocation]:
        """Return every allocation. Raises BackendError."""
        ...


class PodSource(Protocol):
    """Which pods the kubelet runs."""

    def uids(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """Return the UIDs of every pod by namespace and name. Raises BackendError."""
        ...


@dataclass(slots=True)
class SourceState:
    """How a source is doing."""

    calls: int = 0
    failures: int = 0
    answered_at: float | None = None
    """When it last answered, on the monotonic clock."""

    problem: str = ""
    """Why it last did not; empty while it does."""


class Attributor:
    """Collects attribution; one thread at a time."""

    def __init__(
        self,
        allocations: AllocationSource,
        *,
        pods: PodSource | None = None,
        checkpoint: Callable[[], Holdings] | None = None,
        store: SnapshotStore | None = None,
        memory: Memory | None = None,
        keep_seconds: float = KEEP_SECONDS,
        fresh_seconds: float = FRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._allocations, self._pods, self._checkpoint, self._store = allocations, pods, checkpoint, store
        self._memory = memory or Memory()
        self._keep, self._fresh, self._clock, self._now = keep_seconds, fresh_seconds, clock, now
        self._listed: Sequence[Allocation] | None = None
        self._witnesses = Witnesses()
        self.sources: dict[Source, SourceState] = {Source.POD_RESOURCES: SourceState()}
        if pods is not None:
            self.sources[Source.PODS_API] = SourceState()
        if checkpoint is not None:
            self.sources[Source.CHECKPOINT] = SourceState()

    @property
    def unsaved(self) -> int:
        """Changes of holders that a restart would forget."""
        return self._memory.unsaved

    def collect(self, inventory: Inventory) -> Attribution:
        """Say who holds what now; asks every source once at most."""
        listed = self._ask(Source.POD_RESOURCES, self._allocations.list)
        metadata, now = self._store.current if self._store is not None else None, self._now()
        if listed is not None:
            # Witnesses belong to the list that they are asked about, and are kept with it.
            self._listed, self._witnesses = listed, self._witnesses_of(listed)
        answered = self.sources[Source.POD_RESOURCES].answered_at
        if self._listed is None or answered is None or self._clock() - answered > self._keep:
            return Attribution(devices=dict.fromkeys(inventory.devices, UNKNOWN))
        witnesses = Witnesses(
            self._witnesses.pods, self._witnesses.checkpoint, metadata, fresh=self._is_fresh(metadata, now)
        )
        found = attribute(self._listed, inventory, witnesses, metadata, now=now)
        return self._memory.complete(found, inventory, now=self._clock())

    def _witnesses_of(self, listed: Sequence[Allocation]) -> Witnesses:
        if not listed:
            return Witnesses()  # a node on which nobody holds anything costs one call
        pods = self._ask(Source.PODS_API, self._pods.uids) if self._pods is not None else None
        checkpoint = self._ask(Source.CHECKPOINT, self._checkpoint) if self._checkpoint is not None else None
        return Witnesses(pods, checkpoint)

    def _is_fresh(self, metadata: NodeMetadata | None, now: datetime) -> bool:
        return metadata is not None and (now - metadata.issued_at).total_seconds() <= self._fresh

    def _ask(self, source: Source, ask: Callable[[], T]) -> T | None:
        state = self.sources[source]
        state.calls += 1
        try:
            answer = ask()
        except BackendError as error:
            state.failures += not isinstance(error, KubeletAbsentError)
            if not state.problem:
                log.warning("attribution: %s", error)
            state.problem = str(error)
            return None
        if state.problem:
            log.info("attribution: %s answers again", source)
        state.problem, state.answered_at = "", self._clock()
        return answer
