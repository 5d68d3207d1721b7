"""Search attributes: `GpuBank` and a noun, singular; one registry, registered from here.

Temporal's SQL visibility holds at most ten Keywords, and three of every other type, in one namespace.
"""

from typing import Any, Final

from temporalio.common import SearchAttributeKey

from gpubank.domain.loan import WorkloadKey

PHASE: Final = SearchAttributeKey.for_keyword("GpuBankPhase")
POOL: Final = SearchAttributeKey.for_keyword("GpuBankPool")
BORROWER: Final = SearchAttributeKey.for_keyword("GpuBankBorrower")
GROUP: Final = SearchAttributeKey.for_keyword("GpuBankGroup")
"""Group that waits for its GPUs, or whose policy the workflow follows."""
POLICY: Final = SearchAttributeKey.for_keyword("GpuBankPolicy")
WORKLOAD: Final = SearchAttributeKey.for_keyword("GpuBankWorkload")
"""`namespace/name` of the job, or of the Workload where its job is not known."""
NODE: Final = SearchAttributeKey.for_keyword("GpuBankNode")
CLUSTER: Final = SearchAttributeKey.for_keyword("GpuBankCluster")
REASON: Final = SearchAttributeKey.for_keyword("GpuBankReason")
LENDERS: Final = SearchAttributeKey.for_keyword_list("GpuBankLenders")
GPUS: Final = SearchAttributeKey.for_int("GpuBankGpus")
NEEDS_APPROVAL: Final = SearchAttributeKey.for_bool("GpuBankNeedsApproval")
DUE_AT: Final = SearchAttributeKey.for_datetime("GpuBankDueAt")

ALL: Final[tuple[SearchAttributeKey[Any], ...]] = (
    PHASE,
    POOL,
    BORROWER,
    GROUP,
    POLICY,
    WORKLOAD,
    NODE,
    CLUSTER,
    REASON,
    LENDERS,
    GPUS,
    NEEDS_APPROVAL,
    DUE_AT,
)
"""Everything that a namespace must know before a workflow of the bank runs in it."""

KINDS: Final[dict[str, str]] = {
    key.name: {"KEYWORD_LIST": "KeywordList"}.get(kind, kind.title())
    for key in ALL
    for kind in [key.indexed_value_type.name]
}
"""Type of every attribute, as Temporal's command line calls it."""


def workload_name(workload: WorkloadKey) -> str:
    """Return `namespace/name` of the job, or of the Workload where its job is not known."""
    return f"{workload.namespace}/{workload.job.rpartition('/')[2] or workload.name}"
