"""Jobs and Deployments as a cluster takes them, and what a queue refuses.

The same YAML goes to the simulation and to Kueue: a `batch/v1` Job or an `apps/v1` Deployment whose label
`kueue.x-k8s.io/queue-name` names a LocalQueue. What the ValidatingAdmissionPolicy refuses on a cluster is refused
here, in the words of the bank.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gpubank.domain.base import BORROW_SUFFIX, LABEL_PATTERN, format_duration
from gpubank.domain.contract import (
    ELASTIC_JOB_ANNOTATION,
    MIN_PARALLELISM_ANNOTATION,
    PRIORITY_CLASS_LABEL,
    QUEUE_LABEL,
    RETRYABLE_LABEL,
    WorkloadContract,
)
from gpubank.domain.errors import InvalidObjectError, Problem
from gpubank.domain.pool import PoolLimits
from gpubank.domain.refusal import shown
from gpubank.simulation.commands import COMMAND_ANNOTATION, Command

DEFAULT_NAMESPACE: Final = "default"
_DEFAULT_GRACE: Final = 30
_DEFAULT_BACKOFF: Final = 6
_API_VERSIONS: Final = {"Job": "batch/v1", "Deployment": "apps/v1"}


@dataclass(frozen=True)
class JobManifest:
    """What the cluster needs to know about a Job or Deployment."""

    kind: str
    namespace: str
    name: str
    queue: str
    """LocalQueue that it is submitted to."""

    parallelism: int
    """Pods at a time; a Deployment's replicas."""

    completions: int
    """Pods that must end well; a Deployment's never do."""

    backoff_limit: int
    """Failures after which the job has failed."""

    requests: Mapping[str, int]
    """Whole extended resources that each pod asks for."""

    grace: int
    """Seconds between SIGTERM and SIGKILL."""

    priority_class: str
    labels: Mapping[str, str]
    """Of the object and its pod template together; the object's win."""

    annotations: Mapping[str, str]
    """Of the object and its pod template together; the object's win."""

    pod_annotations: Mapping[str, str]
    """Of the pod template alone."""

    command: Command | None

    @property
    def pods(self) -> int:
        """Pods at a time at the start."""
        return min(self.parallelism, self.completions)

    @property
    def borrows(self) -> bool:
        """Whether it was submitted to a borrow queue."""
        return self.queue.endswith(BORROW_SUFFIX)

    @property
    def suspendable(self) -> bool:
        """Whether its kind can be suspended."""
        return self.kind == "Job"

    @property
    def contract(self) -> WorkloadContract:
        """What its labels and annotations say."""
        return WorkloadContract.of(self.labels, self.annotations)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "JobManifest":
        """Read a manifest; raise InvalidObjectError with everything that is wrong with it."""
        return _Reader(body).read()


