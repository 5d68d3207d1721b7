"""Flavors and queues: laid out by the bank, written by revision, used by the scheduler a moment later.

    write ──▶ nominal, stamp, generation ── acknowledge ──▶ in force, acknowledged ── fence ──▶ fenced

A quota is only ever written over a lower or equal stamp, and never while the fail-safe holds the pool.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpubank.domain.contract import (
    NODE_POOL_LABEL,
    Side,
    borrow_queue,
    flavor_name,
    local_borrow_queue,
    local_own_queue,
    own_queue,
)
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import QueueFacts
from gpubank.domain.layout import LayoutProblem, LayoutReport, PoolLayout
from gpubank.domain.pool import DEFAULT_RESOURCE

FOREIGN = "ForeignObject"
"""Reason of a problem: an object of this name is there, and it is not the bank's."""

IN_USE = "QueueInUse"
"""Reason of a problem: a queue that is no longer wanted still has quota or work."""


@dataclass(eq=False)
class Flavor:
    """What a pool's pods ask for, and on which nodes."""

    pool: str
    resource: str = DEFAULT_RESOURCE
    labels: dict[str, str] = field(default_factory=dict)
    managed: bool = True


@dataclass(frozen=True)
class CohortTerms:
    """How a queue stands in the pool's Cohort."""

    borrowing_limit: int
    """Most GPUs over its own quota."""

    reclaims: bool
    """Whether it takes back what others borrow of it."""

    epoch: int
    """Epoch of the fail-safe that it was put in for."""


@dataclass(eq=False)
class Cohort:
    """A pool's Cohort; in normal operation no queue is in it."""

    epoch: int = 0
    """Epoch of the fail-safe; 0 while the bank is in charge."""

    last_epoch: int = 0
    since: datetime | None = None
    """When the last epoch began."""

    surplus: int = 0
    """GPUs that it has beside its queues' quotas."""

    version: int = 1


@dataclass(eq=False)
class Queue:
    """One ClusterQueue."""

    name: str
    pool: str
    group: str
    kind: Side
    managed: bool = True
    """Whether it is the bank's."""

    nominal: int = 0
    """Quota as written."""

    in_force: int = 0
    """Quota that new admission cycles use."""

    stamp: int = -1
    generation: int = 1
    """Grows with every change of the quota."""

    acknowledged: int = 1
    """Generation that the scheduler has taken over."""

    cohort: CohortTerms | None = None
    """How it stands in the pool's Cohort, as written; None outside."""

    cohort_in_force: CohortTerms | None = None


