"""Validation offline: each object by its own rules, then all of them against each other.

What the files do not contain is taken to be as the policies in them need it: a group that is named but not there has
their namespaces, a pool that is not there gives every share. So a file of policies alone is judged by itself, and one
with its pool and group is judged as the controller would.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from gpubank.decide.agreement import agree
from gpubank.domain.base import API_VERSION, GROUP, MAX_GPUS
from gpubank.domain.errors import InvalidObjectError, Problem
from gpubank.domain.group import BusinessGroup, BusinessGroupSpec
from gpubank.domain.lease import MAX_LEASE, CapacityLease, term_problem
from gpubank.domain.meta import ObjectMeta, Resource
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool, GPUPoolSpec, Share
from gpubank.domain.refusal import read, shown
from gpubank.schema.kinds import KINDS, Scope
from gpubank.schema.manifest import Document

AnyResource = Resource[Any, Any]
R = TypeVar("R", bound=AnyResource)


class Verdict(StrEnum):
    """What became of an object."""

    OK = "ok"
    REFUSED = "refused"
    SKIPPED = "skipped"
    """No kind of the bank."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One object and what is wrong with it."""

    document: Document
    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    resource: AnyResource | None = field(default=None, compare=False)
    """The object, if it could be read."""

    @property
    def kind(self) -> str:
        """Kind as written; `?` if there is none."""
        kind = self.document.body.get("kind")
        return kind if isinstance(kind, str) and kind else "?"

    @property
    def key(self) -> str:
        """`namespace/name` or `name` as written; `?` if there is none."""
        metadata = self.document.body.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        name, namespace = metadata.get("name"), metadata.get("namespace")
        return f"{namespace}/{name or '?'}" if namespace else str(name or "?")

    def refused(self, *problems: Problem) -> "Finding":
        """Return the finding with more problems; unchanged without any."""
        if not problems:
            return self
        return replace(self, verdict=Verdict.REFUSED, problems=(*self.problems, *problems))


def validate(documents: Iterable[Document], *, now: datetime) -> list[Finding]:
    """Judge objects by themselves and against each other; `now` is what leases without a creation time count from."""
    findings = [_alone(document) for document in documents]
    for judge in (_each_once, _in_namespaces, _agreed):
        findings = judge(findings)
    return _leased(findings, now)


def _alone(document: Document) -> Finding:
    body = document.body
    version, kind = body.get("apiVersion"), body.get("kind")
    missing = tuple(
        Problem(name, "" if value is None else shown(value), "is required, as text", f"write {name}: {example}")
        for name, value, example in (("apiVersion", version, API_VERSION), ("kind", kind, "GPUQuotaPolicy"))
        if not isinstance(value, str) or not value
    )
    if missing:
        return Finding(document, Verdict.REFUSED, missing)
    known = KINDS.get(str(kind))
    if version != API_VERSION:
        if known is None and str(version).partition("/")[0] != GROUP:
            return Finding(document, Verdict.SKIPPED)
        wrong = Problem("apiVersion", shown(version), f"must be {API_VERSION}", f"write {API_VERSION}")
        return Finding(document, Verdict.REFUSED, (wrong,))
    if known is None:
        wrong = Problem("kind", shown(kind), "is no kind of the bank", f"write one of {', '.join(KINDS)}")
        return Finding(document, Verdict.REFUSED, (wrong,))
    try:
        return Finding(document, Verdict.OK, resource=read(known.model, body))
    except InvalidObjectError as error:
        return Finding(document, Verdict.REFUSED, error.problems)


def _each_once(findings: list[Finding]) -> list[Finding]:
    seen: dict[tuple[str, str], Document] = {}
    out = []
    for finding in findings:
        if finding.resource is not None:
            first = seen.setdefault((finding.kind, finding.resource.key), finding.document)
            if first is not finding.document:
                rule = f"the same object stands at {first.source}:{first.line}"
                finding = finding.refused(Problem("metadata.name", shown(finding.resource.name), rule, "remove one"))
        out.append(finding)
    return out


