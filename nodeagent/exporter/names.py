"""The exporter's own families: name, type, meaning. NVIDIA's are in `quantities`."""

from typing import Final

from nodeagent.exporter.exposition import Kind

Name = tuple[str, Kind, str]

POD_INFO: Final[Name] = (
    "gpubank_gpu_pod_info",
    Kind.INFO,
    "Who holds a GPU or GPU instance, to be joined on UUID and GPU_I_ID; several rows where it is shared.",
)
DEVICES: Final[Name] = (
    "gpubank_gpu_devices",
    Kind.GAUGE,
    "GPUs and GPU instances of the node by what is known about who holds them.",
)
TOMBSTONES: Final[Name] = (
    "gpubank_attribution_tombstones",
    Kind.GAUGE,
    "Devices whose holder is gone and still shown, for its last samples.",
)
STRAYS: Final[Name] = (
    "gpubank_attribution_strays",
    Kind.GAUGE,
    "Allocations of GPUs that the node does not know: it lost them, or a claim's device is not resolved.",
)
READABLE: Final[Name] = ("gpubank_gpu_readable", Kind.GAUGE, "Whether the GPU answered the last collection.")
CAPABILITY: Final[Name] = (
    "gpubank_gpu_capability",
    Kind.GAUGE,
    "Whether the GPU gives a kind of number; series of a kind that it does not give are left out, never zero.",
)
RECOVERY_ACTION: Final[Name] = (
    "gpubank_gpu_recovery_action",
    Kind.GAUGE,
    "What the driver says the GPU needs: 0 nothing, 1 reset, 2 reboot, 3 drain of P2P, 4 drain and reset,"
    " 5 IMEX recovery, 6 bus reset, 7 system reboot.",
)
XID_ERRORS: Final[Name] = (
    "gpubank_xid_errors_total",
    Kind.COUNTER,
    "XIDs by number since the exporter started.",
)
UNREADABLE: Final[Name] = (
    "gpubank_gpus_unreadable",
    Kind.GAUGE,
    "GPUs that are there by their index and cannot even be described.",
)
COLLECTIONS: Final[Name] = ("gpubank_exporter_collections_total", Kind.COUNTER, "Collections since the start.")
COLLECTION_SECONDS: Final[Name] = (
    "gpubank_exporter_collection_duration_seconds",
    Kind.GAUGE,
    "How long the last collection took.",
)
COLLECTED_AT: Final[Name] = (
    "gpubank_exporter_collection_timestamp_seconds",
    Kind.GAUGE,
    "When the last collection ended.",
)
ERRORS: Final[Name] = (
    "gpubank_exporter_errors_total",
    Kind.COUNTER,
    "What went wrong since the start, by where.",
)
SOURCE_UP: Final[Name] = (
    "gpubank_attribution_source_up",
    Kind.GAUGE,
    "Whether a source of attribution answered when it was last asked.",
)
SOURCE_CALLS: Final[Name] = (
    "gpubank_attribution_source_calls_total",
    Kind.COUNTER,
    "How often a source of attribution was asked; collections ask, scrapes never do.",
)
LABELS_DROPPED: Final[Name] = (
    "gpubank_exporter_labels_dropped",
    Kind.GAUGE,
    "Labels that gave way to the label budget.",
)
SAMPLES_REFUSED: Final[Name] = (
    "gpubank_exporter_samples_refused",
    Kind.GAUGE,
    "Samples of the last collection that were no number or would have stood there twice.",
)

COLLECTION_AGE: Final[Name] = (
    "gpubank_exporter_collection_age_seconds",
    Kind.GAUGE,
    "How old what is shown is.",
)
ATTRIBUTION_AGE: Final[Name] = (
    "gpubank_attribution_age_seconds",
    Kind.GAUGE,
    "Since when the kubelet has not said who holds what.",
)
METADATA_AGE: Final[Name] = (
    "gpubank_metadata_age_seconds",
    Kind.GAUGE,
    "Since when the control plane has not said whose pods these are; without any snapshot there is no series.",
)
METADATA_CONNECTED: Final[Name] = (
    "gpubank_metadata_connected",
    Kind.GAUGE,
    "Whether the control plane's stream is open.",
)
METADATA_PODS: Final[Name] = ("gpubank_metadata_pods", Kind.GAUGE, "Pods that the control plane told about.")
METADATA_REJECTED: Final[Name] = (
    "gpubank_metadata_rejected_total",
    Kind.COUNTER,
    "Snapshots that were not believed: not signed, for another node, or older than the known one.",
)
SCRAPES: Final[Name] = ("gpubank_exporter_scrapes_total", Kind.COUNTER, "Answers given on /metrics.")

COLLECTED: Final[tuple[Name, ...]] = (
    POD_INFO, DEVICES, TOMBSTONES, STRAYS, READABLE, CAPABILITY, RECOVERY_ACTION, XID_ERRORS, UNREADABLE,
    COLLECTIONS, COLLECTION_SECONDS, COLLECTED_AT, ERRORS, SOURCE_UP, SOURCE_CALLS, LABELS_DROPPED, SAMPLES_REFUSED,
)  # fmt: skip
"""Families that a collection writes."""

LIVE: Final[tuple[Name, ...]] = (
    COLLECTION_AGE, ATTRIBUTION_AGE, METADATA_AGE, METADATA_CONNECTED, METADATA_PODS, METADATA_REJECTED, SCRAPES,
)  # fmt: skip
"""Families that are as of the scrape: ages grow also while nothing is collected."""
