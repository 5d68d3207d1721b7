"""The runner: gives pods on fake nodes a real process, as a kubelet would.

Started by the lab, `python -m gpubank.lab.runner KUBECONFIG STATE_FOLDER LOG_FOLDER`. It looks after every pod that is
bound to a node of kwok's and carries a command annotation (`gpubank.lab.names`). Its processes are not its children in
any way that matters: after a crash the next runner finds them by the records in the state folder, goes on with those
whose pods are still there, and ends the rest.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.operators import BinaryOperator, SequenceOperator, not_equal
from lightkube.resources.core_v1 import Node, Pod

from gpubank.lab.names import COMMAND, FAKE_NODE, FAKE_NODE_VALUE, RUNNER_READY
from gpubank.lab.podprocess import POD_UID, PodRecord, annotations_of, meta_of
from gpubank.lab.state import MARKER, strays
from gpubank.lab.supervisor import Supervisor
from gpubank.simulation.processes import stop

log = logging.getLogger(__name__)

LAST_GRACE: Final = 2.0
"""Seconds that processes get when the runner itself is told to end."""
_BOUND: Final[dict[str, str | BinaryOperator | SequenceOperator]] = {"spec.nodeName": not_equal("")}


class Runner:
    """Watches pods and keeps one supervisor for each that is its business."""

    def __init__(self, client: AsyncClient, folder: Path, logs: Path) -> None:
        self._client, self._folder, self._logs = client, folder, logs
        self._supervisors: dict[str, Supervisor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._fake: dict[str, bool] = {}

    async def run(self) -> None:
        """Look after pods until cancelled."""
        _end_unrecorded(self._folder)
        while True:
            try:
                version = await self._list()
                (self._folder / RUNNER_READY).touch()
                await self._watch(version)
            except (ApiError, httpx2.HTTPError) as error:
                log.warning("lost sight of the pods, looking again: %r", error)
                await asyncio.sleep(0.3)

    async def close(self) -> None:
        """End every process; the lab goes down."""
        (self._folder / RUNNER_READY).unlink(missing_ok=True)
        tasks = [*self._tasks.values(), *self._endings]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.stop(LAST_GRACE) for each in self._supervisors.values()))

    async def _list(self) -> str:
        found = self._client.list(Pod, namespace="*", fields=_BOUND)
        pods = [pod async for pod in found]
        for pod in pods:
            await self._see(pod)
        there = {str(meta_of(pod).uid) for pod in pods}
        for uid, supervisor in self._supervisors.items():
            if uid not in there:
                supervisor.lost()
        self._end_orphans(there)
        return found.resourceVersion

    async def _watch(self, version: str) -> None:
        async for operation, pod in self._client.watch(Pod, namespace="*", fields=_BOUND, resource_version=version):
            if operation == "DELETED":
                if supervisor := self._supervisors.get(str(meta_of(pod).uid)):
                    supervisor.lost()
            elif operation in {"ADDED", "MODIFIED"}:
                await self._see(pod)

    async def _see(self, pod: Pod) -> None:
        uid = str(meta_of(pod).uid)
        if supervisor := self._supervisors.get(uid):
            supervisor.see(pod)
            return
        if COMMAND not in annotations_of(pod) or not await self._plays(pod):
            return
        finished = pod.status is not None and pod.status.phase in {"Succeeded", "Failed"}
        if finished and not meta_of(pod).deletionTimestamp and not self._recorded(uid):
            return
        supervisor = Supervisor(self._client, pod, self._folder, self._logs)
        self._supervisors[uid] = supervisor
        task = asyncio.create_task(supervisor.run(), name=f"{supervisor.namespace}/{supervisor.name}")
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._finished(uid, done))

    def _finished(self, uid: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return  # close() still needs the supervisor
        del self._supervisors[uid], self._tasks[uid]
        if error := task.exception():
            log.error("%s: %r", task.get_name(), error, exc_info=error)

    def _recorded(self, uid: str) -> bool:
        return PodRecord.load(self._folder / uid) is not None

    async def _plays(self, pod: Pod) -> bool:
        """Tell whether the pod's node is one that nobody else looks after."""
        name = str(pod.spec.nodeName if pod.spec else "")
        if name not in self._fake:
            try:
                node = await self._client.get(Node, name)
            except ApiError as error:
                if error.status.code != 404:
                    raise
                return False
            marks = (node.metadata.annotations if node.metadata else None) or {}
            self._fake[name] = marks.get(FAKE_NODE) == FAKE_NODE_VALUE
        return self._fake[name]

    def _end_orphans(self, there: set[str]) -> None:
        """End recorded processes whose pods went while no runner looked."""
        for folder in self._folder.iterdir():
            record = PodRecord.load(folder) if folder.is_dir() else None
            if record and record.uid not in there and record.uid not in self._supervisors:
                log.info("%s/%s is gone; ending pid %d", record.namespace, record.name, record.pid)
                task = asyncio.create_task(_end(record, folder))
                self._endings.add(task)
                task.add_done_callback(self._endings.discard)


async def _end(record: PodRecord, folder: Path) -> None:
    await record.process(folder).stop(record.grace)
    shutil.rmtree(folder, ignore_errors=True)


def _end_unrecorded(folder: Path) -> None:
    """End processes that a predecessor started a moment before it died, too late to keep a record."""
    records = [record for path in folder.iterdir() if path.is_dir() and (record := PodRecord.load(path))]
    known = {record.pid for record in records}
    for process in strays(Path(os.environ[MARKER]), having=POD_UID):
        try:
            leader = os.getsid(process.pid)
        except ProcessLookupError:
            continue
        if leader not in known:
            log.warning("pid %d has no record; ending it", process.pid)
            stop(process, LAST_GRACE)


async def main(kubeconfig: Path, folder: Path, logs: Path) -> None:
    """Run until SIGTERM or SIGINT."""
    client = AsyncClient(config=KubeConfig.from_file(kubeconfig), trust_env=False, field_manager="gpubank-lab-runner")
    runner = Runner(client, folder, logs)
    task = asyncio.create_task(runner.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("told to end")
    finally:
        await runner.close()
        await client.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    asyncio.run(main(*(Path(argument) for argument in sys.argv[1:4])))