class _Reader:
    """Reads one manifest, collecting what is wrong."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body
        self._problems: list[Problem] = []

    def read(self) -> JobManifest:
        kind = self._body.get("kind")
        if kind not in _API_VERSIONS or self._body.get("apiVersion") != _API_VERSIONS[kind]:
            self._refuse("kind", kind, "must be a Job of batch/v1 or a Deployment of apps/v1", "submit one of the two")
            raise self._error()
        meta, spec = self._mapping(self._body, "metadata"), self._mapping(self._body, "spec")
        template = self._mapping(spec, "template", "spec.")
        pod_meta = self._mapping(template, "metadata", "spec.template.", required=False)
        pod_spec = self._mapping(template, "spec", "spec.template.")
        labels = {**pod_meta.get("labels", {}), **meta.get("labels", {})}
        pod_annotations = dict(pod_meta.get("annotations", {}))
        parallelism = self._count(spec, "parallelism" if kind == "Job" else "replicas", 1)
        manifest = JobManifest(
            kind=kind,
            namespace=meta.get("namespace") or DEFAULT_NAMESPACE,
            name=self._name(meta),
            queue=self._queue(meta, labels),
            parallelism=parallelism,
            completions=self._count(spec, "completions", parallelism) if kind == "Job" else parallelism,
            backoff_limit=self._count(spec, "backoffLimit", _DEFAULT_BACKOFF),
            requests=self._requests(pod_spec),
            grace=self._count(pod_spec, "terminationGracePeriodSeconds", _DEFAULT_GRACE, "spec.template.spec."),
            priority_class=labels.get(PRIORITY_CLASS_LABEL) or pod_spec.get("priorityClassName") or "",
            labels=labels,
            annotations={**pod_annotations, **meta.get("annotations", {})},
            pod_annotations=pod_annotations,
            command=self._command(pod_annotations, pod_spec),
        )
        if self._problems:
            raise self._error()
        return manifest

    def _mapping(
        self, parent: Mapping[str, Any], name: str, path: str = "", *, required: bool = True
    ) -> Mapping[str, Any]:
        value = parent.get(name)
        if isinstance(value, Mapping):
            return value
        if required or value is not None:
            self._refuse(path + name, value, "must be a mapping", "write one `name: value` per line")
        return {}

    def _name(self, meta: Mapping[str, Any]) -> str:
        name = meta.get("name")
        if not isinstance(name, str) or not re.fullmatch(LABEL_PATTERN, name) or len(name) > 63:
            rule = "must be a DNS label of at most 63 characters"
            self._refuse("metadata.name", name, rule, "use lower-case letters, digits and dashes")
        return str(name)

    def _queue(self, meta: Mapping[str, Any], labels: Mapping[str, str]) -> str:
        field = f"metadata.labels[{QUEUE_LABEL}]"
        queue = meta.get("labels", {}).get(QUEUE_LABEL)
        if not isinstance(queue, str) or not queue:
            rule, remedy = "names the queue that the work waits in", "write the pool's name, or <pool>-borrow"
            self._refuse(field, labels.get(QUEUE_LABEL), rule, remedy)
        return str(queue)

    def _count(self, parent: Mapping[str, Any], name: str, default: int, path: str = "spec.") -> int:
        value = parent.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._refuse(path + name, value, "must be a whole number, not below 0", "write digits alone")
            return default
        return value

    def _requests(self, pod_spec: Mapping[str, Any]) -> dict[str, int]:
        """Sum the containers; what runs before them counts only where it asks for more."""
        total = self._summed(pod_spec.get("containers") or [], "containers")
        if not pod_spec.get("containers"):
            self._refuse("spec.template.spec.containers", None, "must list a container", "write one")
        for index, container in enumerate(pod_spec.get("initContainers") or []):
            for name, amount in self._asked(container, f"initContainers[{index}]").items():
                total[name] = max(total.get(name, 0), amount)
        return total

    def _summed(self, containers: list[Mapping[str, Any]], where: str) -> dict[str, int]:
        total: dict[str, int] = {}
        for index, container in enumerate(containers):
            for name, amount in self._asked(container, f"{where}[{index}]").items():
                total[name] = total.get(name, 0) + amount
        return total

    def _asked(self, container: Mapping[str, Any], where: str) -> dict[str, int]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        amounts: dict[str, int] = {}
        for name, quantity in asked.items():
            if "/" not in name:
                continue  # cpu, memory and the like are no quota of the bank
            if not re.fullmatch(r"[0-9]{1,7}", str(quantity)) or isinstance(quantity, bool):
                field = f"spec.template.spec.{where}.resources.requests[{name}]"
                self._refuse(field, quantity, "must be a whole number", "ask for whole devices")
                continue
            amounts[name] = int(quantity)
        return amounts

    def _command(self, annotations: Mapping[str, str], pod_spec: Mapping[str, Any]) -> Command | None:
        try:
            return Command.of(annotations, pod_spec.get("containers") or ())
        except ValueError as error:
            field = f"spec.template.metadata.annotations[{COMMAND_ANNOTATION}]"
            self._refuse(field, None, str(error), "write it so, or remove it")
            return None

    def _refuse(self, field: str, value: object, rule: str, remedy: str) -> None:
        self._problems.append(Problem(field, "" if value is None else shown(value), rule, remedy))

    def _error(self) -> InvalidObjectError:
        metadata = self._body.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        return InvalidObjectError(f"{self._body.get('kind') or 'object'} {name!r}", self._problems)


def refuse(manifest: JobManifest, limits: PoolLimits) -> None:
    """Raise InvalidObjectError if its queue does not admit the job, with every reason; `limits` are its pool's."""
    problems = _borrow_problems(manifest, limits.max_termination) if manifest.borrows else []
    allowed, named = limits.allowed_priority_classes, manifest.priority_class
    if named and allowed and named not in allowed:
        rule = f"the pool allows the priority classes {', '.join(allowed)}"
        problems.append(Problem("priority class", shown(named), rule, "name one of them, or none"))
    if problems:
        side = "borrow " if manifest.borrows else ""
        raise InvalidObjectError(
            f"{manifest.kind} {manifest.name!r} in the {side}queue {manifest.queue!r}", tuple(problems)
        )


def _borrow_problems(manifest: JobManifest, max_termination: timedelta) -> list[Problem]:
    own = manifest.queue.removesuffix(BORROW_SUFFIX)
    problems: list[Problem] = []
    if not manifest.suspendable:
        rule = "borrowed work must be of a kind that can be suspended"
        problems.append(Problem("kind", shown(manifest.kind), rule, f"submit a Job, or use the queue {own!r}"))
    if not manifest.contract.reclaim_class.may_borrow:
        rule = "borrowed work is retryable, has a checkpoint hook or is a notebook, and is never inference"
        remedy = f'label it {RETRYABLE_LABEL}: "true", give it a checkpoint hook, or use the queue {own!r}'
        problems += [*manifest.contract.problems, Problem("metadata.labels", "", rule, remedy)]
    if timedelta(seconds=manifest.grace) > max_termination:
        field = "spec.template.spec.terminationGracePeriodSeconds"
        rule = f"borrowed work ends within the pool's maxTermination ({format_duration(max_termination)})"
        remedy = f"write at most {int(max_termination.total_seconds())}"
        problems.append(Problem(field, str(manifest.grace), rule, remedy))
    for annotation, why in ((MIN_PARALLELISM_ANNOTATION, "partial"), (ELASTIC_JOB_ANNOTATION, "elastic")):
        if annotation in manifest.annotations:
            field, value = f"metadata.annotations[{annotation}]", shown(manifest.annotations[annotation])
            problems.append(Problem(field, value, f"borrowed work is never {why}, for a loan is whole", "remove it"))
    return problems
