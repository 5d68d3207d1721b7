"""Manifests and small waits that the lab's tests share. Every test works in a namespace of its own."""

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from gpubank.lab.access import Api, Manifest
from tests.support.waiting import AFTER_AN_OUTAGE, until

KUEUE = "kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"
POOL = "h100-pool"
NEVER = {"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "Never"}, "withinClusterQueue": "Never"}


class Tenant:
    """One group's corner of the lab: a namespace with queues, and what happens in them."""

    def __init__(self, api: Api, **quotas: int) -> None:
        """Make a namespace with a LocalQueue and a ClusterQueue of `quotas[name]` GPUs for every name."""
        self.api = api
        self.namespace = f"team-{uuid.uuid4().hex[:8]}"
        flavor = {"nodeLabels": {"accelerator.aik8s.run/pool": POOL}}
        api.apply({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": POOL}, "spec": flavor})
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        for name, gpus in quotas.items():
            self.set_quota(name, gpus)
            api.apply(
                {
                    "apiVersion": KUEUE,
                    "kind": "LocalQueue",
                    "metadata": {"name": name, "namespace": self.namespace},
                    "spec": {"clusterQueue": self.queue(name)},
                }
            )

    def queue(self, name: str) -> str:
        return f"{self.namespace}.{name}"

    def set_quota(self, name: str, gpus: int) -> None:
        """Give a ClusterQueue `gpus` and wait until Kueue acknowledges it."""
        quota = {"name": POOL, "resources": [{"name": GPU, "nominalQuota": str(gpus)}]}
        stored = self.api.apply(
            {
                "apiVersion": KUEUE,
                "kind": "ClusterQueue",
                "metadata": {"name": self.queue(name)},
                "spec": {
                    "namespaceSelector": {},
                    "preemption": NEVER,
                    "resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}],
                },
            }
        )
        generation = stored["metadata"]["generation"]

        def acknowledged() -> bool:
            status = self.api.request("GET", f"/apis/{KUEUE}/clusterqueues/{self.queue(name)}").get("status", {})
            active = [each for each in status.get("conditions", ()) if each["type"] == "Active"]
            return bool(active) and active[0].get("observedGeneration", 0) >= generation

        until(acknowledged, f"the acknowledgement of {gpus} GPUs for {name}", AFTER_AN_OUTAGE)

    def submit(self, job: str, queue: str, pods: int = 1, gpus: int = 8, **pod: Any) -> None:
        """Create a Job of `pods` pods with `gpus` each; `pod` holds annotations, grace and policy of the pods."""
        template = pod_template(gpus=gpus, **pod)
        self.api.request(
            "POST",
            f"/apis/batch/v1/namespaces/{self.namespace}/jobs",
            json={
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": job, "labels": {"kueue.x-k8s.io/queue-name": queue}},
                "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": template},
            },
        )

    def workload(self, job: str) -> Manifest:
        found = self.api.request("GET", f"/apis/{KUEUE}/namespaces/{self.namespace}/workloads")["items"]
        owned = [each for each in found if any(o["name"] == job for o in each["metadata"].get("ownerReferences", ()))]
        return owned[0] if owned else {}

    def admitted(self, job: str) -> bool:
        conditions = self.workload(job).get("status", {}).get("conditions", ())
        return any(each["type"] == "Admitted" and each["status"] == "True" for each in conditions)

    def reserved(self, job: str) -> bool:
        conditions = self.workload(job).get("status", {}).get("conditions", ())
        return any(each["type"] == "QuotaReserved" and each["status"] == "True" for each in conditions)

    def set_active(self, job: str, active: bool) -> None:
        name = self.workload(job)["metadata"]["name"]
        self.api.request(
            "PATCH",
            f"/apis/{KUEUE}/namespaces/{self.namespace}/workloads/{name}",
            content=json.dumps({"spec": {"active": active}}),
            headers={"content-type": "application/merge-patch+json"},
        )

    def pods(self, job: str | None = None) -> list[Manifest]:
        selector = {"labelSelector": f"job-name={job}"} if job else {}
        found: list[Manifest] = self.api.request("GET", f"/api/v1/namespaces/{self.namespace}/pods", params=selector)[
            "items"
        ]
        return found

    def create_pod(self, name: str, **pod: Any) -> None:
        template = pod_template(gpus=0, **pod)
        metadata = {"name": name} | template["metadata"]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        # The namespace's default service account comes a moment after it, and pods need it.
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        until(lambda: bool(self.api.request("GET", account)["items"]), "the default service account", AFTER_AN_OUTAGE)
        self.api.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", json=body)

    def pod(self, name: str) -> Manifest:
        return next((each for each in self.pods() if each["metadata"]["name"] == name), {})

    def phase(self, name: str) -> str | None:
        phase: str | None = self.pod(name).get("status", {}).get("phase")
        return phase

    def leave(self) -> None:
        """Give back what the tenant's jobs hold; the namespace itself goes when the cluster gets to it."""
        self.api.request("DELETE", f"/api/v1/namespaces/{self.namespace}")

    def delete_pod(self, name: str) -> None:
        self.api.request("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}")


def pod_template(
    *, gpus: int, command: Sequence[str] | None = None, grace: int = 5, policy: str = "Never", **annotations: str
) -> Manifest:
    """Return a pod template; other keywords are annotations of the lab."""
    noted = {f"lab.gpubank.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    if command is not None:
        noted["lab.gpubank.dev/command"] = json.dumps(list(command))
    need = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    container = {"name": "main", "image": "none", "resources": {"requests": need, "limits": need}}
    spec = {"restartPolicy": policy, "terminationGracePeriodSeconds": grace, "containers": [container]}
    return {"metadata": {"annotations": noted}, "spec": spec}


Tenants = Callable[..., Tenant]
"""What the fixture `tenant` is."""
