"""What one server of the lab is: a description, so that another server is another description and nothing else."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpubank.lab.access import Access
from gpubank.lab.build import Built, GoProgram
from gpubank.lab.pki import Authority, Certificate, file_name
from gpubank.lab.state import MARKER

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class Context:
    """What a component may know about the lab it starts in."""

    name: str
    folder: Path
    ports: Mapping[str, int]
    authority: Authority
    built: Mapping[str, Built]

    def port(self, name: str) -> int:
        """Return a port that some component's `ports` names."""
        return self.ports[name]

    def address(self, name: str) -> str:
        """Return `host:port` of a port."""
        return f"{LOOPBACK}:{self.ports[name]}"

    def certificate(self, user: str, *, group: str | None = None) -> Certificate:
        """Return the certificate of a server or client, made on first use."""
        return self.authority.issue(user, group=group)

    def kubeconfig(self, user: str, *, group: str | None = None) -> Path:
        """Return a kubeconfig for `user`, written on first use."""
        return self.access.kubeconfig(self.folder / "kubeconfig" / file_name(user, group), user, group=group)

    @property
    def access(self) -> Access:
        return Access(self.authority, f"https://{self.address('kube-apiserver')}")

    def assets(self, program: str) -> Path:
        """Return the folder of what came with a built server."""
        return self.built[program].assets

    def written(self, name: str, text: str) -> Path:
        """Write a component's configuration file and return its path."""
        path = self.folder / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def data(self, name: str) -> Path:
        """Return a folder that a component keeps its data in."""
        path = self.folder / "data" / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def log(self, component: str) -> Path:
        return self.folder / "logs" / f"{component}.log"

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process of this lab."""
        # A proxy for the outside must not get between two servers on loopback.
        hidden = {"http_proxy", "https_proxy", "all_proxy", "kubeconfig"}
        inherited = {key: value for key, value in os.environ.items() if key.lower() not in hidden}
        return inherited | {MARKER: str(self.folder)} | dict(extra)


@dataclass(frozen=True)
class Component:
    """One process of the lab."""

    name: str
    command: Callable[[Context], Sequence[str]]
    """Arguments after the binary; for a component without `program`, the whole command line."""
    ready: Callable[[Context], str | None]
    """One quick look: None when it serves, else what is missing. A refused connection is caught by the caller."""
    program: GoProgram | None = None
    """What to build; None for a process that needs no building."""
    tools: tuple[GoProgram, ...] = ()
    """Programs that it starts or that set it up, built with it."""
    provide: Callable[[], None] = field(default=lambda: None)
    """Runs with the build: gets what it needs and Go does not build. Raises BuildError."""
    ports: tuple[str, ...] = ()
    """Names of the loopback ports that it listens on."""
    depends_on: tuple[str, ...] = ()
    """Components that must be ready before this one starts; it is stopped before them."""
    environment: Callable[[Context], Mapping[str, str]] = field(default=lambda context: {})
    prepare: Callable[[Context], None] = field(default=lambda context: None)
    """Runs before the process starts: what it needs in the cluster."""
    settle: Callable[[Context], None] = field(default=lambda context: None)
    """Runs when it is ready: what needs it in the cluster."""
    clear: Callable[[Path], None] = field(default=lambda folder: None)
    """Runs when the lab of that folder is gone: removes what the component kept elsewhere."""
    start_timeout: float = 60
    """Seconds until it must be ready."""
    stop_grace: float = 5
    """Seconds between SIGTERM and SIGKILL."""

    @property
    def programs(self) -> tuple[GoProgram, ...]:
        """Everything to build."""
        return (*((self.program,) if self.program else ()), *self.tools)

    def argv(self, context: Context) -> list[str]:
        """Return the whole command line."""
        binary = [str(context.built[self.program.name].binary)] if self.program else []
        return [*binary, *self.command(context)]
