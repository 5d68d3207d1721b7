"""The plugin as a whole: keeps the kubelet's view of this node true, whatever changes underneath.

    tick or event ─▶ monitor ─▶ inventory ─▶ a server per resource: new lists, new servers, none taken away

A resource that has lost its last device keeps its server and lists nothing: the kubelet then counts 0, at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gpubank.domain.device import Offer
from gpubank.domain.errors import ConflictError, PolicyError
from nodeagent.classes import rules
from nodeagent.classes.rulebook import Rulebook
from nodeagent.health import policy
from nodeagent.health.store import HealthStore
from nodeagent.nvml.port import Nvml
from nodeagent.plugin.inventory import Inventory, build
from nodeagent.plugin.monitor import Monitor
from nodeagent.plugin.orders import checked
from nodeagent.plugin.preference import preferred
from nodeagent.plugin.provider import other_provider
from nodeagent.plugin.report import report, write_report
from nodeagent.plugin.response import CONTROL_FILES, Response, respond
from nodeagent.plugin.server import ResourceServer
from nodeagent.plugin.watch import Identity, identity, watching
from nodeagent.settings import AgentSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Listed:
    id: str
    healthy: bool
    numa_node: int | None


class Agent:
    """One node's device plugin."""

    def __init__(self, nvml: Nvml, settings: AgentSettings) -> None:
        """Read rules, policy and marks. Raises PolicyError if one of them cannot be read."""
        self._settings = settings
        self._rules_path = settings.rules or rules.DEFAULT_RULES
        self._rules_seen = self._rules_identity()
        self.rulebook: Rulebook = rules.load(self._rules_path)
        health_policy = policy.load(settings.health_policy or policy.DEFAULT_POLICY)
        store = HealthStore(settings.state_directory)
        self.monitor = Monitor(nvml, settings, store.load(health_policy), store)
        self.inventory = Inventory()
        self._servers: dict[Offer, ResourceServer] = {}
        self._shown: dict[Offer, tuple[_Listed, ...]] = {}
        self._reported: dict[str, Any] = {}
        self._conflict = ""
        self._wake = asyncio.Event()
        self._unsettled: dict[Offer, str] = {}
        self._updating = asyncio.Lock()

    # --------------------------------------------------------------------------------------------- what runs

    async def start(self) -> None:
        """Look at the GPUs and offer them. Raises ConflictError if somebody else does already."""
        await self.monitor.refresh()
        if reason := self.other_provider():
            raise ConflictError(reason)
        await self.monitor.poll()
        await self.update()

    async def run(self) -> None:
        """Keep everything true until cancelled."""
        intervals = self._settings.intervals
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_sockets())
            tasks.create_task(self.monitor.listen(self._changed))
            tasks.create_task(self._every(intervals.health, self._look_at_health))
            tasks.create_task(self._every(intervals.inventory, self._look_at_inventory))

    async def stop(self) -> None:
        """Take every resource away and end the session with NVML."""
        for server in self._servers.values():
            await server.stop()
        await self.monitor.stop()

    async def _every(self, seconds: float, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await look()

    async def _look_at_health(self) -> None:
        if await self.monitor.poll():
            await self.update()

    async def _look_at_inventory(self) -> None:
        reloaded = self._reload_rules()
        if await self.monitor.refresh() or reloaded:
            await self.update()
        self._notice_others()

    async def _changed(self, devices: bool) -> None:
        if devices:
            await self.monitor.refresh()
        await self.update()

    async def _watch_sockets(self) -> None:
        folder = self._settings.plugin_directory
        async with watching(folder, self._settings.intervals.sockets, self._wake) as watch:
            while True:
                await self.settle()
                await watch.wait()

    # ----------------------------------------------------------------------------------------------- changes

    async def update(self) -> None:
        """Compute what the node sells and tell the kubelet whatever of it changed."""
        async with self._updating:
            self.inventory = build(self.monitor.snapshot, self.rulebook, self._settings)
            for offer in self.inventory.devices:
                if offer not in self._servers:
                    self._servers[offer] = ResourceServer(offer, self._settings.plugin_directory, self)
                    self._wake.set()
            for offer, server in self._servers.items():
                now = self._list(offer)
                if now != self._shown.get(offer):
                    self._shown[offer] = now
                    await server.changed()
            self._write_report()

    async def settle(self) -> None:
        """Make the kubelet that is there now know every resource; what fails is tried again at the next look."""
        for offer, server in list(self._servers.items()):
            try:
                await server.settle()
                self._unsettled.pop(offer, None)
            except grpc.aio.AioRpcError as error:
                self._say_once(offer, f"the kubelet does not take {offer.resource!r}: {error.details()}")
            except (OSError, RuntimeError) as error:
                self._say_once(offer, f"{offer.resource!r} cannot be served: {error}")

    def _say_once(self, offer: Offer, sentence: str) -> None:
        if self._unsettled.get(offer) != sentence:
            _log.warning("%s; trying again", sentence)
        self._unsettled[offer] = sentence

    def _reload_rules(self) -> bool:
        """Read the rules again if their file changed; rules that cannot be read change nothing, loudly."""
        now = self._rules_identity()
        if now == self._rules_seen:
            return False
        self._rules_seen = now
        try:
            self.rulebook = rules.load(self._rules_path)
        except PolicyError as error:
            _log.error("%s; going on with rules %s", error, self.rulebook.revision)
            return False
        _log.info("rules %s are in force", self.rulebook.revision)
        return True

    def _rules_identity(self) -> Identity | None:
        path = self._rules_path / rules.RULES_KEY if self._rules_path.is_dir() else self._rules_path
        return identity(path.resolve())  # a mounted ConfigMap changes by a link

    def other_provider(self) -> str | None:
        """Say who else reports this node's GPUs, if anybody does."""
        gpus = self.monitor.snapshot.gpus
        uuids = {name for gpu in gpus for name in (gpu.uuid, *(mig.uuid for mig in gpu.migs))}
        ours = {server.path.name for server in self._servers.values()}
        return other_provider(self._settings.plugin_directory, self._settings.registry_directory, uuids, ours)

    def _notice_others(self) -> None:
        reason = self.other_provider() or ""
        if reason and reason != self._conflict:
            _log.error("%s", reason)
        self._conflict = reason

    # --------------------------------------------------------------------------------- what the servers ask

    def listed(self, offer: Offer) -> Sequence[_Listed]:
        """Every device of the resource, with its health."""
        return self._list(offer)

    def _list(self, offer: Offer) -> tuple[_Listed, ...]:
        book = self.monitor.book
        return tuple(
            _Listed(device.id, not book.reason(device.gpu.uuid, device.gi, device.ci), device.gpu.numa_node)
            for device in self.inventory.devices.get(offer, ())
        )

    def preferred(self, offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Choose devices that go together."""
        devices = {device.id: device for device in self.inventory.devices.get(offer, ())}
        return preferred(devices, self.monitor.links, available, must, size)

    async def allocate(self, offer: Offer, containers: Sequence[Sequence[str]]) -> Sequence[Response]:
        """Hand out devices, judged once more. Raises PolicyError or ConflictError."""
        found = await checked(
            offer,
            containers,
            inventory=self.inventory,
            book=self.monitor.book,
            rulebook=self.rulebook,
            settings=self._settings,
            describe=self.monitor.verified,
        )
        return [
            respond(devices, self._settings, _host_files() if self._settings.device_files else ()) for devices in found
        ]

    # ---------------------------------------------------------------------------------------- what people ask

    def inspect(self) -> dict[str, Any]:
        """Everything that is known, as plain data."""
        return report(self.inventory, self.monitor, self.rulebook, self._conflict)

    async def quarantine(self, uuid: str, by: str, reason: str, key: str = "") -> bool:
        """Take a GPU out; False if this order was carried out before. Raises PolicyError for a GPU that is not here."""
        self._must_know(uuid)
        done = self.monitor.book.quarantine(uuid, by, reason, self.monitor.now(), key)
        await self._after_order()
        return done

    async def release(self, uuid: str, key: str = "") -> bool:
        """Put a GPU back; False if there was nothing to do. Raises ConflictError while it still reports a fault."""
        self._must_know(uuid)
        done = self.monitor.book.release(uuid, self.monitor.now(), key)
        await self._after_order()
        return done

    def _must_know(self, uuid: str) -> None:
        known = {gpu.uuid for gpu in self.monitor.snapshot.gpus} | set(self.monitor.book.marks)
        if uuid not in known:
            raise PolicyError(f"GPU {uuid!r} is none of this node's; `inspect` lists them")

    async def _after_order(self) -> None:
        await self.monitor.save()
        await self.update()

    def _write_report(self) -> None:
        now = self.inspect()
        if now == self._reported:
            return
        try:
            write_report(self._settings.state_directory, now)
            self._reported = now
        except OSError as error:
            _log.error("the report cannot be written: %s", error)


def _host_files() -> list[str]:
    return [*(path for path in CONTROL_FILES if Path(path).exists()), *map(str, Path("/dev").glob("nvidia[0-9]*"))]