def _in_namespaces(findings: list[Finding]) -> list[Finding]:
    """Refuse a namespace on a kind that has none."""
    return [
        finding.refused(
            Problem(
                "metadata.namespace",
                shown(finding.resource.namespace),
                f"a {finding.kind} stands in no namespace",
                "remove the line",
            )
        )
        if finding.resource is not None and finding.resource.namespace and KINDS[finding.kind].scope is Scope.CLUSTER
        else finding
        for finding in findings
    ]


def _agreed(findings: list[Finding]) -> list[Finding]:
    """Judge pools, groups and policies against each other, the way the controller does."""
    pools, groups, policies = (
        _sound(findings, GPUPool),
        _sound(findings, BusinessGroup),
        _sound(findings, GPUQuotaPolicy),
    )
    placed = [_placed(policy, groups) for policy in policies]
    agreement = agree(
        "local", [*pools, *_assumed_pools(placed, pools)], [*groups, *_assumed_groups(placed, groups)], placed
    )
    keys = {id(policy): there.key for policy, there in zip(policies, placed, strict=True)}
    out = []
    for finding in findings:
        if finding.verdict is Verdict.OK and finding.resource is not None:
            key = keys.get(id(finding.resource), finding.resource.key)
            if (verdict := agreement.verdicts.get((finding.kind, key))) is not None:
                finding = finding.refused(*verdict.problems)
        out.append(finding)
    return out


def _leased(findings: list[Finding], now: datetime) -> list[Finding]:
    limits = {pool.name: pool.spec.limits.max_lease for pool in _sound(findings, GPUPool)}
    out = []
    for finding in findings:
        if finding.verdict is Verdict.OK and isinstance(finding.resource, CapacityLease):
            limit = limits.get(finding.resource.spec.pool or "", MAX_LEASE)
            problem = term_problem(finding.resource, now=now, max_lease=limit)
            finding = finding.refused(problem) if problem else finding
        out.append(finding)
    return out


def _sound(findings: Sequence[Finding], model: type[R]) -> list[R]:
    return [
        finding.resource
        for finding in findings
        if finding.verdict is Verdict.OK and isinstance(finding.resource, model)
    ]


def _placed(policy: GPUQuotaPolicy, groups: Sequence[BusinessGroup]) -> GPUQuotaPolicy:
    """Put a policy that names no namespace where its group may have it: the command line will say."""
    if policy.namespace:
        return policy
    name = policy.spec.business_group
    group = next((group for group in groups if group.name == name), None)
    namespace = group.spec.namespaces[0] if group and group.spec.namespaces else f"of-{name}"[:63].rstrip("-")
    return policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"namespace": namespace})})


def _assumed_groups(policies: Sequence[GPUQuotaPolicy], known: Sequence[BusinessGroup]) -> Iterator[BusinessGroup]:
    there = {group.name for group in known}
    taken = {namespace for group in known for namespace in group.spec.namespaces}
    wanted: dict[str, dict[str, None]] = {}
    for policy in policies:
        if policy.spec.business_group not in there:
            wanted.setdefault(policy.spec.business_group, {})[policy.namespace] = None
    for name, namespaces in wanted.items():
        own = tuple(namespace for namespace in namespaces if namespace not in taken)
        taken |= set(own)
        yield BusinessGroup(metadata=ObjectMeta(name=name), spec=BusinessGroupSpec(owner="elsewhere", namespaces=own))


def _assumed_pools(policies: Sequence[GPUQuotaPolicy], known: Sequence[GPUPool]) -> Iterator[GPUPool]:
    there = {pool.name for pool in known}
    wanted: dict[str, dict[str, None]] = {}
    for policy in policies:
        if policy.spec.resource_pool not in there:
            wanted.setdefault(policy.spec.resource_pool, {})[policy.spec.business_group] = None
    for name, groups in wanted.items():
        shares = tuple(Share(business_group=group, guaranteed=MAX_GPUS) for group in groups)
        yield GPUPool(metadata=ObjectMeta(name=name), spec=GPUPoolSpec(capacity=MAX_GPUS, shares=shares))
