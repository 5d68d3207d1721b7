"""ValidatingAdmissionPolicies on borrow queues: what cannot be recalled cleanly never gets in.

    borrow-class         Jobs and other kinds with suspend: one class of the workload contract, whole, never inference
    borrow-termination   Jobs: terminationGracePeriodSeconds within maxTermination of the queue's pool
    borrow-unsuspendable bare pods and services: nothing that has no suspend can borrow
    borrow-template      Jobs and services: their pods enter no borrow queue without them

An object is judged when its queue label ends in `-borrow`: when it is made, when it starts, and when it is told
otherwise while it runs. Stopping it is never judged, nor is what a pool's limits have become since it was made, or a
recall could hang on the rule that serves it. The API server does it by itself, so that it holds while
the bank is down. `gpubank.domain.contract.WorkloadContract` says the same in Python; one table of examples holds the
two together.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from gpubank.domain.base import BORROW_SUFFIX, GROUP
from gpubank.domain.contract import (
    CAPACITY_ROLE_LABEL,
    CHECKPOINT_ENDPOINT_ANNOTATION,
    CHECKPOINT_STORAGE_ANNOTATION,
    CHECKPOINT_TRANSPORT_ANNOTATION,
    ELASTIC_JOB_ANNOTATION,
    MIN_PARALLELISM_ANNOTATION,
    QUEUE_LABEL,
    RETRYABLE_LABEL,
    WORKLOAD_TYPE_LABEL,
    Transport,
    WorkloadType,
)
from gpubank.schema.kinds import KINDS

DEFAULT_TERMINATION_SECONDS: Final = 30
"""Kubernetes' own default, where a pod template does not say."""

Manifest = dict[str, Any]
Resources = Sequence[tuple[str, Sequence[str]]]
"""API groups, each with the resources of it."""

# Kinds with suspend, beside Job: their labels stand on the object itself, for templates differ from kind to kind.
SUSPENDABLE: Final = (
    ("jobset.x-k8s.io", ("jobsets",)),
    ("kubeflow.org", ("jaxjobs", "mpijobs", "paddlejobs", "pytorchjobs", "tfjobs", "xgboostjobs")),
    ("ray.io", ("rayclusters", "rayjobs")),
    ("trainer.kubeflow.org", ("trainjobs",)),
)
_SUSPENDABLE_OWNERS: Final = (
    "Job", "JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob", "RayCluster", "RayJob", "JobSet",
    "TrainJob",
)  # fmt: skip
SERVICES: Final = (
    ("apps", ("deployments", "replicasets", "statefulsets", "daemonsets")),
    ("leaderworkerset.x-k8s.io", ("leaderworkersets",)),
)
_REPLICATION: Final = (("", ("replicationcontrollers",)),)
"""Serves as well, but Kueue does not know it: in an own queue it is nothing."""

_IN_BORROW_QUEUE: Final = (
    f"has(object.metadata.labels) && '{QUEUE_LABEL}' in object.metadata.labels"
    f" && object.metadata.labels['{QUEUE_LABEL}'].endsWith('{BORROW_SUFFIX}')"
)
# What is going away must be able to: its finalizers are removed by updates.
NOT_DELETING: Final = "!has(object.metadata.deletionTimestamp)"


def or_empty(path: str) -> str:
    """Read a map that may be absent."""
    return f"(has({path}) ? {path} : {{}})"


def _suspended(holder: str) -> str:
    return f"(has({holder}.spec.suspend) && {holder}.spec.suspend)"


_TOLD_OTHERWISE: Final = " || ".join(
    f"{or_empty(f'object.metadata.{field}')} != {or_empty(f'oldObject.metadata.{field}')}"
    for field in ("labels", "annotations")
)


def label_of(holder: str, name: str) -> str:
    """Read a label, or nothing."""
    labels = or_empty(f"{holder}.metadata.labels")
    return f"('{name}' in {labels} ? {labels}['{name}'] : '')"


