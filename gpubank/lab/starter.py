"""Starts components in the order of their dependencies and waits until each serves."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Final

from gpubank.lab.components import Component, Context
from gpubank.lab.errors import LabError, StartError, tail
from gpubank.lab.progress import Progress, Report, Stage
from gpubank.lab.state import Record
from gpubank.simulation.processes import launch

POLL: Final = 0.05
"""Seconds between two looks at what is starting."""


class Starter:
    """Brings components up; every started process is handed to `keep` before anything else happens to it."""

    def __init__(self, context: Context, keep: Callable[[Record], None], report: Report) -> None:
        self._context, self._keep, self._report = context, keep, report
        self._ready: set[str] = set()
        self._running: dict[str, tuple[Record, float]] = {}

    def start(self, components: Sequence[Component], *, settled: Sequence[str] = ()) -> None:
        """Start `components` and return when all are ready; those in `settled` are so already.

        Raises StartError, with the end of its log, for the first one that dies or takes too long.
        """
        self._ready.update(settled)
        for component in components:
            self._report(Progress(component.name, Stage.WAITING, ", ".join(component.depends_on)))
        waiting = list(components)
        while waiting or self._running:
            for component in [each for each in waiting if self._ready.issuperset(each.depends_on)]:
                waiting.remove(component)
                self._launch(component)
            self._look(components)
            time.sleep(POLL)

    def _launch(self, component: Component) -> None:
        context, log = self._context, self._context.log(component.name)
        self._report(Progress(component.name, Stage.STARTING, "preparing"))
        component.prepare(context)
        argv = component.argv(context)
        try:
            process = launch(argv, env=context.environment(component.environment(context)), log=log)
        except OSError as error:
            raise StartError(f"{component.name} cannot be started: {error}") from error
        record = Record(component=component.name, pid=process.pid, started=process.started, log=log)
        self._keep(record)
        self._running[component.name] = (record, time.monotonic())

    def _look(self, components: Sequence[Component]) -> None:
        for component in [each for each in components if each.name in self._running]:
            record, since = self._running[component.name]
            took = time.monotonic() - since
            missing = self._missing(component)
            if missing is None:
                del self._running[component.name]
                component.settle(self._context)
                self._ready.add(component.name)
                self._report(Progress(component.name, Stage.READY, seconds=time.monotonic() - since))
                continue
            if not record.identity.alive():
                raise StartError(self._failed(component, "died while it started"))
            if took > component.start_timeout:
                raise StartError(self._failed(component, f"is not ready after {took:.0f} s: {missing}"))
            self._report(Progress(component.name, Stage.STARTING, missing))

    def _missing(self, component: Component) -> str | None:
        with suppress(LabError):
            try:
                return component.ready(self._context)
            except (OSError, HTTPException) as error:
                return f"{type(error).__name__}: {error}"
        return "its set-up is not complete"

    def _failed(self, component: Component, what: str) -> str:
        log = self._context.log(component.name)
        return f"{component.name} {what}; its log is {log} and ends with\n{tail(log)}"
