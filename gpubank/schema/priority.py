"""A ValidatingAdmissionPolicy on priorities: work in a pool's queues names only the classes that the pool allows.

Judged when work is made and when it is queued anew or names another class; work that runs is not judged by a list that
was changed since. Naming no class is always allowed. Kueue takes the label `kueue.x-k8s.io/priority-class`, and without
it the pod template's priorityClassName.
"""

from collections.abc import Callable
from typing import Final

from gpubank.domain.base import BORROW_SUFFIX
from gpubank.domain.contract import PRIORITY_CLASS_LABEL, QUEUE_LABEL
from gpubank.schema.admission import (
    NOT_DELETING,
    SERVICES,
    SUSPENDABLE,
    Manifest,
    Resources,
    bound,
    label_of,
    or_empty,
    policy,
)

_ACCOUNT: Final = "system:serviceaccount:kube-system:"
_QUEUED: Final = f"'{QUEUE_LABEL}' in {or_empty('object.metadata.labels')}"

# An owner alone says nothing: anybody may write one into a pod of theirs.
_OWNED: Final = (
    "has(object.metadata.ownerReferences)"
    " && object.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller)"
)
_MAKERS: Final = ("daemon-set-controller", "job-controller", "replicaset-controller", "statefulset-controller")
"""Controllers of Kubernetes that make pods for kinds that are judged themselves, where these are in a queue."""

_BY_A_MAKER: Final = (
    "request.userInfo.username in ["
    + ", ".join(f"'{name}'" for name in ("system:kube-controller-manager", *(f"{_ACCOUNT}{each}" for each in _MAKERS)))
    + "]"
)
"""Who they are to the API server: accounts of their own, or one for all, as the controller manager is started."""


def _template_class(holder: str) -> str:
    """Read priorityClassName of the pod template, where the kind has one; Kueue reads it likewise."""
    spec = f"{holder}.spec.template.spec"
    there = f"has({holder}.spec) && has({holder}.spec.template) && has({spec}) && has({spec}.priorityClassName)"
    return f"({there} ? {spec}.priorityClassName : '')"


def _pod_class(holder: str) -> str:
    return f"(has({holder}.spec.priorityClassName) ? {holder}.spec.priorityClassName : '')"


def priority_policies() -> list[Manifest]:
    """Render the policies and their bindings, each policy before its binding."""
    templated = [("batch", ("jobs",)), *SERVICES]
    return bound(
        _judge("priority-class-jobs", templated, _template_class),
        _judge("priority-class-other-kinds", SUSPENDABLE, None),
        _judge("priority-class-pods", [("", ("pods",))], _pod_class),
    )


def _judge(name: str, resources: Resources, named: Callable[[str], str] | None) -> Manifest:
    """Judge kinds whose priority class stands in the label, or where `named` says."""
    is_pod = named is _pod_class

    def of(holder: str) -> str:
        label = label_of(holder, PRIORITY_CLASS_LABEL)
        return f"({label} != '' ? {label} : {named(holder)})" if named is not None else label

    queue, before = label_of("object", QUEUE_LABEL), label_of("oldObject", QUEUE_LABEL)
    renamed = f"{of('object')} != {of('oldObject')}"
    moved = f"{queue} != {before} || {renamed}"
    # Kueue writes queue and class of a StatefulSet, which was judged, into its pods, and writes the queue anew.
    labelled = f"{label_of('oldObject', PRIORITY_CLASS_LABEL)} != '' && {renamed}"
    anew = f"({before} != '' && ({_OWNED} ? {labelled} : {moved}))" if is_pod else moved
    conditions = {
        "in-a-queue": _QUEUED,
        "not-being-deleted": NOT_DELETING,
        "queued-anew": f"request.operation == 'CREATE' || {anew}",
    }
    if is_pod:
        conditions["not-made-by-kubernetes-for-another"] = (
            f"!(request.operation == 'CREATE' && {_OWNED} && {_BY_A_MAKER})"
        )
    limits = "params.spec.limits.allowedPriorityClasses"
    return policy(
        name,
        resources,
        ["CREATE", "UPDATE"],
        [
            {"name": "queue", "expression": queue},
            {"name": "named", "expression": of("object")},
            {
                "name": "allowed",
                "expression": f"has(params.spec.limits) && has({limits}) ? {limits} : []",
            },
            {
                "name": "concerned",
                "expression": "variables.queue == params.metadata.name"
                f" || variables.queue == params.metadata.name + '{BORROW_SUFFIX}'",
            },
        ],
        [
            {
                "expression": "!variables.concerned || variables.named == '' || size(variables.allowed) == 0"
                " || variables.named in variables.allowed",
                "messageExpression": "'priority class ' + variables.named + ' is none that pool '"
                " + params.metadata.name + ' allows (' + variables.allowed.join(', ') + '); name one of them, or none'",
                "reason": "Forbidden",
            }
        ],
        conditions=conditions,
        params="GPUPool",
        label=QUEUE_LABEL,
    )
