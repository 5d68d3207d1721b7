"""The kinds of the API and how the API server presents each: scope, names, columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gpubank.domain.errors import PolicyError
from gpubank.domain.group import BusinessGroup
from gpubank.domain.inference import InferenceScalingPolicy
from gpubank.domain.lease import CapacityLease
from gpubank.domain.meta import Resource
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool
from gpubank.domain.tidal import TidalPolicy
from gpubank.domain.utilization import LowUtilizationPolicy

CATEGORY: Final = "gpubank"
"""`kubectl get gpubank` lists every kind."""


class Scope(StrEnum):
    """Where objects of a kind stand."""

    CLUSTER = "Cluster"
    NAMESPACED = "Namespaced"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; `wide` ones need `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


def _condition(name: str, condition: str) -> Column:
    return Column(name, f'.status.conditions[?(@.type=="{condition}")].status')


_READY: Final = _condition("Ready", "Ready")
_WHY: Final = Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', wide=True)
_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its model and its presentation."""

    model: type[Resource[Any, Any]]
    plural: str
    short_name: str
    scope: Scope
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    """Paths that field selectors may use."""

    @property
    def name(self) -> str:
        """The kind's name, as in `GPUPool`."""
        return self.model.__name__

    @property
    def singular(self) -> str:
        """The kind's name as kubectl takes it."""
        return self.name.lower()


_KINDS: Final = (
    Kind(
        GPUPool,
        "gpupools",
        "gpool",
        Scope.CLUSTER,
        (
            Column("Capacity", ".spec.capacity", "integer"),
            Column("Allocatable", ".status.allocatable", "integer"),
            Column("Reserved", ".status.reserved", "integer"),
            Column("Borrowed", ".status.borrowed", "integer"),
            Column("Backend", ".spec.backend", wide=True),
            _READY,
            _WHY,
            _AGE,
        ),
    ),
    Kind(
        BusinessGroup,
        "businessgroups",
        "bgrp",
        Scope.CLUSTER,
        (Column("Owner", ".spec.owner"), Column("Cost Center", ".spec.costCenter", wide=True), _READY, _WHY, _AGE),
    ),
    Kind(
        GPUQuotaPolicy,
        "gpuquotapolicies",
        "gqp",
        Scope.NAMESPACED,
        (
            Column("Group", ".spec.businessGroup"),
            Column("Pool", ".spec.resourcePool"),
            Column("Guaranteed", ".spec.guaranteed", "integer"),
            Column("Used", ".status.used", "integer"),
            Column("Borrowed", ".status.borrowed", "integer"),
            Column("Lent", ".status.lent", "integer"),
            Column("Pending", ".status.pending", "integer", wide=True),
            _READY,
            _WHY,
            _AGE,
        ),
        (".spec.businessGroup", ".spec.resourcePool"),
    ),
    Kind(
        InferenceScalingPolicy,
        "inferencescalingpolicies",
        "isp",
        Scope.NAMESPACED,
        (
            Column("Workload", ".spec.workloadRef.name"),
            Column("Min", ".spec.minReplicas", "integer"),
            Column("Max", ".spec.maxReplicas", "integer"),
            Column("Replicas", ".status.replicas", "integer"),
            Column("Desired", ".status.desiredReplicas", "integer"),
            _READY,
            _WHY,
            _AGE,
        ),
    ),
    Kind(
        TidalPolicy,
        "tidalpolicies",
        "tide",
        Scope.NAMESPACED,
        (Column("Timezone", ".spec.timezone"), Column("Open", ".status.openWindows"), _READY, _WHY, _AGE),
    ),
    Kind(
        CapacityLease,
        "capacityleases",
        "clease",
        Scope.NAMESPACED,
        (
            Column("Workload", ".spec.workloadRef.name"),
            Column("Pool", ".spec.pool"),
            Column("GPUs", ".spec.gpus", "integer"),
            Column("Until", ".spec.until"),
            _condition("Approved", "Approved"),
            _READY,
            _WHY,
            Column("For", ".spec.reason", wide=True),
            _AGE,
        ),
    ),
    Kind(
        LowUtilizationPolicy,
        "lowutilizationpolicies",
        "lup",
        Scope.NAMESPACED,
        (
            Column("Type", ".spec.match.workloadType"),
            Column("Window", ".spec.window"),
            Column("Cases", ".status.openCases", "integer"),
            _READY,
            _WHY,
            _AGE,
        ),
    ),
)

KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in _KINDS}
"""Every kind by its name, in the order of the reference."""


def kind_named(name: str) -> Kind:
    """Find a kind by name, plural, singular or short name, in any case; raises PolicyError if there is none."""
    wanted = name.lower()
    for kind in _KINDS:
        if wanted in (kind.singular, kind.plural, kind.short_name):
            return kind
    raise PolicyError(f"{name!r} is no kind of the bank; there are {', '.join(KINDS)}")
