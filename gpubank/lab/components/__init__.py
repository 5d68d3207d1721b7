"""The servers a lab is made of: one description each, and the list of those that every lab has."""

from collections.abc import Iterable
from typing import Final

from gpubank.lab.components.base import Component, Context
from gpubank.lab.components.containerd import CONTAINERD
from gpubank.lab.components.etcd import ETCD
from gpubank.lab.components.kubelet import KUBELET
from gpubank.lab.components.kubernetes import API_SERVER, CONTROLLER_MANAGER, SCHEDULER
from gpubank.lab.components.kueue import KUEUE
from gpubank.lab.components.kwok import KWOK
from gpubank.lab.components.postgres import POSTGRES
from gpubank.lab.components.prometheus import PROMETHEUS
from gpubank.lab.components.runner import RUNNER
from gpubank.lab.components.temporal import TEMPORAL
from gpubank.lab.errors import StateError

BASE: Final[tuple[Component, ...]] = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK, KUEUE, RUNNER)
"""What every lab runs."""
EXTRA: Final[tuple[Component, ...]] = (POSTGRES, TEMPORAL, PROMETHEUS, CONTAINERD, KUBELET)
"""What a lab runs when asked for by name."""


def choose(extra: Iterable[str] = ()) -> tuple[Component, ...]:
    """Return the base set and the named extras, dependencies before those who need them; raise StateError."""
    known = {component.name: component for component in (*BASE, *EXTRA)}
    ordered: dict[str, Component] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        if name not in known:
            raise StateError(f"no component {name!r}; there are {', '.join(known)}")
        for needed in known[name].depends_on:
            add(needed)
        ordered[name] = known[name]

    for name in (*(component.name for component in BASE), *extra):
        add(name)
    return tuple(ordered.values())


__all__ = ["BASE", "EXTRA", "Component", "Context", "choose"]
