"""One pod's process from the pod's first sight to its last: what a kubelet would do, for a local process.

    bound ──finalizer──▶ held ──start──▶ Running ──exit──▶ Succeeded | Failed ──▶ released
                                           └─ deleted: SIGTERM, SIGKILL after the grace ─▶ released, pod removed

The finalizer goes on before the process starts and comes off when it is gone: as long as the pod exists its GPUs may be
in use, and once it does not they are free. Every write names the pod's uid, so a successor of the same name is safe.
"""

import asyncio
import logging
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from gpubank.lab import podprocess
from gpubank.lab.names import ENDPOINT, FINALIZER
from gpubank.lab.podprocess import CommandError, PodRecord, as_patch, meta_of
from gpubank.simulation.processes import LocalProcess, free_port

log = logging.getLogger(__name__)

POLL: Final = 0.05
"""Seconds between two looks at the process."""
LONGEST_BACKOFF: Final = 10.0
"""Seconds at most before an ended container is started again; a kubelet goes up to five minutes."""
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500


class PodGoneError(Exception):
    """The pod is no more, or another one has its name."""


class Supervisor:
    """Takes care of one pod."""

    def __init__(self, client: AsyncClient, pod: Pod, folder: Path, logs: Path) -> None:
        self.uid = str(meta_of(pod).uid)
        self.namespace, self.name = str(meta_of(pod).namespace), str(meta_of(pod).name)
        self._client, self._pod, self._folder = client, pod, folder / self.uid
        self._log = logs / f"{self.namespace}_{self.name}_{self.uid[:8]}.log"
        self._changed = asyncio.Event()
        self._kill_at: float | None = None
        self._released = False

    def see(self, pod: Pod) -> None:
        """Take note of a newer state of the pod."""
        self._pod = pod
        self._changed.set()

    def lost(self) -> None:
        """Take note that the pod is gone from the API server although its process may run."""
        self._released = True
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + self._grace())
        self._changed.set()

    async def run(self) -> None:
        """Take care of the pod until it is finished or gone."""
        try:
            record = PodRecord.load(self._folder)
            if record is None:
                record = await self._begin()
            if record is not None:
                await self._follow(record)
        except PodGoneError:
            await self._reap()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def stop(self, grace: float) -> None:
        """End the process for good because the runner itself ends; the pod is left as it is."""
        if record := PodRecord.load(self._folder):
            await record.process(self._folder).stop(grace)

    async def _begin(self) -> PodRecord | None:
        pod = self._pod
        if meta_of(pod).deletionTimestamp:
            # It was deleted before anything ran; kwok leaves it to us, so nobody else would let it go.
            await self._remove()
            return None
        if pod.status and pod.status.phase in {"Succeeded", "Failed"}:
            return None
        try:
            port = free_port()
            argv, env = podprocess.command_of(pod), podprocess.environment_of(pod, port, os.environ)
        except CommandError as error:
            await self._patch_status(podprocess.refused(pod, str(error)))
            return None
        if FINALIZER not in (meta_of(pod).finalizers or ()):
            try:
                await self._patch(as_patch(self.uid, metadata={"finalizers": [FINALIZER]}))
            except ApiError:
                # A pod that is being deleted takes no finalizer; its deletion is on its way here.
                await self._pause(1)
                if not meta_of(self._pod).deletionTimestamp:
                    raise
                return await self._begin()
        return await self._start(argv, env, port, restarts=0)

    async def _start(self, argv: list[str], env: Mapping[str, str], port: int, restarts: int) -> PodRecord:
        container = self._pod.spec.containers[0] if self._pod.spec else None
        directory = Path(container.workingDir) if container and container.workingDir else None
        exit_file = self._folder / podprocess.EXIT
        process = LocalProcess.start(argv, env=env, exit_file=exit_file, log=self._log, folder=directory)
        record = PodRecord(
            uid=self.uid,
            namespace=self.namespace,
            name=self.name,
            port=port,
            pid=process.identity.pid,
            started=process.identity.started,
            started_at=podprocess.now(),
            grace=self._grace(),
            restarts=restarts,
        )
        record.save(self._folder)
        log.info("%s/%s: started %s as pid %d", self.namespace, self.name, argv, process.identity.pid)
        return record

    async def _follow(self, record: PodRecord) -> None:
        endpoint = f"http://127.0.0.1:{record.port}"
        while True:
            if podprocess.annotations_of(self._pod).get(ENDPOINT) != endpoint:
                await self._patch(as_patch(self.uid, metadata={"annotations": {ENDPOINT: endpoint}}))
            process = record.process(self._folder)
            if process.exit_code() is None:
                # Not for one that ended while no runner looked: no pod goes back from ended to running.
                await self._patch_status(podprocess.running(self._pod, record))
            code = await self._until_exit(process)
            log.info("%s/%s: ended with %d", self.namespace, self.name, code)
            if not self._restarts(code):
                break
            await self._pause(min(LONGEST_BACKOFF, 0.5 * 2**record.restarts))
            if self._deleted():
                break
            argv = podprocess.command_of(self._pod)
            env = podprocess.environment_of(self._pod, record.port, os.environ)
            record = await self._start(argv, env, record.port, record.restarts + 1)
        await self._patch_status(podprocess.ended(self._pod, record, code))
        if self._deleted():
            await self._remove()
        else:
            await self._release()

    async def _until_exit(self, process: LocalProcess) -> int:
        told = False
        while (code := process.exit_code()) is None:
            if self._deleted() and not told:
                told = process.identity.signal(signal.SIGTERM)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                process.identity.signal(signal.SIGKILL)
            await self._pause(POLL)
        return code

    def _deleted(self) -> bool:
        meta = meta_of(self._pod)
        if meta.deletionTimestamp and not self._released:
            # A second deletion may shorten the grace; none makes it longer.
            grace = meta.deletionGracePeriodSeconds
            end = time.monotonic() + (self._grace() if grace is None else grace)
            if self._kill_at is None or grace == 0:
                self._kill_at = min(self._kill_at or end, end)
        return bool(meta.deletionTimestamp) or self._released

    def _restarts(self, code: int) -> bool:
        if self._deleted() or not self._pod.spec:
            return False
        policy = self._pod.spec.restartPolicy or "Always"
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    def _grace(self) -> float:
        spec = self._pod.spec
        return (
            30.0 if spec is None or spec.terminationGracePeriodSeconds is None else spec.terminationGracePeriodSeconds
        )

    async def _pause(self, seconds: float) -> None:
        self._changed.clear()
        try:
            # No wait_for: before Python 3.12 it swallows a cancellation that comes with the change.
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _reap(self) -> None:
        record = PodRecord.load(self._folder)
        if record is not None:
            await record.process(self._folder).stop(record.grace)

    async def _release(self) -> None:
        await self._patch(as_patch(self.uid, metadata={"$deleteFromPrimitiveList/finalizers": [FINALIZER]}))

    async def _remove(self) -> None:
        """Do what ends a deletion on a node: delete without grace, while the finalizer still keeps the name ours."""
        await self._call(
            lambda: self._client.delete(Pod, self.name, namespace=self.namespace, grace_period=0), "delete"
        )
        await self._release()

    async def _patch(self, body: dict[str, Any]) -> None:
        await self._call(lambda: self._client.patch(Pod, self.name, body, namespace=self.namespace), "patch")

    async def _patch_status(self, status: dict[str, Any]) -> None:
        body = as_patch(self.uid, status=status)
        await self._call(
            lambda: self._client.patch(Pod.Status, self.name, body, namespace=self.namespace), "patch the status of"
        )

    async def _call(self, send: Callable[[], Awaitable[object]], what: str) -> None:
        """Send one write until it is answered: the API server may be away, for a crash test kills it too."""
        wait = 0.1
        while not self._released:
            try:
                await send()
            except ApiError as error:
                code = error.status.code or _SERVER_ERRORS
                if code == _NOT_FOUND or (code == _CONFLICT and not await self._still_there()):
                    raise PodGoneError(self.uid) from error
                if code < _SERVER_ERRORS and code not in {_CONFLICT, _TOO_MANY}:
                    raise
                log.warning("cannot %s %s/%s: %s", what, self.namespace, self.name, error)
            except httpx2.HTTPError as error:
                log.warning("cannot %s %s/%s: %r", what, self.namespace, self.name, error)
            else:
                return
            await asyncio.sleep(wait)
            wait = min(2.0, 2 * wait)
        raise PodGoneError(self.uid)

    async def _still_there(self) -> bool:
        """Tell a lost race with another writer from a pod that has made way for one of the same name."""
        try:
            found = await self._client.get(Pod, self.name, namespace=self.namespace)
        except ApiError as error:
            return error.status.code != _NOT_FOUND
        except httpx2.HTTPError:
            return True
        return found.metadata is not None and found.metadata.uid == self.uid
