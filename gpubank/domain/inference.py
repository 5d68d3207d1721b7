"""InferenceScalingPolicy: how many replicas a service runs, judged by what its users feel.

    scale up     when any signal is over its mark for stabilizationWindow
    scale down   when the queue is under its mark for stabilizationWindow: pick, unroute, drain, only then shrink

A replica is a shape (so many GPUs, on so many pods), and one that fits no node is never asked for.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpubank.domain.base import (
    ApiModel,
    ApiVersion,
    Duration,
    DurationBounds,
    KindName,
    ObjectName,
    ReplicaCount,
    Rule,
    broken,
    rules,
)
from gpubank.domain.meta import ConditionedStatus, Resource

QueueDepth = Annotated[int, Field(ge=0, le=100_000)]


class ScalingBackend(StrEnum):
    """Who holds the replica count."""

    HPA = "HPA"
    KEDA = "KEDA"
    KSERVE = "KServe"
    AIBRIX = "AIBrix"
    RAY_SERVE = "RayServe"
    KTHENA = "Kthena"


class WorkloadRef(ApiModel):
    """The service that is scaled, in the policy's namespace."""

    api_version: ApiVersion | None = None
    """Group and version; unset means the kind's usual one."""

    kind: KindName
    """Kind, as in `InferenceService` or `Deployment`."""

    name: ObjectName
    """Name."""


class ReplicaShape(ApiModel):
    """What one replica needs."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """GPUs that hold one copy of the model together."""

    gpu_per_replica: Annotated[int, Field(ge=1, le=1024)]
    """GPUs of one replica in all."""

    pods: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pods of one replica; they share its GPUs evenly."""

    @model_validator(mode="after")
    def _gpus_divide(self) -> Self:
        if self.gpu_per_replica % self.tensor_parallel_size:
            raise broken(
                f"must be a multiple of tensorParallelSize ({self.tensor_parallel_size})",
                "give each copy of the model its GPUs",
                field="gpuPerReplica",
                value=self.gpu_per_replica,
            )
        if self.gpu_per_replica % self.pods:
            raise broken(
                f"must divide gpuPerReplica ({self.gpu_per_replica})",
                "give each pod the same number of GPUs",
                field="pods",
                value=self.pods,
            )
        return self

    model_config = rules(
        Rule(
            "self.gpuPerReplica % self.tensorParallelSize == 0",
            "must be a multiple of tensorParallelSize",
            "gpuPerReplica",
        ),
        Rule("self.gpuPerReplica % self.pods == 0", "must divide gpuPerReplica", "pods"),
    )


class ScaleUp(ApiModel):
    """When replicas are added: any signal over its mark is enough."""

    queue_depth_per_replica: Annotated[QueueDepth, Field(ge=1)] | None = None
    """Waiting requests per replica, above which replicas are added; unset does not look at it."""

    ttft_p95: Annotated[Duration, DurationBounds("1ms", "10m")] | None = None
    """95th percentile of the time to the first token, above which replicas are added; unset does not look at it."""

    kv_cache_high_watermark: Annotated[int, Field(ge=1, le=100)] | None = None
    """Use of the KV cache in percent, above which replicas are added; unset does not look at it."""

    stabilization_window: Annotated[Duration, DurationBounds("0s", "1h")] = timedelta(seconds=30)
    """How long a signal must stay over its mark."""

    @model_validator(mode="after")
    def _looks_at_something(self) -> Self:
        if self.queue_depth_per_replica is None and self.ttft_p95 is None and self.kv_cache_high_watermark is None:
            raise broken(
                "needs a signal, else nothing ever scales up",
                "set queueDepthPerReplica, ttftP95 or kvCacheHighWatermark",
            )
        return self

    model_config = rules(
        Rule(
            "has(self.queueDepthPerReplica) || has(self.ttftP95) || has(self.kvCacheHighWatermark)",
            "needs queueDepthPerReplica, ttftP95 or kvCacheHighWatermark",
        )
    )


class OnDrainTimeout(StrEnum):
    """What happens to a replica that still serves requests when drainTimeout has passed."""

    PROTECT = "protect"
    """It gets its traffic back and stays; somebody is told."""

    EVICT = "evict"
    """It is stopped, and its requests with it."""


class ScaleDown(ApiModel):
    """When a replica is removed, and how long it may take to finish its requests."""

    queue_depth_per_replica: QueueDepth = 0
    """Waiting requests per replica, at or below which a replica is removed."""

    stabilization_window: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=10)
    """How long the queue must stay there."""

    drain_timeout: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=20)
    """Longest time that the chosen replica gets to finish its requests, after it gets no new ones."""

    on_drain_timeout: OnDrainTimeout = OnDrainTimeout.PROTECT
    """What happens when it has not."""


class InferenceScalingPolicySpec(ApiModel):
    """How many replicas a service runs, judged by what its users feel."""

    workload_ref: WorkloadRef
    """The service."""

    backend: ScalingBackend | None = None
    """Who holds the replica count; unset means what fits workloadRef.kind."""

    replica_shape: ReplicaShape
    """What one replica needs."""

    min_replicas: ReplicaCount = 1
    """Fewest replicas."""

    max_replicas: Annotated[ReplicaCount, Field(ge=1)]
    """Most replicas."""

    scale_up: ScaleUp
    """When replicas are added."""

    scale_down: ScaleDown = ScaleDown()
    """When a replica is removed, and how."""

    @model_validator(mode="after")
    def _replicas_are_in_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise broken(
                f"must not exceed maxReplicas ({self.max_replicas})",
                "lower minReplicas or raise maxReplicas",
                field="minReplicas",
                value=self.min_replicas,
            )
        return self

    @model_validator(mode="after")
    def _marks_are_apart(self) -> Self:
        up, down = self.scale_up.queue_depth_per_replica, self.scale_down.queue_depth_per_replica
        if up is not None and down >= up:
            raise broken(
                f"must be below scaleUp.queueDepthPerReplica ({up}), else one queue asks for both at once",
                f"write at most {up - 1}",
                field="scaleDown.queueDepthPerReplica",
                value=down,
            )
        return self

    model_config = rules(
        Rule("self.minReplicas <= self.maxReplicas", "must not exceed maxReplicas", "minReplicas"),
        Rule(
            "!has(self.scaleUp.queueDepthPerReplica)"
            " || self.scaleDown.queueDepthPerReplica < self.scaleUp.queueDepthPerReplica",
            "must be below scaleUp.queueDepthPerReplica",
            "scaleDown.queueDepthPerReplica",
        ),
    )


class InferenceScalingPolicyStatus(ConditionedStatus):
    """What the service runs, as last seen."""

    replicas: int = Field(default=0, ge=0)
    """Replicas that run."""

    desired_replicas: int = Field(default=0, ge=0)
    """Replicas that the policy asks for."""

    unsupported: tuple[str, ...] = ()
    """Fields of the spec that the backend cannot express; the bank does not pretend it can."""


class InferenceScalingPolicy(Resource[InferenceScalingPolicySpec, InferenceScalingPolicyStatus]):
    """How many replicas a service runs, judged by what its users feel."""

    kind: Literal["InferenceScalingPolicy"] = "InferenceScalingPolicy"
    spec: InferenceScalingPolicySpec
    status: InferenceScalingPolicyStatus = InferenceScalingPolicyStatus()
