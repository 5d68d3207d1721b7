"""What the bank needs from the outside, in its own words. One contract suite per port, run on every adapter."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpubank.decide.attest import Escape
from gpubank.decide.step import LoanSignal
from gpubank.domain.books import Books
from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointRequest, CheckpointTarget, FileFact
from gpubank.domain.contract import Side
from gpubank.domain.facts import Mark, PoolFacts
from gpubank.domain.failsafe import Beat, CohortFacts, CohortQueue
from gpubank.domain.incidentsteps import Receipt, Ticket
from gpubank.domain.layout import LayoutProblem, LayoutReport, PoolLayout
from gpubank.domain.ledger import AuditEvent, Posting, VerifyReport, WorkloadUse
from gpubank.domain.loan import Line, WorkloadKey
from gpubank.domain.servicing import CordonMark, Evicted, NodePod, NodeView, Uncordoned
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Transaction


class QuotaBackend(Protocol):
    """A scheduler that admits work against queues with an integer quota (Kueue, Volcano, the simulation)."""

    async def lay_out(self, layout: PoolLayout) -> LayoutReport:
        """Create or repair flavor and queues; never touch a quota that stands, or an object that is not the bank's."""
        ...

    async def remove(self, pool: str) -> LayoutReport:
        """Remove what the bank made for the pool; objects of others stay."""
        ...

    async def check_settings(self) -> Sequence[LayoutProblem]:
        """Name every setting of the scheduler that is not as explicit loans need it."""
        ...

    async def observe(self, pool: str) -> PoolFacts:
        """Return the facts of one pool; raise `BackendError` where they cannot be had."""
        ...

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Set one queue's quota and stamp it with the ledger revision that it was compiled from.

        Writing what stands already is success. Raises `ConflictError` where the queue bears a higher stamp, was
        changed since it was read, or the fail-safe holds.
        """
        ...

    async def take_back(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Take one queue out of the fail-safe's Cohort, with its quota and stamp in the same write.

        One that stands in no Cohort is written as by `write_quota`. Raises `ConflictError` while an epoch stands, and
        where the queue was changed since it was read.
        """
        ...

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Deactivate a Workload and mark it, in one write against the version `seen`; `ConflictError` if it moved on.

        A Workload that bears the same mark already is success; one that is gone is success.
        """
        ...

    async def resume(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Reactivate a Workload, as `stop` deactivates it; only one that bears a stop mark of this Loan."""
        ...

    async def nudge(self, pool: str, workload: WorkloadKey) -> None:
        """Have a waiting Workload considered at once, ahead of the scheduler's own batch; best effort."""
        ...

    async def recount(self, pool: str, group: str, kind: Side) -> None:
        """Have what a queue has reserved counted at once, where the scheduler counts later by itself; best effort."""
        ...

    def changes(self, pool: str, about: WorkloadKey | None = None) -> AsyncGenerator[None, None]:
        """Yield whenever the pool's facts may have changed, and once at the start; bursts may be folded.

        With `about` whoever asks wants to hear only what may concern that Workload, its pods or its queue; more is
        told where it is not worth telling apart.
        """
        ...