_CREATED: Final = "request.operation == 'CREATE'"
_JOB_STARTS: Final = f"{_CREATED} || (!{_suspended('object')} && ({_suspended('oldObject')} || {_TOLD_OTHERWISE}))"
_QUEUED_ANEW: Final = (
    f"{_CREATED} || !('{QUEUE_LABEL}' in {or_empty('oldObject.metadata.labels')})"
    f" || oldObject.metadata.labels['{QUEUE_LABEL}'] != object.metadata.labels['{QUEUE_LABEL}']"
)


def admission_policies() -> list[Manifest]:
    """Render the policies and their bindings, each policy before its binding."""
    return bound(_job_class(), _other_class(), _termination(), _unsuspendable(), _template())


def _job_class() -> Manifest:
    return _policy(
        "borrow-class-jobs",
        [("batch", ("jobs",))],
        ["CREATE", "UPDATE"],
        [
            *_OBJECT_MAPS,
            *_TEMPLATE_MAPS,
            *_class_variables(template=True),
        ],
        _CLASS_VALIDATIONS,
        when=_JOB_STARTS,
    )


def _other_class() -> Manifest:
    return _policy(
        "borrow-class-other-kinds",
        SUSPENDABLE,
        ["CREATE", "UPDATE"],
        [*_OBJECT_MAPS, *_class_variables(template=False)],
        _CLASS_VALIDATIONS,
        when=f"{_CREATED} || {_TOLD_OTHERWISE}",
    )


def _termination() -> Manifest:
    """Judge by the pool's own limit: every pool is a parameter, and only the queue's pool speaks."""
    return _policy(
        "borrow-termination",
        [("batch", ("jobs",))],
        ["CREATE", "UPDATE"],
        [
            {
                "name": "seconds",
                "expression": "has(object.spec.template.spec.terminationGracePeriodSeconds)"
                " ? object.spec.template.spec.terminationGracePeriodSeconds"
                f" : {DEFAULT_TERMINATION_SECONDS}",
            },
            {
                "name": "concerned",
                "expression": f"object.metadata.labels['{QUEUE_LABEL}'] == params.metadata.name + '{BORROW_SUFFIX}'",
            },
        ],
        [
            {
                "expression": "!variables.concerned"
                " || duration(string(variables.seconds) + 's') <= duration(params.spec.limits.maxTermination)",
                "messageExpression": "'terminationGracePeriodSeconds is ' + string(variables.seconds)"
                " + ': work that borrows from pool ' + params.metadata.name + ' ends within '"
                " + params.spec.limits.maxTermination + ' (maxTermination); lower it, and save checkpoints on request"
                " instead'",
                "reason": "Invalid",
            }
        ],
        when=_QUEUED_ANEW,
        params="GPUPool",
    )


def _unsuspendable() -> Manifest:
    """Refuse pods that nothing suspendable owns, and every kind that serves."""
    owners = ", ".join(f"'{owner}'" for owner in _SUSPENDABLE_OWNERS)
    return _policy(
        "borrow-unsuspendable",
        [("", ("pods",)), *_REPLICATION, *SERVICES],
        ["CREATE"],
        [
            {
                "name": "owned",
                "expression": "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(owner,"
                f" has(owner.controller) && owner.controller && owner.kind in [{owners}])",
            }
        ],
        [
            {
                "expression": "request.kind.kind == 'Pod' && variables.owned",
                "messageExpression": "request.kind.kind + ' in a borrow queue: only what can be suspended borrows;"
                " submit it as a Job, or to the group\\'s own queue'",
                "reason": "Invalid",
            }
        ],
        when=_CREATED,
    )


