"""Which pod a name means: the UID, or nothing rather than a guess.

Names are used again, UIDs never. A StatefulSet's pod is followed by another of the same name, often on the same GPU,
and whoever takes one for the other books a team's GPUs to its predecessor. The witnesses, in order:

1. the Pods API, and the checkpoint where it can be read: the one pod of that name to which it gives the device;
2. the checkpoint alone, unless the snapshot knows that UID under another name;
3. the snapshot, if it is fresh and knows exactly one pod of that name.

Where the first two contradict each other, nobody is right.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpubank.domain.attribution import NodeMetadata
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.checkpoint import Holdings


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What is known about pods at one moment; None of what does not answer."""

    pods: Mapping[tuple[str, str], frozenset[str]] | None = None
    """From the Pods API."""

    checkpoint: Holdings | None = None
    snapshot: NodeMetadata | None = None
    fresh: bool = True
    """Whether the snapshot is young enough to name a pod by; of an old one the successor may be missing."""

    def holders(self, allocation: Allocation) -> frozenset[str]:
        """UIDs that the checkpoint gives the device to."""
        if self.checkpoint is None:
            return frozenset()
        return self.checkpoint.get((allocation.container, allocation.resource, allocation.device_id), frozenset())

    def uid(self, allocation: Allocation) -> str | None:
        """Return the UID of the pod that holds a device; None if that cannot be said for sure."""
        noted = self.holders(allocation)
        running = (self.pods or {}).get((allocation.namespace, allocation.pod), frozenset())
        if running:
            # Between two questions to the kubelet a pod may have made way for another: both must name the same one.
            # What a claim gives to a pod is never in the checkpoint.
            seen_twice = self.checkpoint is not None and not allocation.claimed
            return _only(running & noted if seen_twice else running)
        if noted:
            return self._confirmed(_only(noted), allocation)
        if self.pods is not None or self.snapshot is None or not self.fresh:
            # Where the kubelet answers and knows no such pod, what it still lists is on its way out.
            return None
        return _only(frozenset(pod.uid for pod in self.snapshot.named(allocation.namespace, allocation.pod)))

    def _confirmed(self, uid: str | None, allocation: Allocation) -> str | None:
        """Refuse a UID that the snapshot knows under another name: the checkpoint is behind, or ahead."""
        known = self.snapshot.pods.get(uid) if self.snapshot is not None and uid is not None else None
        if known is not None and (known.namespace, known.name) != (allocation.namespace, allocation.pod):
            return None
        return uid


def _only(uids: frozenset[str]) -> str | None:
    return next(iter(uids)) if len(uids) == 1 else None