class LedgerStore(Protocol):
    """The books (SQL), written by transactions that are applied by `Books.applied` under the pool's lock."""

    async def books(self, cluster: str, pool: str) -> Books:
        """Return the open books of a pool; empty books where it has none."""
        ...

    async def commit(self, transaction: Transaction) -> Books:
        """Write one transaction, or nothing; return the books after it.

        A key that was committed before is success and writes nothing. Raises `ConflictError` and `LedgerError` as
        `Books.applied` does.
        """
        ...

    async def commit_all(self, transactions: Sequence[Transaction]) -> Sequence[Books]:
        """Write transactions of one pool in order; return the books after each that stands, the first at least.

        Fewer than were given stand where one of them is refused, or where they are many: those before it are written,
        and nothing of the others. Raises what `commit` does where the first is refused.
        """
        ...

    async def beat(self, cluster: str, pool: str) -> None:
        """Commit one write that changes nothing; raise `BackendError` where the ledger takes none."""
        ...

    async def pools(self) -> Sequence[tuple[str, str]]:
        """Every (cluster, pool) that has books."""
        ...

    async def lines(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        group: str | None = None,
        workload_uid: str | None = None,
        open_only: bool = False,
        limit: int = 1000,
    ) -> Sequence[Line]:
        """Lines, newest first, ended ones included."""
        ...

    async def use(self, use: WorkloadUse) -> None:
        """Record when a Workload's term was admitted and when its pods were gone; repeated calls only add."""
        ...

    async def note(
        self, *, key: str, at: datetime, actor: str, subject: str, action: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Append one audit event, once per key."""
        ...

    async def post(self, *, until: datetime) -> int:
        """Post every hour (and every ended line's last part) up to `until` that is not posted yet; return how many."""
        ...

    async def postings(
        self, *, cluster: str | None = None, pool: str | None = None, account: str | None = None, limit: int = 1000
    ) -> Sequence[Posting]:
        """Postings, newest first."""
        ...

    async def audit(self, *, subject: str | None = None, limit: int = 1000) -> Sequence[AuditEvent]:
        """Audit events, newest first."""
        ...

    async def verify(self) -> VerifyReport:
        """Check balance, amounts and hash chain; name the first bad row of each kind."""
        ...


class Processes(Protocol):
    """The long processes (Temporal). Every call is a signal that starts what does not run yet, and is idempotent."""

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        """Tell the Loan of a borrow Workload what the controller did or saw."""
        ...

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        """Tell a lender's Reclaim which demands are open."""
        ...


class Leases(Protocol):
    """Signs of life that others watch (Leases in the bank's own namespace)."""

    async def read(self, name: str) -> Beat | None:
        """Return the Lease as it stands, or None while it is missing."""
        ...

    async def renew(
        self, name: str, *, holder: str, duration: timedelta, promises: Mapping[str, int] | None = None
    ) -> None:
        """Renew the Lease, whoever held it before, and create it where it is missing."""
        ...


class Heartbeats(Protocol):
    """The heartbeats of pools, and the sweeps of a cluster (Temporal); every call is idempotent."""

    async def start_sweeps(self, cluster: str) -> None:
        """Have the cluster swept on a Schedule, unless it is."""
        ...

    async def start_heartbeat(self, cluster: str, pool: str) -> None:
        """Start the pool's heartbeat, unless it runs."""
        ...

    async def end_heartbeat(self, cluster: str, pool: str) -> None:
        """End it, as when the pool is removed."""
        ...


class FailSafeBackend(Protocol):
    """The watchdog's hand at a scheduler: Cohorts and queues, and nothing else.

    Every write is a compare-and-set on what was seen and raises `ConflictError` where that has changed.
    """

    async def observe(self, pool: str) -> CohortFacts:
        """Return the pool's Cohort and its queues as they stand in the store."""
        ...

    async def begin(self, pool: str, epoch: int, *, at: datetime, seen: str) -> None:
        """Write the epoch on the Cohort and take its own quota off it; `seen` is empty where there is no Cohort."""
        ...

    async def enter(
        self, pool: str, queue: CohortQueue, *, nominal: int, borrowing_limit: int, reclaims: bool, epoch: int
    ) -> None:
        """Put one queue into the Cohort, for the epoch."""
        ...

    async def lend(self, pool: str, surplus: int, *, seen: str) -> None:
        """Set the Cohort's own quota."""
        ...

    async def end(self, pool: str, epoch: int, *, seen: str) -> None:
        """Clear the epoch; what stands in the Cohort stays there until the bank takes it back."""
        ...


class Nodes(Protocol):
    """Nodes that incidents take out of service; what a person has cordoned stays cordoned."""

    async def view(self, name: str) -> NodeView | None:
        """Return one node as it stands in the store; None where there is none."""
        ...

    async def of_pool(self, pool: str) -> Sequence[NodeView]:
        """Every node of a pool, by name."""
        ...

    async def cordon(self, name: str, mark: CordonMark) -> None:
        """Put an incident's mark on a node, and close it in the same write if the mark is about the whole node.

        A node that bears this very mark with this scope already is left as it is: who opened it meanwhile had a reason.
        A mark of an earlier incident of the same GPU, which began at another time, is none.

        Raises `ConflictError` where the node was changed since it was read, `PolicyError` where it is gone.
        """
        ...

    async def uncordon(self, name: str, incident: str) -> Uncordoned:
        """Take an incident's mark off a node, and open it if it was the bank that closed it and nobody else's mark is
        left; success where there is nothing to do. Raises `ConflictError`.
        """
        ...

    async def pods(self, name: str) -> Sequence[NodePod]:
        """Every pod on a node that has not finished."""
        ...

    async def evict(self, pod: NodePod) -> Evicted:
        """Ask for the eviction of this very pod, within its disruption budgets."""
        ...


class Tickets(Protocol):
    """Tells whoever repairs."""

    async def send(self, ticket: Ticket) -> Receipt:
        """Send one event, once per id for a receiver that remembers ids.

        Raises `BackendError` where trying again may help; a refusal is a receipt that says so.
        """
        ...


class TermsSource(Protocol):
    """The terms in force."""

    async def terms(self, pool: str) -> PoolTerms | None:
        """Return the pool's terms as they are now; None where there is no such pool."""
        ...


class Notifier(Protocol):
    """Tells people, once per key."""

    async def notify(self, *, key: str, pool: str, workload: WorkloadKey, reason: str, message: str) -> None:
        """Tell the owner of a Workload; on a cluster an Event on the Workload and its job."""
        ...


class ObjectStore(Protocol):
    """Where the bank's API objects live: the API server, or the embedded mode's memory."""

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of one of the bank's kinds, as on the wire, in all namespaces."""
        ...

    async def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None."""
        ...

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create the object or replace its spec, labels and annotations; `InvalidObjectError` where it is refused."""
        ...

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        """Ask for deletion; False when there was nothing. Finalizers are honoured."""
        ...

    async def patch_status(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        status: Mapping[str, Any],
        *,
        seen: str,
        dry_run: bool = False,
    ) -> None:
        """Replace the status; `ConflictError` if the object moved on since version `seen`.

        With `dry_run` everything is checked as for a write, and nothing is kept.
        """
        ...

    async def set_finalizer(self, kind: str, name: str, namespace: str | None, *, held: bool) -> None:
        """Hold or release the bank's finalizer."""
        ...

    async def event(self, body: Mapping[str, Any], *, reason: str, message: str, warning: bool = False) -> None:
        """Record an Event on an object."""
        ...

    def changes(self) -> AsyncIterator[None]:
        """Yield whenever any of the bank's objects may have changed, and once at the start."""
        ...


# ------------------------------------------------------------------------------------------------ checkpoints


class CheckpointHook(Protocol):
    """Asks a training run to save, over one of the transports of the workload contract.

    What comes back is a claim; `gpubank.decide.attest` says whether it is believed.
    """

    async def request(self, target: CheckpointTarget, request: CheckpointRequest) -> CheckpointAnswer:
        """Ask, once per `request.id`, and return how far it is; asking again returns the same record.

        A `failed` answer means that asking again cannot help. Raises `BackendError` where it may.
        """
        ...

    async def answer(self, target: CheckpointTarget, request_id: str) -> CheckpointAnswer | None:
        """Return how far a request is; None where it is unknown, as after a restart of the trainer: ask again."""
        ...


class CheckpointStorage(Protocol):
    """Reads checkpoints where they lie; every path is kept below `prefix`, links included."""

    async def read_manifest(self, uri: str, *, prefix: str, max_bytes: int) -> bytes | Escape | None:
        """Return what lies at `uri`, or its first `max_bytes` + 1 bytes; None if nothing does.

        Raises `BackendError` where the storage does not answer.
        """
        ...

    async def look_at(self, uris: Sequence[str], *, prefix: str, hashes: bool) -> Sequence[FileFact | Escape | None]:
        """Return size, and with `hashes` the sha256, of every file in order; None for one that is not there.

        Raises `BackendError` where the storage does not answer.
        """
        ...
