"""The book of marks: reports in, health out. `now`, in seconds since the epoch, is an argument; nothing is read.

observe: what polling saw      event: what NVML told      quarantine, release: what people say
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gpubank.domain.errors import ConflictError
from nodeagent.health.marks import Mark
from nodeagent.health.policy import MANUAL, Judgement, Policy, Symptom
from nodeagent.nvml.snapshot import ANY_INSTANCE, Condition, Event, EventKind, RecoveryAction

QUARANTINE: Final = "quarantine"
"""Cause of the mark that a person makes."""

_VERDICT_CHANGED: Final = 154
"""XID with which the driver says that its recovery action has changed."""

_KEYS_KEPT: Final = 256
"""Keys of orders that are remembered, so that an order that arrives again is not carried out again."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one poll of a GPU saw: a condition, or why there is none."""

    condition: Condition | None = None
    symptom: Symptom | None = None
    detail: str = ""


@dataclass(slots=True)
class HealthBook:
    """Marks of every GPU, by UUID; GPUs without any are not in it."""

    policy: Policy
    marks: dict[str, dict[str, Mark]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    _seen: dict[str, Observation] = field(default_factory=dict)

    # ---------------------------------------------------------------------------------------------- reports

    def observe(self, uuid: str, seen: Observation, now: float) -> bool:
        """Take in what a poll saw; a transient fault that has been quiet long enough is over. True if marks changed."""
        before = dict(self.marks.get(uuid, {}))
        self._seen[uuid] = seen
        if seen.symptom is not None:
            self._mark(uuid, str(seen.symptom), self.policy.of_symptom(seen.symptom), now)
        elif seen.condition is not None:
            self._take_condition(uuid, seen.condition, now)
            self._let_go(uuid, now)
        # A poll repeats what is there: only what is new or gone is a change worth writing.
        return before.keys() != self.marks.get(uuid, {}).keys()

    def event(self, event: Event, now: float, condition: Condition | None = None) -> bool:
        """Take in one event; `condition` is how the GPU is right after it, if it answers. True if marks changed."""
        before = dict(self.marks.get(event.uuid, {}))
        verdict = self.policy.of_action(condition.recovery_action) if condition else None
        if event.kind is EventKind.XID:
            judged = self.policy.of_xid(event.data)
            # 154 only says that the verdict changed: a driver that can tell it has the last word.
            told = condition is not None and condition.recovery_action is not None
            if not (event.data == _VERDICT_CHANGED and told) and not self.policy.schedulable(judged.fault):
                self._mark(event.uuid, f"xid {event.data}", judged, now, event.gi, event.ci)
        elif event.kind is EventKind.DOUBLE_BIT_ECC:
            self._mark(
                event.uuid, Symptom.ECC_EVENT, self.policy.of_symptom(Symptom.ECC_EVENT), now, event.gi, event.ci
            )
        elif event.kind is EventKind.GPU_UNAVAILABLE:
            self._mark(event.uuid, Symptom.UNAVAILABLE, self.policy.of_symptom(Symptom.UNAVAILABLE), now)
        if verdict is not None and condition is not None:
            self._take_condition(event.uuid, condition, now)
        return before != self.marks.get(event.uuid, {})

    # ----------------------------------------------------------------------------------------------- orders

    def quarantine(self, uuid: str, by: str, reason: str, now: float, key: str = "") -> bool:
        """Take a GPU out because a person says so; False if the order with this key was carried out before."""
        if self._known(key):
            return False
        mark = Mark(QUARANTINE, MANUAL, "MANUAL", now, now, note=f"{by}: {reason}")
        self.marks.setdefault(uuid, {})[QUARANTINE] = mark
        self._remember(key)
        return True

    def release(self, uuid: str, now: float, key: str = "") -> bool:
        """Put a GPU back; False if the order with this key was carried out before, or nothing is held against it.

        Raises ConflictError while the GPU itself still reports a fault, for it would be taken out again at once.
        """
        if self._known(key):
            return False
        if still := self.still_wrong(uuid):
            raise ConflictError(f"GPU {uuid!r} cannot be released: it still reports {still}; mend it first")
        self._remember(key)
        return self.marks.pop(uuid, None) is not None

    def still_wrong(self, uuid: str) -> str:
        """What the last poll of the GPU saw that speaks against it; empty if nothing, or if it was never polled."""
        seen = self._seen.get(uuid)
        if seen is None:
            return ""
        if seen.symptom is not None:
            return f"{seen.symptom} ({seen.detail})" if seen.detail else str(seen.symptom)
        return ", ".join(cause for cause, _ in self._faults(seen.condition)) if seen.condition else ""

    def verdict(self, uuid: str) -> str:
        """The driver's recovery action by the last poll, as in `NONE`; empty where it did not tell."""
        seen = self._seen.get(uuid)
        if seen is None or seen.condition is None or seen.condition.recovery_action is None:
            return ""
        return seen.condition.recovery_action.name

    # ---------------------------------------------------------------------------------------------- answers

    def against(self, uuid: str, gi: int = ANY_INSTANCE, ci: int = ANY_INSTANCE) -> tuple[Mark, ...]:
        """Marks that keep new pods off this device, oldest first."""
        found = (
            mark
            for mark in self.marks.get(uuid, {}).values()
            if mark.touches(gi, ci) and not self.policy.schedulable(mark.fault)
        )
        return tuple(sorted(found, key=lambda mark: (mark.first_at, mark.cause)))

    def reason(self, uuid: str, gi: int = ANY_INSTANCE, ci: int = ANY_INSTANCE) -> str:
        """Why the device is unhealthy, for people; empty if it is healthy."""
        return "; ".join(
            f"{mark.cause} ({mark.fault}{f', {mark.note}' if mark.note else ''})" for mark in self.against(uuid, gi, ci)
        )

    # ------------------------------------------------------------------------------------------------ parts

    def _take_condition(self, uuid: str, condition: Condition, now: float) -> None:
        for cause, judged in self._faults(condition):
            self._mark(uuid, cause, judged, now)

    def _faults(self, condition: Condition) -> Iterator[tuple[str, Judgement]]:
        verdict = self.policy.of_action(condition.recovery_action)
        if verdict is not None:
            yield f"recovery action {verdict.action}", verdict
        if condition.remap_failed:
            yield Symptom.REMAP_FAILED, self.policy.of_symptom(Symptom.REMAP_FAILED)
        # A driver that says nothing is needed knows about its own pending rows.
        elif condition.remap_pending and condition.recovery_action is not RecoveryAction.NONE:
            yield Symptom.REMAP_PENDING, self.policy.of_symptom(Symptom.REMAP_PENDING)
        if condition.thermal_slowdown:
            yield Symptom.THERMAL, self.policy.of_symptom(Symptom.THERMAL)

    def _mark(
        self, uuid: str, cause: str, judged: Judgement, now: float, gi: int = ANY_INSTANCE, ci: int = ANY_INSTANCE
    ) -> None:
        if self.policy.schedulable(judged.fault):
            return
        where = str(cause) if gi == ANY_INSTANCE else f"{cause} on instance {gi}/{ci}"
        marks = self.marks.setdefault(uuid, {})
        known = marks.get(where)
        if known is not None:
            marks[where] = known.again(now)
        else:
            marks[where] = Mark(where, judged.fault, judged.action, now, now, gi=gi, ci=ci)

    def _let_go(self, uuid: str, now: float) -> None:
        if self.still_wrong(uuid):
            return
        marks = self.marks.get(uuid, {})
        for cause, mark in list(marks.items()):
            if self.policy.recovers_locally(mark.fault) and now - mark.last_at >= self.policy.quiet_seconds:
                del marks[cause]
        if not marks:
            self.marks.pop(uuid, None)

    def _known(self, key: str) -> bool:
        return bool(key) and key in self.keys

    def _remember(self, key: str) -> None:
        if key:
            self.keys = [*self.keys, key][-_KEYS_KEPT:]
