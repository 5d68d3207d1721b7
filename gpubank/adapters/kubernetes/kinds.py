"""The kinds of objects that the bank reads or writes on a cluster, and where they stand in the API."""

from dataclasses import dataclass
from typing import Any, Final

from gpubank.domain.base import GROUP, VERSION

Object = dict[str, Any]
"""An object as on the wire."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object in one version."""

    group: str
    """API group; empty for the core group."""

    version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What `apiVersion` says in its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", namespace: str | None = None, *, subresource: str = "") -> str:
        """Return the URL path of one object, or of the collection when `name` is empty."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join(part for part in (*parts, self.plural, name, subresource) if part)

    def __str__(self) -> str:
        return self.name


NAMESPACE: Final = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
NODE: Final = Kind("", "v1", "Node", "nodes", namespaced=False)
POD: Final = Kind("", "v1", "Pod", "pods")
EVENT: Final = Kind("", "v1", "Event", "events")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
JOB: Final = Kind("batch", "v1", "Job", "jobs")

KUEUE_GROUP: Final = "kueue.x-k8s.io"
KUEUE_VERSION: Final = "v1beta2"
CLUSTER_QUEUE: Final = Kind(KUEUE_GROUP, KUEUE_VERSION, "ClusterQueue", "clusterqueues", namespaced=False)
LOCAL_QUEUE: Final = Kind(KUEUE_GROUP, KUEUE_VERSION, "LocalQueue", "localqueues")
RESOURCE_FLAVOR: Final = Kind(KUEUE_GROUP, KUEUE_VERSION, "ResourceFlavor", "resourceflavors", namespaced=False)
COHORT: Final = Kind(KUEUE_GROUP, KUEUE_VERSION, "Cohort", "cohorts", namespaced=False)
WORKLOAD: Final = Kind(KUEUE_GROUP, KUEUE_VERSION, "Workload", "workloads")

BANK_KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(GROUP, VERSION, "GPUPool", "gpupools", namespaced=False),
        Kind(GROUP, VERSION, "BusinessGroup", "businessgroups", namespaced=False),
        Kind(GROUP, VERSION, "GPUQuotaPolicy", "gpuquotapolicies"),
        Kind(GROUP, VERSION, "InferenceScalingPolicy", "inferencescalingpolicies"),
        Kind(GROUP, VERSION, "TidalPolicy", "tidalpolicies"),
        Kind(GROUP, VERSION, "CapacityLease", "capacityleases"),
        Kind(GROUP, VERSION, "LowUtilizationPolicy", "lowutilizationpolicies"),
    )
}
"""The bank's own kinds by name."""

LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
SELF_SUBJECT_REVIEW: Final = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False
)
