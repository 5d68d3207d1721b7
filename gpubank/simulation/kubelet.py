"""Pods from creation to their end: placed, started, told to end, gone; with a local process where they have a command.

    created ──▶ placed ──▶ running ──▶ exited by itself ─▶ `on_exit` decides: retired or started again
                              └─▶ SIGTERM ─▶ (grace) ─▶ SIGKILL ─▶ gone

A pod without a command runs until it is told to end, and ends within `Timing.termination`.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from gpubank.domain.contract import (
    CHECKPOINT_ENDPOINT_ANNOTATION,
    CHECKPOINT_REQUEST_ANNOTATION,
    CHECKPOINT_STATUS_ANNOTATION,
)
from gpubank.simulation.clock import Timeline, Timing
from gpubank.simulation.commands import LOOPBACK, Command, PodFolder, environment
from gpubank.simulation.nodes import NodeBook
from gpubank.simulation.processes import POLL, LocalProcess, ProcessId, free_port
from gpubank.simulation.pulse import Pulse
from gpubank.simulation.workloads import Pod

_log = logging.getLogger(__name__)

NOT_STARTED: Final = 127
"""Exit code of a command that could not be started, as in a shell."""

_CLOSING_GRACE: Final = 5.0


class Kubelet:
    """Runs the pods of every node."""

    def __init__(
        self, timeline: Timeline, timing: Timing, nodes: NodeBook, pulse: Pulse, home: Callable[[], Path]
    ) -> None:
        self._timeline = timeline
        self._timing = timing
        self._nodes = nodes
        self._pulse = pulse
        self._home = home
        self._waiting: dict[str, Pod] = {}
        self._pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_exit: Callable[[Pod, int], None] = lambda pod, code: self.retire(pod)
        """Called when a pod's process ended by itself; retires the pod or starts it again."""

        self.on_gone: Callable[[Pod], None] = lambda pod: None
        """Called when a pod is gone."""

    def create(self, pod: Pod) -> None:
        """Take a new pod; it is placed as soon as it may and can be."""
        self._pods[pod.uid] = pod
        if not pod.gated:
            self._waiting[pod.uid] = pod
            self.place()
        self._pulse.beat()

    def admit(self, pod: Pod) -> None:
        """Let a pod that was gated be placed."""
        if pod.gated and not pod.terminating:
            pod.gated = False
            self._waiting[pod.uid] = pod
            self.place()

    def place(self) -> None:
        """Place whoever waits and fits."""
        for pod in self._nodes.place(self._waiting.values()):
            del self._waiting[pod.uid]
            self._timeline.after(self._timing.start, lambda pod=pod: self._start(pod))  # type: ignore[misc]
            self._pulse.beat()

    def terminate(self, pod: Pod) -> None:
        """Tell a pod to end; it is gone within its grace."""
        if pod.terminating or pod.gone:
            return
        pod.terminating = True
        pod.ends_by = self._timeline.clock.now() + timedelta(seconds=pod.grace)
        self._pulse.beat()
        if not pod.node:
            self.retire(pod)
        elif pod.stuck:
            return
        elif pod.process is not None:
            self._run(self._stop(pod, pod.process))
        else:
            self._timeline.after(min(pod.grace, self._timing.termination), lambda: self.retire(pod))

    def lose(self, pod: Pod) -> None:
        """Let a pod vanish with its node, without notice."""
        if pod.process is not None:
            pod.process.identity.signal(signal.SIGKILL)
        self.retire(pod)

    def retire(self, pod: Pod) -> None:
        """Take a pod away whose process has ended or never was."""
        if pod.gone:
            return
        pod.gone = True
        pod.running = False
        self._waiting.pop(pod.uid, None)
        self._pods.pop(pod.uid, None)
        self._nodes.release(pod)
        self.on_gone(pod)
        self._pulse.beat()
        self.place()

    def restart(self, pod: Pod) -> None:
        """Start a pod's command again, in the same pod, after a while."""
        self._timeline.after(self._timing.retry, lambda: self._start(pod))

    def hold(self, uid: str, held: bool) -> bool:
        """Let a pod stay although it has ended, as on a dead node or by a finalizer, or let it go."""
        pod = self._pods.get(uid)
        if pod is None:
            return False
        pod.stuck = held
        if not held and pod.terminating:
            self.retire(pod)
        return True

    def annotate(self, uid: str, annotations: Mapping[str, str]) -> bool:
        """Set annotations of a pod, as an update of the object would; False if the pod is gone."""
        pod = self._pods.get(uid)
        if pod is None:
            return False
        pod.annotations.update(annotations)
        if CHECKPOINT_REQUEST_ANNOTATION in annotations and pod.process is not None:
            self._project_request(pod)
        self._pulse.beat()
        return True

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the live pod of this name."""
        return next((p for p in self._pods.values() if (p.namespace, p.name) == (namespace, name)), None)

    async def end_leftovers(self, home: Path) -> None:
        """End what a predecessor that crashed left running in its folder."""
        processes = [LocalProcess(each, home / "none") for each in _leftovers(home)]
        await asyncio.gather(*(process.stop(_CLOSING_GRACE) for process in processes))

    async def close(self) -> None:
        """End every process and wait until it is gone."""
        processes = [pod.process for pod in self._pods.values() if pod.process is not None]
        await asyncio.gather(*(process.stop(_CLOSING_GRACE) for process in processes))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- processes

    def _start(self, pod: Pod) -> None:
        if pod.terminating or pod.gone:
            return
        if pod.command is not None:
            try:
                self._launch(pod, pod.command)
            except OSError as error:
                _log.warning("pod %s/%s cannot start %s: %s", pod.namespace, pod.name, pod.command.argv[0], error)
                self.on_exit(pod, NOT_STARTED)
                return
        pod.running = True
        self._pulse.beat()

    def _launch(self, pod: Pod, command: Command) -> None:
        folder, port = self._folder(pod), free_port()
        folder.path.mkdir(parents=True, exist_ok=True)
        env = environment(
            command,
            folder,
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            node=pod.node,
            index=pod.index,
            port=port,
        )
        process = LocalProcess.start(
            command.argv, env=env, exit_file=folder.exit_file, log=folder.log, folder=command.folder
        )
        folder.remember(process.identity)
        pod.process = process
        pod.ip = LOOPBACK
        pod.annotations[CHECKPOINT_ENDPOINT_ANNOTATION] = f"http://{LOOPBACK}:{port}"
        self._project_request(pod)
        self._run(self._watch(pod, process, folder))

    async def _watch(self, pod: Pod, process: LocalProcess, folder: PodFolder) -> None:
        """Publish what the process tells about itself, until it ends."""
        while (code := process.exit_code()) is None:
            self._publish(pod, folder)
            await asyncio.sleep(POLL)
        pod.process = None
        pod.running = False
        self._pulse.beat()
        if pod.gone:
            return
        if pod.terminating:
            self.retire(pod)
        else:
            self.on_exit(pod, code)

    async def _stop(self, pod: Pod, process: LocalProcess) -> None:
        await process.stop(pod.grace)

    def _publish(self, pod: Pod, folder: PodFolder) -> None:
        status = folder.status()
        if status and pod.annotations.get(CHECKPOINT_STATUS_ANNOTATION) != status:
            pod.annotations[CHECKPOINT_STATUS_ANNOTATION] = status
            self._pulse.beat()

    def _project_request(self, pod: Pod) -> None:
        request = pod.annotations.get(CHECKPOINT_REQUEST_ANNOTATION)
        if request is not None:
            self._folder(pod).project(request)

    def _folder(self, pod: Pod) -> PodFolder:
        return PodFolder(self._home() / f"{pod.namespace}_{pod.name}_{pod.uid[:8]}")

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _leftovers(home: Path) -> list[ProcessId]:
    folders = home.iterdir() if home.is_dir() else ()
    remembered = [PodFolder(path).remembered() for path in folders if path.is_dir()]
    return [process for process in remembered if process is not None and process.alive()]