def _template() -> Manifest:
    """Refuse a pod template that names a borrow queue which its object is not in: Kueue would take each pod by itself.

    Templates of other suspendable kinds are not looked at. A Job that one of them has made is: whether its owner is in
    the queue cannot be told from the Job.
    """
    named, before = (label_of(f"{holder}.spec.template", QUEUE_LABEL) for holder in ("object", "oldObject"))
    own, own_before = (label_of(holder, QUEUE_LABEL) for holder in ("object", "oldObject"))
    remedy = (
        f"(request.kind.kind == 'Job' ? 'write the label {QUEUE_LABEL} on the Job itself, or on what makes it,"
        " and take it out of the pod template'"
        " : 'only what can be suspended borrows; submit it as a Job, or to the group\\'s own queue')"
    )
    return policy(
        "borrow-template",
        [("batch", ("jobs",)), *SERVICES[:1], *_REPLICATION],
        ["CREATE", "UPDATE"],
        [{"name": "queue", "expression": named}],
        [
            {
                "expression": "false",
                "messageExpression": "'pods of this ' + request.kind.kind + ' would enter the borrow queue '"
                f" + variables.queue + ' each by itself: ' + {remedy}",
                "reason": "Invalid",
            }
        ],
        conditions={
            "has-a-template": "has(object.spec.template) && has(object.spec.template.metadata)",
            "names-a-borrow-queue": f"{named}.endsWith('{BORROW_SUFFIX}') && {named} != {own}",
            "not-being-deleted": NOT_DELETING,
            "to-be-judged": f"{_CREATED} || {own} != {own_before} || !has(oldObject.spec.template.metadata)"
            f" || {named} != {before}",
        },
    )


_OBJECT_MAPS: Final = [
    {"name": field, "expression": f"has(object.metadata.{field}) ? object.metadata.{field} : {{}}"}
    for field in ("labels", "annotations")
]
_TEMPLATE_MAPS: Final = [
    {
        "name": f"template{field.title()}",
        "expression": f"has(object.spec.template.metadata) && has(object.spec.template.metadata.{field})"
        f" ? object.spec.template.metadata.{field} : {{}}",
    }
    for field in ("labels", "annotations")
]


def _lookup(field: str, name: str, *, template: bool) -> str:
    """Read a label or annotation: the object's own, else its pod template's, else nothing."""
    below = f"variables.template{field.title()}"
    inner = f"('{name}' in {below} ? {below}['{name}'] : '')" if template else "''"
    return f"'{name}' in variables.{field} ? variables.{field}['{name}'] : {inner}"


def _class_variables(*, template: bool) -> list[Manifest]:
    reads = {
        "type": ("labels", WORKLOAD_TYPE_LABEL),
        "retryable": ("labels", RETRYABLE_LABEL),
        "role": ("labels", CAPACITY_ROLE_LABEL),
        "transport": ("annotations", CHECKPOINT_TRANSPORT_ANNOTATION),
        "storage": ("annotations", CHECKPOINT_STORAGE_ANNOTATION),
        "endpoint": ("annotations", CHECKPOINT_ENDPOINT_ANNOTATION),
    }
    return [
        {"name": name, "expression": _lookup(field, key, template=template)} for name, (field, key) in reads.items()
    ]


_TRANSPORTS: Final = ", ".join(f"'{transport}'" for transport in Transport)
_CHECKPOINTABLE: Final = (
    f"variables.transport in [{_TRANSPORTS}] && variables.storage.contains('://')"
    f" && (variables.transport != '{Transport.EXEC}' || variables.endpoint != '')"
)
_CLASS_VALIDATIONS: Final = [
    {
        "expression": f"variables.type != '{WorkloadType.INFERENCE}' && variables.role == ''",
        "message": "inference and work with a capacity role never borrows, for it is never stopped;"
        " submit it to the group's own queue",
        "reason": "Invalid",
    },
    {
        "expression": f"variables.retryable == 'true' || variables.type == '{WorkloadType.NOTEBOOK}'"
        f" || ({_CHECKPOINTABLE})",
        "message": f"work that borrows says how it can be stopped: label {RETRYABLE_LABEL}=true,"
        f" or annotations {CHECKPOINT_TRANSPORT_ANNOTATION} and {CHECKPOINT_STORAGE_ANNOTATION},"
        f" or label {WORKLOAD_TYPE_LABEL}=notebook; add one, or submit it to the group's own queue",
        "reason": "Invalid",
    },
    {
        "expression": f"!('{MIN_PARALLELISM_ANNOTATION}' in variables.annotations)"
        f" && !('{ELASTIC_JOB_ANNOTATION}' in variables.annotations)",
        "message": "a loan is whole: neither partial nor elastic jobs borrow;"
        f" remove the annotation {MIN_PARALLELISM_ANNOTATION} or {ELASTIC_JOB_ANNOTATION}",
        "reason": "Invalid",
    },
]


