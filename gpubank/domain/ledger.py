"""Ledger entries: postings that balance, and an audit trail that shows whether it was touched."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from pydantic import AwareDatetime, Field

from gpubank.domain.base import Message, PositiveGpuCount
from gpubank.domain.loan import WorkloadKey

GENESIS: Final = "0" * 64
"""What the first link of the hash chain points to."""


class Span(Message):
    """A stretch of a line's life in which lender, borrower, size and Workload stay the same; what is billed.

    A line's spans are numbered from 1, leave no gap and never overlap; the first begins when the line is granted,
    the last ends when it is returned.
    """

    cluster: str
    pool: str
    line_id: str
    ordinal: int
    lender: str
    borrower: str
    gpus: PositiveGpuCount
    workload: WorkloadKey
    term: int
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None


class Posting(Message):
    """Half of an entry: GPU-milliseconds that an account owes (positive) or is owed (negative)."""

    entry: str
    """`<line id>/<span>/<UTC hour>`; the two halves of an entry share it, a reversal appends `/reversal`."""

    account: str
    """A business group, or the pool's surplus."""

    cluster: str
    pool: str
    line_id: str
    gpu_ms: int
    hour: AwareDatetime
    """Start of the UTC hour that it belongs to."""

    posted_at: AwareDatetime


class AuditEvent(Message):
    """One link of the audit chain."""

    sequence: int
    at: AwareDatetime
    actor: str
    subject: str
    """Line, demand, pool or workflow that it is about."""

    action: str
    detail: dict[str, Any] = Field(default_factory=dict)
    previous: str
    digest: str


def audit_digest(
    previous: str, *, sequence: int, at: str, actor: str, subject: str, action: str, detail: Mapping[str, Any]
) -> str:
    """SHA-256 over the canonical JSON of a link and of the digest before it."""
    body = json.dumps(
        [previous, sequence, at, actor, subject, action, detail],
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return hashlib.sha256(body.encode()).hexdigest()


class Balance(Message):
    """What one account has borrowed and lent in one pool, as far as it is posted; GPU-milliseconds."""

    cluster: str
    pool: str
    account: str
    borrowed_gpu_ms: int
    lent_gpu_ms: int


def imbalance(postings: Iterable[Posting]) -> int:
    """Sum of all postings in GPU-milliseconds; anything but 0 is an error in the books."""
    return sum(posting.gpu_ms for posting in postings)


class WorkloadUse(Message):
    """Time that a Workload really held GPUs, from Admitted to its last pod gone; kept beside the lines."""

    workload: WorkloadKey
    cluster: str
    pool: str
    group: str
    gpus: int
    term: int
    admitted_at: AwareDatetime
    gone_at: AwareDatetime | None = None


class OrgUnit(Message):
    """Where a business group stood in the organisation, and since when the bank knows it.

    Rows are only added: a later row overrides an earlier one where their validity overlaps, so that both "who paid
    then" and "what did we believe then" have one answer.
    """

    business_group: str
    cost_center: str
    department: str
    valid_from: AwareDatetime
    valid_to: AwareDatetime | None = None
    """First moment at which it is no longer so; None while it goes on."""

    recorded_at: AwareDatetime


class FindingKind(StrEnum):
    """What a check of the ledger can find."""

    UNBALANCED = "Unbalanced"
    BROKEN_CHAIN = "BrokenChain"
    MISSING_POSTING = "MissingPosting"
    WRONG_AMOUNT = "WrongAmount"
    ORPHAN_POSTING = "OrphanPosting"
    ALTERED_ROW = "AlteredRow"
    """A row is not what the audit chain says was written."""


class Finding(Message):
    """The first bad row of one kind."""

    kind: FindingKind
    row: str
    """Where: table and key."""

    message: str


class VerifyReport(Message):
    """What a check of the whole ledger found."""

    postings: int
    lines: int
    audit_events: int
    head: str
    """Digest of the last link of the audit chain."""

    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings
