"""Amounts of a device in Kubernetes objects: quantities as whole numbers, and what a pod asks for in all."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from lightkube.utils.quantity import parse_quantity

from gpubank.adapters.kubernetes.kinds import Object
from gpubank.domain.base import bounded

Requests = dict[str, int]
"""Whole devices by resource name."""

_ORDINARY: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


def floor(quantity: Any) -> int:
    """Return a quantity of devices rounded down, within bounds; 0 for none."""
    return bounded(math.floor(_decimal(quantity)))


def ceil(quantity: Any) -> int:
    """Return a quantity of devices rounded up, within bounds; 0 for none."""
    return bounded(math.ceil(_decimal(quantity)))


def pod_requests(spec: Object) -> Requests:
    """Return what a pod of this spec asks for, of every extended resource (`vendor/device`).

    As the scheduler counts: containers and sidecars together, or the greediest step of the init containers with the
    sidecars before it, whichever is more.
    """
    running, peak = Requests(), Requests()
    for container in spec.get("initContainers") or ():
        asked = _container(container)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, asked)
            peak = _most(peak, running)
        else:
            peak = _most(peak, _sum(running, asked))
    for container in spec.get("containers") or ():
        running = _sum(running, _container(container))
    return _most(peak, _sum(running, _extended(spec.get("overhead") or {})))


def _container(container: Object) -> Requests:
    resources = container.get("resources") or {}
    # A limit without a request is a request as well.
    return _extended((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _extended(amounts: Mapping[str, Any]) -> Requests:
    return {name: ceil(amount) for name, amount in amounts.items() if name not in _ORDINARY and "/" in name}


def _sum(one: Requests, other: Requests) -> Requests:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def _most(one: Requests, other: Requests) -> Requests:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}


def _decimal(quantity: Any) -> Decimal:
    if quantity is None:
        return Decimal(0)
    return parse_quantity(str(quantity)) or Decimal(0)