class QueueBook:
    """Every flavor and queue of the cluster."""

    def __init__(self) -> None:
        self.flavors: dict[str, Flavor] = {}
        """By pool."""

        self.queues: dict[str, Queue] = {}
        """ClusterQueues, by name."""

        self.local: dict[tuple[str, str], str] = {}
        """LocalQueues: namespace and name, to the ClusterQueue's name."""

        self.foreign_local: set[tuple[str, str]] = set()
        """LocalQueues that are not the bank's."""

        self.cohorts: dict[str, Cohort] = {}
        """By pool."""

    def cohort(self, pool: str) -> Cohort:
        """Return the pool's Cohort."""
        return self.cohorts.setdefault(pool, Cohort())

    def of(self, namespace: str, local_queue: str) -> Queue | None:
        """Return the queue that a LocalQueue leads to, or None while there is none."""
        return self.queues.get(self.local.get((namespace, local_queue), ""))

    def of_pool(self, pool: str) -> tuple[Queue, ...]:
        """Return the bank's queues of a pool, by name."""
        return tuple(queue for _, queue in sorted(self.queues.items()) if queue.pool == pool and queue.managed)

    def labels_of(self, pool: str) -> Mapping[str, str]:
        """Return the labels of the pool's nodes."""
        flavor = self.flavors.get(flavor_name(pool))
        return flavor.labels if flavor is not None and flavor.labels else {NODE_POOL_LABEL: pool}

    def written(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> Queue | None:
        """Write a quota; return the queue if its quota changed, so that the scheduler has to take it over.

        Raises `ConflictError` where the fail-safe holds or the stamp is higher, `BackendError` where there is no such
        queue of the bank's.
        """
        name = own_queue(group, pool) if kind is Side.OWN else borrow_queue(group, pool)
        queue = self.queues.get(name)
        if queue is None or not queue.managed:
            raise BackendError(f"queue {name!r} is not there, or not the bank's; lay the pool out first")
        self.check_in_charge(pool)
        if queue.cohort is not None:
            raise ConflictError(f"queue {name!r} stands in a Cohort; the bank leaves it alone until the fail-safe ends")
        if queue.stamp > revision:
            raise ConflictError(
                f"queue {name!r} bears revision {queue.stamp}: revision {revision} is older; read the books again"
            )
        queue.stamp = revision
        if queue.nominal == nominal:
            return None
        queue.nominal = nominal
        queue.generation += 1
        return queue

    def taken_back(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> Queue | None:
        """Take a queue out of the Cohort with its quota; one that is in none is written as `written` does."""
        queue = self.queues.get(own_queue(group, pool) if kind is Side.OWN else borrow_queue(group, pool))
        if queue is None or queue.cohort is None:
            return self.written(pool, group, kind, nominal=nominal, revision=revision)
        self.check_in_charge(pool)
        queue.nominal, queue.stamp, queue.cohort = nominal, revision, None
        queue.generation += 1
        return queue

    def check_in_charge(self, pool: str) -> None:
        """Raise `ConflictError` while the fail-safe holds the pool."""
        if epoch := self.cohort(pool).epoch:
            raise ConflictError(f"pool {pool!r} is in fail-safe epoch {epoch}: the bank writes nothing until it ends")

    def facts(self, queue: Queue, *, reserved: int, fenced: int) -> QueueFacts:
        """Say what the bank may know of a queue."""
        return QueueFacts(
            name=queue.name,
            group=queue.group,
            kind=queue.kind,
            nominal=queue.nominal,
            reserved=reserved,
            stamp=queue.stamp,
            fenced=fenced,
            fail_safe=queue.cohort is not None,
        )

    def lay_out(self, layout: PoolLayout, *, busy: Iterable[str] = ()) -> LayoutReport:
        """Create or repair what the pool needs; `busy` names the queues that have work and therefore stay."""
        return _Layout(self, layout, frozenset(busy)).carried_out()

    def remove(self, pool: str, *, busy: Iterable[str] = ()) -> LayoutReport:
        """Remove the bank's objects of a pool; what still has work stays, and is a problem."""
        empty = PoolLayout(cluster="", pool=pool, resource_name=DEFAULT_RESOURCE)
        return _Layout(self, empty, frozenset(busy)).carried_out(keep_flavor=False)


class _Layout:
    """Carries out one layout, noting what changed and what could not."""

    def __init__(self, book: QueueBook, layout: PoolLayout, busy: frozenset[str]) -> None:
        self._book = book
        self._layout = layout
        self._busy = busy
        self._changed: list[str] = []
        self._problems: list[LayoutProblem] = []

    def carried_out(self, *, keep_flavor: bool = True) -> LayoutReport:
        if keep_flavor:
            self._flavor()
        wanted_queues, wanted_local = set(), set()
        for group in self._layout.groups:
            for kind in Side:
                wanted_queues.add(self._queue(group.group, kind))
                for namespace in group.namespaces:
                    wanted_local.add(self._local_queue(namespace, group.group, kind))
        self._drop_local_queues(wanted_local)
        self._drop_queues(wanted_queues, keep_quota=keep_flavor)
        if not keep_flavor:
            self._drop_flavor()
        return LayoutReport(changed=tuple(self._changed), problems=tuple(self._problems))

    def _flavor(self) -> None:
        pool, name = self._layout.pool, flavor_name(self._layout.pool)
        flavor = self._book.flavors.get(name)
        if flavor is None:
            flavor = self._book.flavors[name] = Flavor(pool)
        elif not flavor.managed:
            self._foreign("ResourceFlavor", name)
            return
        elif (flavor.resource, flavor.labels) == (self._layout.resource_name, self._layout.node_labels):
            return
        flavor.resource, flavor.labels = self._layout.resource_name, dict(self._layout.node_labels)
        self._changed.append(f"ResourceFlavor/{name}")

    def _queue(self, group: str, kind: Side) -> str:
        pool = self._layout.pool
        name = own_queue(group, pool) if kind is Side.OWN else borrow_queue(group, pool)
        queue = self._book.queues.get(name)
        if queue is None:
            self._book.queues[name] = Queue(name, pool, group, kind)
            self._changed.append(f"ClusterQueue/{name}")
        elif not queue.managed:
            self._foreign("ClusterQueue", name)
        return name

    def _local_queue(self, namespace: str, group: str, kind: Side) -> tuple[str, str]:
        pool = self._layout.pool
        own = kind is Side.OWN
        key = namespace, local_own_queue(pool) if own else local_borrow_queue(pool)
        target = own_queue(group, pool) if own else borrow_queue(group, pool)
        if key in self._book.foreign_local:
            self._foreign("LocalQueue", "/".join(key))
        elif self._book.local.get(key) != target:
            self._book.local[key] = target
            self._changed.append(f"LocalQueue/{'/'.join(key)}")
        return key

    def _drop_local_queues(self, wanted: set[tuple[str, str]]) -> None:
        names = {local_own_queue(self._layout.pool), local_borrow_queue(self._layout.pool)}
        for key in sorted(self._book.local):
            if key[1] in names and key not in wanted and key not in self._book.foreign_local:
                del self._book.local[key]
                self._changed.append(f"LocalQueue/{'/'.join(key)}")

    def _drop_queues(self, wanted: set[str], *, keep_quota: bool) -> None:
        for queue in self._book.of_pool(self._layout.pool):
            if queue.name in wanted:
                continue
            if queue.name in self._busy or (keep_quota and queue.nominal):
                message = f"queue {queue.name!r} still has quota or work: it stays until both are gone"
                self._problems.append(LayoutProblem(reason=IN_USE, message=message))
                continue
            del self._book.queues[queue.name]
            self._changed.append(f"ClusterQueue/{queue.name}")

    def _drop_flavor(self) -> None:
        name = flavor_name(self._layout.pool)
        flavor = self._book.flavors.get(name)
        if flavor is not None and flavor.managed and not self._problems:
            del self._book.flavors[name]
            self._changed.append(f"ResourceFlavor/{name}")

    def _foreign(self, kind: str, name: str) -> None:
        message = f"{kind} {name!r} is not the bank's: it is left alone; rename or remove it"
        self._problems.append(LayoutProblem(reason=FOREIGN, message=message))
