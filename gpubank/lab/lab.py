"""A real control plane on this machine, from start to stop.

    down ──up──▶ starting ──▶ ready ──down──▶ down
                    └─ a component dies ──▶ down, its log kept

Every process outlives the command that started it and is found again through the state file. Nothing of a lab survives
`down` but its logs: a lab that was killed, or lost in a reboot, is not resumed but cleared away and started anew.
"""

import asyncio
import shutil
import signal
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gpubank.lab import nodes as fleet
from gpubank.lab import state as states
from gpubank.lab.access import ADMIN, MASTERS, Api, Manifest, documents, wait_until
from gpubank.lab.build import build, cached
from gpubank.lab.components import BASE, EXTRA, Component, Context, choose, prometheus, temporal
from gpubank.lab.components.containerd import CONTAINERD, load_image
from gpubank.lab.components.postgres import server as postgres_server
from gpubank.lab.errors import StateError
from gpubank.lab.locks import locked
from gpubank.lab.names import GPU_RESOURCE
from gpubank.lab.paths import checked_name, state_root
from gpubank.lab.pki import Authority
from gpubank.lab.progress import Progress, Report, Stage, silent
from gpubank.lab.starter import Starter
from gpubank.lab.state import Record, State
from gpubank.simulation.processes import stop

DEFAULT: Final = "default"
"""Name of the lab when none is given."""
LOGS: Final = "logs"