def _policy(
    name: str,
    resources: Resources,
    operations: list[str],
    variables: list[Manifest],
    validations: list[Manifest],
    *,
    when: str,
    params: str = "",
) -> Manifest:
    conditions = {"in-a-borrow-queue": _IN_BORROW_QUEUE, "not-being-deleted": NOT_DELETING, "to-be-judged": when}
    return policy(
        name, resources, operations, variables, validations, conditions=conditions, params=params, label=QUEUE_LABEL
    )


def policy(
    name: str,
    resources: Resources,
    operations: list[str],
    variables: list[Manifest],
    validations: list[Manifest],
    *,
    conditions: Mapping[str, str],
    params: str = "",
    label: str = "",
) -> Manifest:
    """Render one policy; `params` is a kind of the bank, every object of which it is judged by.

    With `label` only objects that bear it concern the policy, or bore it before. A condition would not do: an API
    server that does not find the kind of the parameters, as for some seconds after its start or when the bank's kinds
    are deleted before its policies, refuses whatever a policy concerns before it looks at any condition.
    """
    rendered: Manifest = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": f"{name}.{GROUP}"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [group],
                        "apiVersions": ["*"],
                        "operations": operations,
                        "resources": list(plurals),
                    }
                    for group, plurals in resources
                ]
            },
            "matchConditions": [{"name": key, "expression": expression} for key, expression in conditions.items()],
            "variables": variables,
            "validations": validations,
        },
    }
    if label:
        selector = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
        rendered["spec"]["matchConstraints"]["objectSelector"] = selector
    if params:
        version = KINDS[params].model.model_fields["api_version"].default
        rendered["spec"]["paramKind"] = {"apiVersion": version, "kind": params}
    return rendered


def bound(*policies: Manifest) -> list[Manifest]:
    """Put each policy before its binding."""
    return [manifest for each in policies for part in _parts(each) for manifest in (part, _binding(part))]


def _parts(policy: Manifest) -> list[Manifest]:
    """Take a policy on queued work that needs parameters apart: what is new it may refuse unheard, changes it may not.

    Kueue changes the Jobs in its queues itself. While an API server does not know the kind of the parameters, refusals
    would add up to a back-off of minutes for each of them: seen on the lab, a job of which Kueue had admitted the
    Workload did not start for as long as that was looked at, although the API server had been well for three minutes.
    """
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    if "paramKind" not in policy["spec"] or "objectSelector" not in policy["spec"]["matchConstraints"]:
        return [policy]
    if any(rule["operations"] != ["CREATE", "UPDATE"] for rule in rules):
        return [policy]
    new, changed = deepcopy(policy), deepcopy(policy)
    changed["metadata"]["name"] = policy["metadata"]["name"].replace(".", "-changed.", 1)
    changed["spec"]["failurePolicy"] = "Ignore"
    for part, operation in ((new, "CREATE"), (changed, "UPDATE")):
        for rule in part["spec"]["matchConstraints"]["resourceRules"]:
            rule["operations"] = [operation]
    return [new, changed]


def _binding(policy: Manifest) -> Manifest:
    spec: Manifest = {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    if "paramKind" in policy["spec"]:
        # Without any pool there is no queue either, and nothing to judge; without any group no lease is in force.
        spec["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Allow"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": policy["metadata"]["name"]},
        "spec": spec,
    }
