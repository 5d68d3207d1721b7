"""Typed access to the bank's workflows: signals of the controller and of Reclaims, and what people ask and decide.

Every signal is a signal-with-start, for its receiver may not run; ids make it one workflow per Workload and one per
lender. Errors come back in the bank's own words, never as Temporal's.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client, TLSConfig, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from activities.interfaces import BANK_QUEUE
from gpubank.converter import DATA_CONVERTER
from gpubank.decide.step import LoanSignal, SignalKind
from gpubank.domain.base import Message
from gpubank.domain.errors import BackendError
from gpubank.domain.recall import (
    Decision,
    Ended,
    Extension,
    Granted,
    LoanInput,
    LoanPhase,
    LoanState,
    Needs,
    Offered,
    ReclaimInput,
    ReclaimPhase,
    ReclaimState,
    loan_id,
    reclaim_id,
)
from gpubank.domain.steps import LoanOrder
from gpubank.incidents import IncidentRow as IncidentRow
from gpubank.incidents import Incidents
from gpubank.settings import TemporalSettings
from gpubank.upkeep import CALL_TIMEOUT as CALL_TIMEOUT
from gpubank.upkeep import NoSuchProcessError as NoSuchProcessError
from gpubank.upkeep import in_words
from workflows import attributes
from workflows.details import loan_summary, reclaim_summary
from workflows.loan import LoanWorkflow
from workflows.reclaim import ReclaimWorkflow

log = logging.getLogger(__name__)

REFUSED: Final = frozenset({RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED})
"""How a server says that a call is not for this caller, or for none, as a managed one does of adding attributes."""

ATTRIBUTES: Final = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in attributes.ALL}
"""Search attributes that a namespace must know, with their types."""

ADMIN_ADDS: Final = "have the namespace's admin add them"
ADMIN_REPLACES: Final = "have the namespace's admin remove them and add them anew"


class LoanRow(Message):
    """One Loan in a list, from its search attributes."""

    loan: str
    running: bool
    phase: LoanPhase
    cluster: str = ""
    pool: str = ""
    borrower: str = ""
    workload: str = ""
    """`namespace/name` of the job."""

    gpus: int = 0
    lenders: tuple[str, ...] = ()
    wanted_by: str = ""
    """Group that wants the GPUs back; empty while nobody does."""

    due_at: datetime | None = None
    started_at: datetime


class ReclaimRow(Message):
    """One Reclaim in a list, from its search attributes."""

    reclaim: str
    running: bool
    phase: ReclaimPhase
    cluster: str = ""
    pool: str = ""
    lender: str = ""
    gpus: int = 0
    needs_approval: bool = False
    due_at: datetime | None = None
    started_at: datetime
    ended_at: datetime | None = None


class BankClient(Incidents):
    """The bank's workflows of one Temporal namespace; also the controller's `Processes` and the Loans' dispatch."""

    @classmethod
    async def connect(cls, settings: TemporalSettings, runtime: Runtime | None = None) -> "BankClient":
        """Connect as the settings say; raise `BackendError` where the server does not answer."""
        try:
            temporal = await Client.connect(
                settings.address,
                namespace=settings.namespace,
                data_converter=DATA_CONVERTER,
                api_key=settings.api_key.get_secret_value() if settings.api_key is not None else None,
                tls=_tls(settings),
                runtime=runtime,
            )
        except (RuntimeError, RPCError) as error:
            raise BackendError(
                f"Temporal at {settings.address!r} does not answer: start it, or set temporal.address ({error})"
            ) from error
        return cls(temporal)

    async def register_search_attributes(self) -> None:
        """Make the namespace know every search attribute of the bank; what it knows already stays.

        Where they may not be added, its admin has to: `BackendError` names those that are missing. Where they
        may not be listed either, a warning names all, for nothing tells whether one is missing.
        """
        request = AddSearchAttributesRequest(namespace=self.temporal.namespace, search_attributes=ATTRIBUTES)
        with in_words("search attributes"):
            try:
                await self.temporal.operator_service.add_search_attributes(request, timeout=CALL_TIMEOUT)
            except RPCError as error:
                if error.status in REFUSED:
                    await self._check_search_attributes(error)
                elif error.status is not RPCStatusCode.ALREADY_EXISTS:
                    raise

    async def _check_search_attributes(self, refusal: RPCError) -> None:
        namespace = self.temporal.namespace
        request = ListSearchAttributesRequest(namespace=namespace)
        try:
            answer = await self.temporal.operator_service.list_search_attributes(request, timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status not in REFUSED:
                raise
            log.warning(
                "search attributes of namespace %r may be neither added nor listed (%s): workflows fail to start where"
                " one is missing; see that its admin has added %s",
                namespace,
                error.message,
                ", ".join(map(typed, ATTRIBUTES)),
            )
            return
        missing, other = lacking(answer.custom_attributes)
        facts = [f"are missing: {', '.join(missing)}; {ADMIN_ADDS}"] if missing else []
        facts += [f"are of another type than {', '.join(other)}; {ADMIN_REPLACES}"] if other else []
        if facts:
            raise BackendError(
                f"search attributes of namespace {namespace!r}, which this program may not add ({refusal.message}),"
                f" {'; others '.join(facts)}"
            ) from refusal

    async def stuck(self) -> int:
        """Count running workflows of the namespace whose tasks fail again and again, as the server has found."""
        with in_words("count of stuck workflows"):
            found = await self.temporal.count_workflows(
                "TemporalReportedProblems IS NOT NULL AND ExecutionStatus = 'Running'", rpc_timeout=CALL_TIMEOUT
            )
        return found.count

    # ---- signals of machines

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        """Tell the Loan of a borrow Workload what the controller did or saw."""
        start = LoanInput(
            cluster=cluster, pool=pool, borrower=signal.borrower, workload=signal.workload, gpus=signal.gpus
        )
        if signal.kind is SignalKind.ENDED and not signal.lenders:
            await self._tell_loan(start, *_news(signal))
        else:
            await self._signal_loan(start, *_news(signal))

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        """Tell a lender's Reclaim which demands are open."""
        start = ReclaimInput(cluster=cluster, pool=pool, lender=lender)
        workflow_id = reclaim_id(cluster, pool, lender)
        with in_words(f"reclaim {workflow_id!r}"):
            await self.temporal.start_workflow(
                ReclaimWorkflow.run,
                start,
                id=workflow_id,
                task_queue=BANK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal="needs",
                start_signal_args=[Needs(demands=tuple(demands), at=at)],
                static_summary=reclaim_summary(start),
                rpc_timeout=CALL_TIMEOUT,
            )

    async def order(self, order: LoanOrder) -> None:
        """Hand a Reclaim's order to its Loan."""
        for name, message in (("recall", order.recall), ("stop", order.stop), ("release", order.release)):
            if message is not None:
                await self._signal_loan(order.start, name, message)

    async def _tell_loan(self, start: LoanInput, name: str, message: Message) -> None:
        """Signal a Loan that runs: one that was started to hear of an end would hide what the ended one remembers."""
        workflow_id = loan_id(start.cluster, start.workload.uid)
        with suppress(NoSuchProcessError), in_words(f"loan {workflow_id!r}"):
            await self.temporal.get_workflow_handle(workflow_id).signal(name, message, rpc_timeout=CALL_TIMEOUT)

    async def _signal_loan(self, start: LoanInput, name: str, message: Message) -> None:
        workflow_id = loan_id(start.cluster, start.workload.uid)
        with in_words(f"loan {workflow_id!r}"):
            await self.temporal.start_workflow(
                LoanWorkflow.run,
                start,
                id=workflow_id,
                task_queue=BANK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal=name,
                start_signal_args=[message],
                static_summary=loan_summary(start),
                rpc_timeout=CALL_TIMEOUT,
            )

    # ---- what people decide

    async def extend(self, loan: str, extension: Extension) -> LoanState:
        """Give a recalled job more time; raise `PolicyError` where the pool or the phase forbids it."""
        with in_words(f"loan {loan!r}"):
            handle = self.temporal.get_workflow_handle(loan)
            return await handle.execute_update(LoanWorkflow.extend, extension, rpc_timeout=CALL_TIMEOUT)

    async def return_now(self, loan: str, decision: Decision) -> LoanState:
        """Have a job saved, stopped and its GPUs returned; raise `PolicyError` unless it runs."""
        with in_words(f"loan {loan!r}"):
            term = (await self.loan_state(loan)).term
            handle = self.temporal.get_workflow_handle(loan)
            word = decision.model_copy(update={"term": term})
            return await handle.execute_update(LoanWorkflow.return_now, word, rpc_timeout=CALL_TIMEOUT)

    async def approve(self, reclaim: str, decision: Decision) -> ReclaimState:
        """Approve what a recall would take; raise `PolicyError` unless it waits for approval."""
        with in_words(f"reclaim {reclaim!r}"):
            handle = self.temporal.get_workflow_handle(reclaim)
            return await handle.execute_update(ReclaimWorkflow.approve, decision, rpc_timeout=CALL_TIMEOUT)

    async def deny(self, reclaim: str, decision: Decision) -> ReclaimState:
        """Deny what a recall would take; raise `PolicyError` unless it waits for approval."""
        with in_words(f"reclaim {reclaim!r}"):
            handle = self.temporal.get_workflow_handle(reclaim)
            return await handle.execute_update(ReclaimWorkflow.deny, decision, rpc_timeout=CALL_TIMEOUT)

    # ---- what people ask

    async def loan_state(self, loan: str) -> LoanState:
        """Return a Loan as it stands, or stood at its end; every term included."""
        with in_words(f"loan {loan!r}"):
            handle = self.temporal.get_workflow_handle(loan)
            return await handle.query(LoanWorkflow.read_state, rpc_timeout=CALL_TIMEOUT)

    async def reclaim_state(self, reclaim: str) -> ReclaimState:
        """Return a Reclaim as it stands, or stood at its end."""
        with in_words(f"reclaim {reclaim!r}"):
            handle = self.temporal.get_workflow_handle(reclaim)
            return await handle.query(ReclaimWorkflow.read_state, rpc_timeout=CALL_TIMEOUT)

    async def loans(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        borrower: str | None = None,
        phase: LoanPhase | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> list[LoanRow]:
        """List Loans, newest first; the list may lag a second behind."""
        wanted = {
            attributes.CLUSTER.name: cluster,
            attributes.POOL.name: pool,
            attributes.BORROWER.name: borrower,
            attributes.PHASE.name: phase,
        }
        return [
            LoanRow(
                loan=found.id,
                running=found.status is WorkflowExecutionStatus.RUNNING,
                phase=LoanPhase(found.typed_search_attributes.get(attributes.PHASE, LoanPhase.ACTIVE)),
                cluster=found.typed_search_attributes.get(attributes.CLUSTER, ""),
                pool=found.typed_search_attributes.get(attributes.POOL, ""),
                borrower=found.typed_search_attributes.get(attributes.BORROWER, ""),
                workload=found.typed_search_attributes.get(attributes.WORKLOAD, ""),
                gpus=found.typed_search_attributes.get(attributes.GPUS, 0),
                lenders=tuple(found.typed_search_attributes.get(attributes.LENDERS, ())),
                wanted_by=found.typed_search_attributes.get(attributes.GROUP, ""),
                due_at=found.typed_search_attributes.get(attributes.DUE_AT),
                started_at=found.start_time,
            )
            async for found in self._find("Loan", wanted, "loans", running_only=running_only, limit=limit)
        ]

    async def reclaims(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        lender: str | None = None,
        phase: ReclaimPhase | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> list[ReclaimRow]:
        """List Reclaims, newest first; the list may lag a second behind."""
        wanted = {
            attributes.CLUSTER.name: cluster,
            attributes.POOL.name: pool,
            attributes.GROUP.name: lender,
            attributes.PHASE.name: phase,
        }
        return [
            ReclaimRow(
                reclaim=found.id,
                running=found.status is WorkflowExecutionStatus.RUNNING,
                phase=ReclaimPhase(found.typed_search_attributes.get(attributes.PHASE, ReclaimPhase.PLANNING)),
                cluster=found.typed_search_attributes.get(attributes.CLUSTER, ""),
                pool=found.typed_search_attributes.get(attributes.POOL, ""),
                lender=found.typed_search_attributes.get(attributes.GROUP, ""),
                gpus=found.typed_search_attributes.get(attributes.GPUS, 0),
                needs_approval=found.typed_search_attributes.get(attributes.NEEDS_APPROVAL, False),
                due_at=found.typed_search_attributes.get(attributes.DUE_AT),
                started_at=found.start_time,
                ended_at=found.close_time,
            )
            async for found in self._find("Reclaim", wanted, "reclaims", running_only=running_only, limit=limit)
        ]


def lacking(known: Mapping[str, IndexedValueType.ValueType]) -> tuple[list[str], list[str]]:
    """Return the bank's search attributes that a namespace does not know, and those that it knows of another type."""
    missing = [typed(name) for name in ATTRIBUTES if name not in known]
    other = [typed(name) for name, kind in ATTRIBUTES.items() if name in known and known[name] != kind]
    return missing, other


def typed(name: str) -> str:
    """Return a search attribute with the type that it must have, as Temporal's command line calls it."""
    return f"{name} ({attributes.KINDS[name]})"


def _news(signal: LoanSignal) -> tuple[str, Message]:
    """Put what the controller says into the Loan's words."""
    if signal.kind is SignalKind.GRANTED:
        return "granted", Granted(term=signal.term, gpus=signal.gpus, lenders=signal.lenders, at=signal.at)
    if signal.kind is SignalKind.OFFERED:
        return "offered", Offered(term=signal.term, gpus=signal.gpus, own=signal.own)
    return "ended", Ended(at=signal.at)


def _tls(settings: TemporalSettings) -> TLSConfig | bool:
    parts = settings.tls_parts()
    return TLSConfig(**parts) if parts is not None else False