class Lab:
    """One lab, known by its name; another process that makes a Lab of that name sees the same one.

    Use it as a context manager (`with` or `async with`: up on entry, down on exit) or call `up` and `down`.
    """

    def __init__(
        self,
        name: str = DEFAULT,
        *,
        nodes: int = 4,
        gpus_per_node: int = 8,
        resource: str = GPU_RESOURCE,
        pool: str = fleet.DEFAULT_POOL,
        extra: Sequence[str] = (),
        report: Report = silent,
    ) -> None:
        """Describe a lab; `up` starts it.

        `nodes` fake nodes of `pool` with `gpus_per_node` of `resource` each are made on start; `extra` names
        components beyond the base set.
        """
        self.name = checked_name(name)
        self.components = choose(extra)
        self.folder = state_root() / self.name
        self._nodes, self._gpus, self._resource, self._pool = nodes, gpus_per_node, resource, pool
        self._report = report

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of an administrator; it exists while the lab is up."""
        return self.folder / "kubeconfig" / "admin"

    @property
    def state(self) -> State | None:
        """What the lab's folder says, or None when it is down."""
        return states.read(self.folder)

    def is_up(self) -> bool:
        """Tell whether every process of the lab runs."""
        state = self.state
        return state is not None and state.whole()

    def url(self, port: str) -> str:
        """Return `127.0.0.1:<number>` of a named port, such as `kueue-metrics`."""
        return self._context(self._known()).address(port)

    def log(self, component: str) -> Path:
        """Return the path of a component's log; it stays after `down`."""
        return self.folder / LOGS / f"{component}.log"

    # -- build, start, stop -------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Compile what the cache has not got. Raises BuildError."""
        for component in self.components:
            for program in component.programs:
                started = time.monotonic()
                built = build(program, report=self._report)
                took = time.monotonic() - started
                self._report(Progress(program.name, Stage.BUILT, str(built.folder), took))
            component.provide()

    def up(self) -> bool:
        """Start the lab and wait until it serves; return False if it was up already.

        What is left of an earlier one is cleared away first. Raises BuildError or StartError, and then leaves nothing
        running; the logs stay.
        """
        self.build()
        with self._alone():
            if self.is_up():
                return self._complete()
            self._clear()
            started = time.monotonic()
            shutil.rmtree(self.folder / LOGS, ignore_errors=True)
            try:
                state = self._reserve()
                context = self._context(state)
                context.access.kubeconfig(self.kubeconfig, ADMIN, group=MASTERS)
                Starter(context, self._keep, self._report).start(self.components)
                self._fill(context)
            except BaseException:
                # KeyboardInterrupt too: an interrupted start leaves no half of a lab behind.
                self._clear()
                raise
            seconds = round(time.monotonic() - started, 2)
            states.write(self.folder, self._known().model_copy(update={"phase": "ready", "seconds": seconds}))
            return True

    def down(self) -> bool:
        """Stop every process, the last started first, and forget the lab but for its logs; False if there was none."""
        if not self.folder.exists():
            return False
        with self._alone():
            had = self.state is not None
            return self._clear() or had

    def clean(self) -> None:
        """Stop the lab and remove its folder, logs included."""
        if not self.folder.exists():
            return
        with self._alone() as lock:
            self._clear()
            shutil.rmtree(self.folder, ignore_errors=True)
            lock.unlink()

    # -- for crash tests ----------------------------------------------------------------------------------------------

    def kill(self, component: str) -> None:
        """End a component with SIGKILL, as a crash would; `start` brings it back."""
        record = self._record(component)
        record.identity.signal(signal.SIGKILL)
        wait_until(lambda: not record.identity.alive(), 10, f"the end of {component}")

    def start(self, component: str) -> None:
        """Start a component that does not run, with its old ports and data, and wait until it serves."""
        with self._alone():
            state = self._known()
            wanted = self._component(component)
            if any(each.component == component and each.identity.alive() for each in state.processes):
                raise StateError(f"{component} of lab {self.name!r} runs; kill it first")
            alive = [name for name, living in state.alive().items() if living]
            Starter(self._context(state), self._keep, self._report).start([wanted], settled=alive)

    # -- the cluster --------------------------------------------------------------------------------------------------

    def api(self) -> Api:
        """Return a small client with all rights, for set-up; use it as a context manager."""
        return self._context(self._known()).access.client()

    def apply(self, manifests: Path | Sequence[Manifest]) -> None:
        """Apply manifests: a YAML file, a folder of them, or dictionaries, in their order."""
        with self.api() as api:
            api.apply_all(documents(manifests) if isinstance(manifests, Path) else manifests)

    def add_nodes(
        self,
        pool: str,
        count: int,
        gpus: int = 8,
        labels: Mapping[str, str] | None = None,
        *,
        model: str = "h100-80gb",
        fabric: str = "infiniband",
        resource: str | None = None,
    ) -> list[str]:
        """Create `count` more fake nodes of `pool`, wait until they are ready, and return their names."""
        with self.api() as api:
            kind = resource or self._resource
            names = fleet.add_nodes(api, pool, count, gpus, labels, resource=kind, model=model, fabric=fabric)
            wait_until(lambda: fleet.all_ready(api, names), 60, f"readiness of {count} nodes of {pool}")
            return names

    def user(self, name: str, *, group: str | None = None) -> Path:
        """Return a kubeconfig for a user of the lab's own authority; RBAC decides what it may do."""
        return self._context(self._known()).kubeconfig(name, group=group)

    def load_image(self, archive: Path) -> None:
        """Make the image of an OCI archive known to the real node; `gpubank.lab.oci` makes such archives."""
        state = self._known()
        if CONTAINERD.name not in state.components:
            raise StateError(
                f"lab {self.name!r} runs no containers; run `gpubank lab up --name {self.name} --with kubelet`"
            )
        load_image(self._context(state), archive)

    @property
    def postgres_url(self) -> str:
        """URL of the lab's PostgreSQL, if it was started with the component `postgres`."""
        return postgres_server(self._having("postgres", "PostgreSQL")).url

    @property
    def temporal_address(self) -> str:
        """host:port of the lab's Temporal server, if it was started with the component `temporal`."""
        return self._having(temporal.NAME, "Temporal server").address(temporal.FRONTEND)

    @property
    def prometheus_url(self) -> str:
        """URL of the lab's Prometheus, if it was started with the component `prometheus`."""
        return f"http://{self._having(prometheus.NAME, 'Prometheus').address(prometheus.NAME)}"

    @property
    def targets(self) -> Path:
        """Folder in which a file `NAME.yaml` adds targets to the lab's Prometheus, as `file_sd_configs` wants them."""
        return prometheus.targets(self.folder)

    @property
    def authorities(self) -> Path:
        """PEM file of the authority that signed the certificate of every server of the lab."""
        return self._context(self._known()).authority.certificate

    def tls(self, user: str = ADMIN, *, group: str | None = None) -> ssl.SSLContext:
        """Return a TLS context that trusts this lab's servers only and shows the certificate of `user`."""
        authority = self._context(self._known()).authority
        return authority.client_context(authority.issue(user, group=group))

    # -- context managers ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.up)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.down)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _complete(self) -> bool:
        """Start the components that the running lab has not got; return False if it has them all."""
        state = self._known()
        fresh = [each for each in self.components if each.name not in state.components]
        if not fresh:
            return False
        with locked(self.folder.parent / ".ports.lock"):
            wanted = [port for component in fresh for port in component.ports]
            ports = state.ports | states.choose_ports(wanted, self.folder.parent)
            names = (*state.components, *(each.name for each in fresh))
            state = state.model_copy(update={"ports": ports, "components": names})
            states.write(self.folder, state)
        alive = [name for name, living in state.alive().items() if living]
        try:
            Starter(self._context(state), self._keep, self._report).start(fresh, settled=alive)
        except BaseException:
            # The lab goes on as it was: what did not start is no part of it.
            names = tuple(name for name in self._known().components if name not in {each.name for each in fresh})
            states.write(self.folder, self._known().model_copy(update={"components": names}))
            raise
        return True

    def _reserve(self) -> State:
        """Choose the lab's ports and promise them to it before anybody else may choose."""
        root = self.folder.parent
        with locked(root / ".ports.lock"):
            ports = states.choose_ports((port for component in self.components for port in component.ports), root)
            state = State(
                name=self.name,
                phase="starting",
                boot=states.boot_id(),
                ports=ports,
                components=tuple(component.name for component in self.components),
            )
            states.write(self.folder, state)
        return state

    def _context(self, state: State) -> Context:
        built = {}
        for component in (*self.components, *(each for each in EXTRA if each.name in state.components)):
            for program in component.programs:
                found = cached(program)
                if found is None:
                    raise StateError(f"{program.name} is not in the cache any more; run `gpubank lab build`")
                built[program.name] = found
        return Context(
            name=self.name,
            folder=self.folder,
            ports=state.ports,
            authority=Authority(self.folder / "pki"),
            built=built,
        )

    def _having(self, component: str, called: str) -> Context:
        """Return the context of a lab that runs an extra component; raise StateError if it does not."""
        state = self._known()
        if component not in state.components:
            up = f"gpubank lab up --name {self.name} --with {component}"
            raise StateError(f"lab {self.name!r} runs no {called}; run `{up}`")
        return self._context(state)

    def _fill(self, context: Context) -> None:
        if not self._nodes:
            return
        started = time.monotonic()
        self._report(Progress("nodes", Stage.STARTING, f"{self._nodes} fake nodes of {self._pool}"))
        with context.access.client() as api:
            names = fleet.add_nodes(api, self._pool, self._nodes, self._gpus, resource=self._resource)
            wait_until(lambda: fleet.all_ready(api, names), 60, f"readiness of {self._nodes} nodes")
        self._report(Progress("nodes", Stage.READY, seconds=time.monotonic() - started))

    def _keep(self, record: Record) -> None:
        states.write(self.folder, self._known().started(record))

    def _clear(self) -> bool:
        """Stop whatever runs of this lab and forget everything but the logs; tell whether anything ran."""
        state = self.state
        ran = False
        if state is not None and state.boot == states.boot_id():
            graces = {each.name: each.stop_grace for each in (*BASE, *EXTRA, *self.components)}
            for record in reversed(state.processes):
                if not record.identity.alive():
                    continue
                ran = True
                started = time.monotonic()
                self._report(Progress(record.component, Stage.STOPPING))
                stop(record.identity, graces.get(record.component, 5))
                self._report(Progress(record.component, Stage.STOPPED, seconds=time.monotonic() - started))
        # Started a moment before its starter was killed, so no state file knows it; or the child of a server.
        left = list(states.strays(self.folder))
        for stray in left:
            stray.signal(signal.SIGTERM)
        deadline = time.monotonic() + 2
        for stray in left:
            ran = True
            stop(stray, max(0.0, deadline - time.monotonic()))
        for component in (*BASE, *EXTRA):
            component.clear(self.folder)
        (self.folder / states.FILE).unlink(missing_ok=True)
        for folder in ("config", "data", "kubeconfig", "pki"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        return ran

    def _known(self) -> State:
        state = self.state
        if state is None:
            raise StateError(f"lab {self.name!r} is not up; run `gpubank lab up --name {self.name}`")
        return state

    def _record(self, component: str) -> Record:
        self._component(component)
        for record in self._known().processes:
            if record.component == component:
                return record
        raise StateError(f"{component} of lab {self.name!r} was never started")

    def _component(self, name: str) -> Component:
        state = self.state
        others = [each for each in EXTRA if state and each.name in state.components]
        for component in (*self.components, *others):
            if component.name == name:
                return component
        known = ", ".join(each.name for each in (*self.components, *others))
        raise StateError(f"lab {self.name!r} has no component {name!r}; it has {known}")

    @contextmanager
    def _alone(self) -> Iterator[Path]:
        """Let one command at a time change this lab."""
        path = self.folder.parent / f".{self.name}.lock"
        with locked(path):
            yield path
