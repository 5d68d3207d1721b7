"""Who may approve a CapacityLease, as ValidatingAdmissionPolicies and the role that goes with them.

    lease-approval     whoever changes an approval has the verb `approve`, and signs with its own name
    lease-four-eyes    whoever gives one is none of the group whose namespace the lease stands in

Conditions stand in the status, which groups have no right to write; the policies hold even where one was given it. The
API server does it by itself, so that it holds while the bank is down.
"""

from typing import Final

from gpubank.domain.base import GROUP
from gpubank.domain.conditions import APPROVED
from gpubank.domain.contract import MANAGED_BY
from gpubank.schema.admission import NOT_DELETING, Manifest, bound, policy

APPROVER_ROLE: Final = "gpubank-lease-approver"
"""ClusterRole of whoever approves leases; bound to people of the platform, never to a group's."""

APPROVE: Final = "approve"
"""Verb on capacityleases that no API call has: RBAC only says who may approve."""

_RESOURCES: Final = [(GROUP, ("capacityleases/status",))]


def lease_policies() -> list[Manifest]:
    """Render the policies and their bindings, and the role of approvers."""
    return [*bound(_signed(), _four_eyes()), _approver()]


def _said(holder: str) -> str:
    """What an object says of its approval: nothing, or the condition's status and generation."""
    there = f"has({holder}.status) && has({holder}.status.conditions)"
    generation = "(has(c.observedGeneration) ? c.observedGeneration : 0)"
    found = f"{holder}.status.conditions.filter(c, c.type == '{APPROVED}')"
    return f"({there} ? {found}.map(c, c.status + '/' + string({generation})) : [])"


def _field(holder: str, name: str) -> str:
    return f"(has({holder}.status) && has({holder}.status.{name}) ? {holder}.status.{name} : '')"


# Not the whole condition: whoever writes another one writes this one anew, in the bank's own spelling.
_CHANGED: Final = " || ".join(
    f"{read('object')} != {read('oldObject')}"
    for read in (_said, lambda holder: _field(holder, "approvedBy"), lambda holder: _field(holder, "revokedBy"))
)
_APPROVED: Final = f"{_said('object')}.exists(c, c.startsWith('True/'))"


def _signed() -> Manifest:
    may = (
        f"authorizer.group('{GROUP}').resource('capacityleases').namespace(request.namespace).name(request.name)"
        f".check('{APPROVE}').allowed()"
    )
    return policy(
        "lease-approval",
        _RESOURCES,
        ["UPDATE"],
        [
            {"name": "said", "expression": _said("object")},
            {
                "name": "signed",
                "expression": f"{_APPROVED} ? {_field('object', 'approvedBy')} : {_field('object', 'revokedBy')}",
            },
        ],
        [
            {
                "expression": may,
                "messageExpression": "request.userInfo.username + ' may not approve leases, nor take an approval back:"
                f" it takes the verb {APPROVE} on capacityleases (ClusterRole {APPROVER_ROLE}); ask the platform team'",
                "reason": "Forbidden",
            },
            {
                "expression": "variables.signed == request.userInfo.username",
                "messageExpression": "'an approval is signed by whoever gives it, and a revocation by whoever takes it"
                " back: write ' + request.userInfo.username + ' in status.approvedBy or status.revokedBy'",
                "reason": "Forbidden",
            },
            {
                "expression": "variables.said.all(c, c.endsWith('/' + string(object.metadata.generation)))",
                "message": "an approval is of the spec as it stands: write metadata.generation in the condition's"
                " observedGeneration; read the lease again, for it may have been edited",
                "reason": "Invalid",
            },
        ],
        conditions={"not-being-deleted": NOT_DELETING, "changes-an-approval": _CHANGED},
    )


def _four_eyes() -> Manifest:
    name = "request.userInfo.username"
    groups = "(has(request.userInfo.groups) ? request.userInfo.groups : [])"
    admins = f"(has(params.spec.admins) && {name} in params.spec.admins)"
    subjects = (
        "(has(params.spec.subjects) && params.spec.subjects.exists(s, s.kind == 'Group'"
        f" ? s.name in {groups} : s.name == {name}))"
    )
    own = "(has(params.spec.namespaces) && object.metadata.namespace in params.spec.namespaces)"
    return policy(
        "lease-four-eyes",
        _RESOURCES,
        ["UPDATE"],
        [
            {"name": "own", "expression": own},
            {"name": "member", "expression": f"params.spec.owner == {name} || {admins} || {subjects}"},
        ],
        [
            {
                "expression": "!(variables.own && variables.member)",
                "messageExpression": f"{name} + ' is of business group ' + params.metadata.name + ', and no group"
                " approves its own lease; ask the platform team'",
                "reason": "Forbidden",
            }
        ],
        conditions={
            "not-being-deleted": NOT_DELETING,
            "approves": f"({_CHANGED}) && {_APPROVED}",
        },
        params="BusinessGroup",
    )


def _approver() -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": APPROVER_ROLE, "labels": {"app.kubernetes.io/part-of": MANAGED_BY}},
        "rules": [
            {"apiGroups": [GROUP], "resources": ["capacityleases"], "verbs": ["get", "list", "watch", APPROVE]},
            {"apiGroups": [GROUP], "resources": ["capacityleases/status"], "verbs": ["update", "patch"]},
            {
                "apiGroups": [GROUP],
                "resources": ["gpupools", "businessgroups", "gpuquotapolicies"],
                "verbs": ["get", "list"],
            },
        ],
    }
