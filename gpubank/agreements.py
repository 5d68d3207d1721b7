"""The bank's API objects as models, and the terms that follow from them now.

A field that is not known here was let pass by the API server, so that newer CRDs than this program's are installed: the
program goes on without the field, and says so. Were the whole object left out instead, an old controller in the middle
of an upgrade would take a group's guarantee for withdrawn.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from gpubank.decide.agreement import Agreement, agree
from gpubank.domain.group import BusinessGroup
from gpubank.domain.lease import CapacityLease
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool
from gpubank.domain.terms import PoolTerms

POOL, GROUP, POLICY, LEASE = "GPUPool", "BusinessGroup", "GPUQuotaPolicy", "CapacityLease"
Model = GPUPool | BusinessGroup | GPUQuotaPolicy | CapacityLease


class ObjectReader(Protocol):
    """The part of `ObjectStore` that reading needs."""

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of a kind, in all namespaces."""
        ...


class Unreadable(NamedTuple):
    """An object that the API server took and the models refuse, or that has fields which they do not know."""

    body: Mapping[str, Any]
    message: str


class Objects(NamedTuple):
    """Everything that agreements are made of."""

    pools: tuple[GPUPool, ...]
    groups: tuple[BusinessGroup, ...]
    policies: tuple[GPUQuotaPolicy, ...]
    leases: tuple[CapacityLease, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def all(self) -> tuple[Model, ...]:
        """Every object that could be read."""
        return (*self.pools, *self.groups, *self.policies, *self.leases)


async def read_objects(store: ObjectReader) -> Objects:
    """Read pools, groups, policies and leases; `BackendError` where the store does not answer."""
    unreadable: list[Unreadable] = []
    pools = _parsed(GPUPool, await store.list(POOL), unreadable)
    groups = _parsed(BusinessGroup, await store.list(GROUP), unreadable)
    policies = _parsed(GPUQuotaPolicy, await store.list(POLICY), unreadable)
    leases = _parsed(CapacityLease, await store.list(LEASE), unreadable)
    return Objects(tuple(pools), tuple(groups), tuple(policies), tuple(leases), tuple(unreadable))


def agreement(cluster: str, objects: Objects, *, now: datetime) -> Agreement:
    """Judge the objects against each other, as of `now`."""
    return agree(cluster, objects.pools, objects.groups, objects.policies, objects.leases, now=now)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _parsed(model: type[Any], bodies: Sequence[Mapping[str, Any]], unreadable: list[Unreadable]) -> list[Any]:
    parsed = []
    for body in bodies:
        try:
            parsed.append(model.from_wire(body))
        except ValidationError as error:
            unknown = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
            try:
                parsed.append(model.from_wire(_without(body, unknown)))
            except ValidationError as other:
                first = other.errors()[0]
                unreadable.append(Unreadable(body, f"{_dotted(first['loc'])}: {first['msg']}"))
            else:
                names = ", ".join(map(_dotted, unknown))
                unreadable.append(Unreadable(body, f"{names}: not known to this version of the bank, and not in force"))
    return parsed


def _without(body: Mapping[str, Any], fields: Sequence[tuple[int | str, ...]]) -> Mapping[str, Any]:
    """Return the object without these fields, or as it is where one of them is not to be found."""
    less: dict[str, Any] = copy.deepcopy(dict(body))
    try:
        for *path, last in fields:
            place: Any = less
            for part in path:
                place = place[part]
            del place[last]
    except (LookupError, TypeError):
        return body
    return less


def _dotted(loc: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in loc)


class Agreements:
    """`TermsSource` on an object store: read anew for every question, for a recall must not rest on old terms."""

    def __init__(self, cluster: str, store: ObjectReader, *, clock: Callable[[], datetime] = _utc_now) -> None:
        self._cluster, self._store, self._clock = cluster, store, clock

    async def terms(self, pool: str) -> PoolTerms | None:
        """Return the pool's terms as they are now; None where there is no such pool."""
        return (await self.all_terms()).get(pool)

    async def all_terms(self) -> Mapping[str, PoolTerms]:
        """Return the terms of every pool as they are now."""
        return agreement(self._cluster, await read_objects(self._store), now=self._clock()).terms
