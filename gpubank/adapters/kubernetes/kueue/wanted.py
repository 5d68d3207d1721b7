"""What a layout asks for, made once: laid out again and again, a pool costs what has changed of it.

With 1,000 groups a layout is 4,000 queues. Making and comparing them anew took 0.4 s of every look of the controller.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.domain.contract import Side
from gpubank.domain.layout import GroupLayout, PoolLayout

ORDER = (RESOURCE_FLAVOR, CLUSTER_QUEUE, LOCAL_QUEUE)
"""Kinds as they are made: a ClusterQueue without its flavor, a LocalQueue without its ClusterQueue are inactive."""


class Want(NamedTuple):
    """One object as it should be."""

    kind: Kind
    name: str
    """`Kind/namespace/name`, as it is told of."""

    body: Object


class Wants:
    """What one pool needs; the same group makes the very same objects as the last time."""

    def __init__(self) -> None:
        self._frame: PoolLayout | None = None
        self._flavor: Want | None = None
        self._groups: dict[GroupLayout, tuple[Want, ...]] = {}
        self._settled: dict[str, tuple[Object, Object]] = {}
        """Objects that were found as wanted: what was found, and what was wanted."""

    def of(self, layout: PoolLayout) -> dict[Kind, list[Want]]:
        """Return what the layout asks for, by kind as they are to be made."""
        frame = layout.model_copy(update={"groups": ()})
        if self._flavor is None or frame != self._frame:
            self._frame, self._groups = frame, {}
            self._flavor = _want(RESOURCE_FLAVOR, queues.flavor(layout))
        before, self._groups = self._groups, {}
        found: dict[Kind, list[Want]] = {kind: [] for kind in ORDER}
        found[RESOURCE_FLAVOR].append(self._flavor)
        for group in layout.groups:
            made = before.get(group)
            self._groups[group] = made = tuple(_of_group(layout, group)) if made is None else made
            for want in made:
                found[want.kind].append(want)
        return found

    def unsettled(
        self, wants: list[Want], find: Callable[[Want], Object | None], good: Callable[[Want, Object], bool]
    ) -> list[tuple[Want, Object | None]]:
        """Return what is not, or not known to be, as wanted, with what there is instead.

        `good` is asked only where either has changed since it last said yes.
        """
        left = []
        for want in wants:
            found = find(want)
            known = self._settled.get(want.name)
            if found is not None and known is not None and known[0] is found and known[1] is want.body:
                continue
            if found is not None and good(want, found):
                self._settled[want.name] = found, want.body
            else:
                self._settled.pop(want.name, None)
                left.append((want, found))
        return left

    def forget(self, names: set[str]) -> None:
        """Forget everything but these."""
        if len(self._settled) > len(names):
            self._settled = {name: pair for name, pair in self._settled.items() if name in names}


def named(kind: Kind, body: Object) -> str:
    """Return how an object is told of."""
    metadata = body["metadata"]
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{kind}/{place}{metadata['name']}"


def _want(kind: Kind, body: Object) -> Want:
    return Want(kind, named(kind, body), body)


def _of_group(layout: PoolLayout, group: GroupLayout) -> Iterator[Want]:
    for side in Side:
        yield _want(CLUSTER_QUEUE, queues.cluster_queue(layout, group, side))
        for namespace in group.namespaces:
            yield _want(LOCAL_QUEUE, queues.local_queue(layout, group, side, namespace))
