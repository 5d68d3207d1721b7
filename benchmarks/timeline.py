"""What a workflow did when: its activities, signals and timers, as seconds since a moment."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client


class Moment(NamedTuple):
    """One activity from when it was scheduled, or one event by itself; seconds since the timeline's beginning."""

    workflow: str
    what: str
    scheduled: float
    started: float
    ended: float

    def __str__(self) -> str:
        waited, took = self.started - self.scheduled, self.ended - self.started
        return f"{self.scheduled:8.3f}  +{waited:.3f}  +{took:.3f}  {self.workflow:<8} {self.what}"


async def timeline(client: Client, name: str, workflow: str, since: datetime) -> AsyncIterator[Moment]:
    """Yield the last run's moments after `since`, shown as `name`."""

    def offset(event: HistoryEvent) -> float:
        return (event.event_time.ToDatetime(tzinfo=since.tzinfo) - since).total_seconds()

    scheduled: dict[int, tuple[str, float]] = {}
    started: dict[int, float] = {}
    async for event in client.get_workflow_handle(workflow).fetch_history_events():
        at = offset(event)
        kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
        if kind == "ACTIVITY_TASK_SCHEDULED":
            about = event.activity_task_scheduled_event_attributes
            scheduled[event.event_id] = (about.activity_type.name, at)
        elif kind == "ACTIVITY_TASK_STARTED":
            started[event.activity_task_started_event_attributes.scheduled_event_id] = at
        elif kind.startswith("ACTIVITY_TASK_") and kind != "ACTIVITY_TASK_CANCEL_REQUESTED":
            end = kind.removeprefix("ACTIVITY_TASK_").lower()
            about_end = getattr(event, f"activity_task_{end}_event_attributes")
            what, begun = scheduled[about_end.scheduled_event_id]
            first = started.get(about_end.scheduled_event_id, at)
            if at >= 0:
                yield Moment(name, what if end == "completed" else f"{what} ({end})", begun, first, at)
        elif at >= 0 and kind in ("WORKFLOW_EXECUTION_SIGNALED", "TIMER_FIRED", "WORKFLOW_EXECUTION_STARTED"):
            signal = event.workflow_execution_signaled_event_attributes.signal_name
            yield Moment(name, f"{kind.lower()} {signal}".strip(), at, at, at)
