"""What is known about the node's GPUs: which there are, how they are, and what is held against them.

    refresh   which GPUs and MIG devices there are; hot-plug opens a new session, for NVML fixes its list at the start
    poll      how each GPU is
    listen    what NVML tells by itself

All state changes happen on the event loop; NVML is asked in threads, and never longer than its deadline.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from nodeagent.health.book import HealthBook, Observation
from nodeagent.health.policy import Symptom
from nodeagent.health.store import HealthStore
from nodeagent.nvml.guard import Guarded
from nodeagent.nvml.port import GpuLostError, Nvml, NvmlError, NvmlHungError, NvmlMissingError
from nodeagent.nvml.reading import read_node
from nodeagent.nvml.snapshot import Event, EventKind, Gpu, Links, NodeSnapshot
from nodeagent.settings import AgentSettings

T = TypeVar("T")

_REOPEN_SECONDS: Final = 60.0
"""Between two new sessions while a GPU cannot be read: one that was reset is only seen by a new one."""

_log = logging.getLogger(__name__)


class Monitor:
    """Watches the GPUs of one node."""

    def __init__(
        self,
        nvml: Nvml,
        settings: AgentSettings,
        book: HealthBook,
        store: HealthStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.snapshot = NodeSnapshot()
        self.links = Links()
        self.book = book
        self.problem = ""
        """Why the node cannot be read right now, for people; empty if it can."""

        self._nvml = Guarded(nvml, timeout=settings.intervals.nvml)
        self._settings = settings
        self._store = store
        self._clock = clock
        self._threads = ThreadPoolExecutor(max_workers=6, thread_name_prefix="ask")
        self._refreshing = asyncio.Lock()
        self._session = asyncio.Lock()
        self._open = False
        self._turns = 0
        """Beginnings and ends of changes of the session; odd while one is under way."""
        self._opened_at = 0.0
        self._known_to_driver: frozenset[str] = frozenset()
        self._listening: tuple[str, ...] = ()
        self._stopping = False

    # ------------------------------------------------------------------------------------------------- GPUs

    async def refresh(self) -> bool:
        """Look at which GPUs and MIG devices there are; True if that changed."""
        async with self._refreshing:
            before = self.snapshot
            try:
                found = await self._read()
                self.snapshot = _with_silent(before, found)
                self.problem = ""
            except NvmlMissingError as error:
                self.snapshot = NodeSnapshot()
                self._complain(error)
            except NvmlError as error:
                self._complain(error)  # what was known stays; polling says how the GPUs are
            if not self._open or self.snapshot == before:
                return self.snapshot != before
            gone = {gpu.uuid for gpu in before.gpus} - {gpu.uuid for gpu in self.snapshot.gpus}
            self._nvml.drop(sorted(gone))
            await self._attend()
            return True

    async def verified(self, uuid: str) -> Gpu:
        """Describe one GPU right now. Raises NvmlError, also if it takes longer than a pod may wait."""
        longest = self._settings.intervals.allocate
        try:
            async with asyncio.timeout(longest * 2), self._session:
                return await self._ask(lambda: self._nvml.describe(uuid, longest))
        except TimeoutError as error:
            raise NvmlHungError(f"NVML did not describe GPU {uuid!r} in time") from error

    async def _read(self) -> NodeSnapshot:
        """Read the node, in a new session where the old one is out of date."""
        if self._open and not self._outdated():
            return await self._ask(lambda: read_node(self._nvml, self.snapshot.driver))
        async with self._session:  # nobody asks about a GPU between two sessions
            self._turns += 1
            try:
                if self._open:
                    await self._close()
                driver = await self._start()
            finally:
                self._turns += 1
            return await self._ask(lambda: read_node(self._nvml, driver))

    def _outdated(self) -> bool:
        if self._driver_list() != self._known_to_driver:
            return True
        return bool(self.snapshot.unreadable) and time.monotonic() - self._opened_at >= _REOPEN_SECONDS

    async def _start(self) -> str:
        known = self._driver_list()
        driver = await self._ask(self._nvml.open)
        self._open, self._opened_at, self._listening, self._known_to_driver = True, time.monotonic(), (), known
        return driver

    async def _close(self) -> None:
        self._open = False
        await self._ask(self._nvml.close)

    async def _attend(self) -> None:
        """Learn how near the GPUs are to each other and listen to them, where there are others than before."""
        uuids = tuple(gpu.uuid for gpu in self.snapshot.gpus)
        if uuids == self._listening:
            return
        try:
            self.links = await self._ask(lambda: self._nvml.links(uuids))
            await self._ask(lambda: self._nvml.listen(uuids))
            self._listening = uuids
        except NvmlError as error:
            self._complain(error)

    def _driver_list(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in self._settings.driver_directory.iterdir())
        except OSError:
            return frozenset()

    # ----------------------------------------------------------------------------------------------- health

    async def poll(self) -> bool:
        """Look at how each GPU is; True if what is held against one changed."""
        changed = False
        for gpu in self.snapshot.gpus:
            if (seen := await self._observed(gpu.uuid)) is not None:
                changed |= self.book.observe(gpu.uuid, seen, self._clock())
        if changed:
            await self.save()
        return changed

    async def _observed(self, uuid: str) -> Observation | None:
        """Look at one GPU; None where the session changed under the question, for its error says nothing of the GPU."""
        turns = self._turns
        try:
            return Observation(condition=await self._ask(lambda: self._nvml.condition(uuid)))
        except GpuLostError as error:
            seen = Observation(symptom=Symptom.LOST, detail=str(error))
        except NvmlHungError as error:
            seen = Observation(symptom=Symptom.HUNG, detail=str(error))
        except NvmlError as error:
            seen = Observation(symptom=Symptom.UNREADABLE, detail=str(error))
        return seen if turns == self._turns and turns % 2 == 0 else None

    def now(self) -> float:
        """Seconds since the epoch, by the clock that marks are dated with."""
        return self._clock()

    async def save(self) -> None:
        """Write the marks; a disk that refuses is complained about, and the marks hold until the process ends."""
        try:
            await asyncio.to_thread(self._store.save, self.book)
        except OSError as error:
            _log.error("marks cannot be written to %r: %s; a restart would forget them", str(self._store.path), error)

    async def listen(self, changed: Callable[[bool], Awaitable[None]]) -> None:
        """Take in events until stopped; `changed` is told of each that matters, with True if devices may differ."""
        pause = self._settings.intervals.events
        while not self._stopping:
            try:
                if not self._open or not self._listening:
                    await asyncio.sleep(pause)
                    continue
                event = await self._ask(lambda: self._nvml.wait(int(pause * 1000)))
            except GpuLostError:
                if await self.poll():
                    await changed(False)
                await asyncio.sleep(pause)  # it is told again at once and without end
            except NvmlError:
                await asyncio.sleep(pause)
            else:
                if event is not None:
                    await self._take(event, changed)

    async def _take(self, event: Event, changed: Callable[[bool], Awaitable[None]]) -> None:
        if event.kind is EventKind.MIG_CONFIG_CHANGE:
            await changed(True)
            return
        if not event.uuid:
            _log.warning(
                "NVML tells %s %d of a GPU it does not name; looking at all of them", event.kind.name, event.data
            )
            if await self.poll():
                await changed(False)
            return
        _log.warning("GPU %s tells %s %d", event.uuid, event.kind.name, event.data)
        seen = await self._observed(event.uuid)
        if self.book.event(event, self._clock(), seen.condition if seen else None):
            await self.save()
            await changed(False)

    # ------------------------------------------------------------------------------------------------ parts

    async def stop(self) -> None:
        """End the session; a call that is stuck is left behind."""
        self._stopping = True
        await self._close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _complain(self, error: NvmlError) -> None:
        if str(error) != self.problem:
            _log.error("%s", error)
        self.problem = str(error)


def _with_silent(before: NodeSnapshot, found: NodeSnapshot) -> NodeSnapshot:
    """Keep what is known of GPUs that are there by their index but cannot be described now.

    They stay in the lists, as unhealthy: a GPU that vanished from them would look like a smaller machine.
    """
    named = {gpu.uuid for gpu in found.gpus}
    silent: set[int] = {lost.index for lost in found.unreadable}
    kept = tuple(gpu for gpu in before.gpus if gpu.uuid not in named and gpu.index in silent)
    gpus = tuple(sorted((*found.gpus, *kept), key=lambda gpu: (gpu.index, gpu.uuid)))
    return NodeSnapshot(gpus=gpus, unreadable=found.unreadable, driver=found.driver)
