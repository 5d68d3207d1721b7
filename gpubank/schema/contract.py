"""The workload contract as a table, for the reference; the names come from `gpubank.domain.contract`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpubank.domain import contract


@dataclass(frozen=True, slots=True)
class ContractName:
    """One name that workloads carry."""

    place: str
    name: str
    values: str
    meaning: str


def _one_of(values: type[StrEnum]) -> str:
    return ", ".join(f"`{value}`" for value in values)


CONTRACT: Final = (
    ContractName(
        "label", contract.WORKLOAD_TYPE_LABEL, _one_of(contract.WorkloadType),
        "What the workload is. Inference is never stopped and never borrows; a notebook counts as `development`.",
    ),
    ContractName(
        "label", contract.RETRYABLE_LABEL, "`true`, `false`",
        "It may be stopped after notice and rerun from scratch; it counts as `batch`.",
    ),
    ContractName(
        "label", contract.CAPACITY_ROLE_LABEL, "any, as `serving-floor`", "It is never stopped and never borrows.",
    ),
    ContractName(
        "annotation", contract.EXPECTED_DURATION_ANNOTATION, "duration",
        "How long it will run; among retryable work the short is stopped first.",
    ),
    ContractName(
        "annotation", contract.CHECKPOINT_TRANSPORT_ANNOTATION, _one_of(contract.Transport),
        "How a checkpoint is asked for; with `storage` it makes the workload `checkpointable`.",
    ),
    ContractName(
        "annotation", contract.CHECKPOINT_STORAGE_ANNOTATION, "URI prefix",
        "Under it lies every file of every checkpoint.",
    ),
    ContractName(
        "annotation", contract.CHECKPOINT_ENDPOINT_ANNOTATION, "address or command",
        "Address on the index-0 pod for `http`, which the running pod may publish itself; the command for `exec`.",
    ),
    ContractName(
        "annotation", contract.CHECKPOINT_REQUEST_ANNOTATION, "JSON",
        "Transport `annotation`: the bank's request, on the index-0 pod.",
    ),
    ContractName(
        "annotation", contract.CHECKPOINT_STATUS_ANNOTATION, "JSON",
        "Transport `annotation`: the trainer's answer, on its own pod.",
    ),
    ContractName(
        "annotation", contract.KEEP_RUNNING_ANNOTATION, "instant",
        "Where a LowUtilizationPolicy excludes it: no notice about idle GPUs until then.",
    ),
    ContractName(
        "label", contract.QUEUE_LABEL, "`<pool>`, `<pool>-borrow`",
        "Queue: the group's own guarantee, or what the group borrows.",
    ),
    ContractName(
        "label", contract.OWNER_ID_LABEL, "identifier",
        "Who runs it; shown with its GPUs' metrics, marked unverified.",
    ),
    ContractName(
        "label or annotation", contract.MODEL_NAME, "identifier, as `llama-3-70b`",
        "The model that is trained or served; shown with its GPUs' metrics, marked unverified.",
    ),
    ContractName(
        "label or annotation", contract.MODEL_VERSION, "identifier",
        "That model's version; shown with its GPUs' metrics, marked unverified.",
    ),
)  # fmt: skip
"""Every name of the contract, in the order of the reference."""
