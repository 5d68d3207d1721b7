"""Checkpoints: three transports behind one port, and the storage they are verified on."""

from collections.abc import Mapping

from gpubank.adapters.checkpoint.annotation import AnnotationHook, PodAnnotations, PodNotes
from gpubank.adapters.checkpoint.exec import ExecHook, ExecInPod, ExecResult
from gpubank.adapters.checkpoint.http import AddressRules, HttpHook
from gpubank.adapters.checkpoint.pods import LightkubePods
from gpubank.adapters.checkpoint.storage import FsspecStorage
from gpubank.adapters.checkpoint.verification import verify
from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointRequest, CheckpointState, CheckpointTarget
from gpubank.domain.contract import Transport
from gpubank.ports import CheckpointHook

__all__ = [
    "AddressRules",
    "AnnotationHook",
    "CheckpointHooks",
    "ExecHook",
    "ExecInPod",
    "ExecResult",
    "FsspecStorage",
    "HttpHook",
    "LightkubePods",
    "PodAnnotations",
    "PodNotes",
    "verify",
]


class CheckpointHooks:
    """A `CheckpointHook` that asks over the transport which the target declares."""

    def __init__(self, transports: Mapping[Transport, CheckpointHook]) -> None:
        """Serve `transports`; a target of any other one gets a failed answer."""
        self._transports = dict(transports)

    async def request(self, target: CheckpointTarget, request: CheckpointRequest) -> CheckpointAnswer:
        """Ask, once per `request.id`; see `gpubank.ports.CheckpointHook`."""
        hook = self._transports.get(target.transport)
        return self._unserved(target) if hook is None else await hook.request(target, request)

    async def answer(self, target: CheckpointTarget, request_id: str) -> CheckpointAnswer | None:
        """Return how far a request is; None where it is unknown."""
        hook = self._transports.get(target.transport)
        return self._unserved(target) if hook is None else await hook.answer(target, request_id)

    def _unserved(self, target: CheckpointTarget) -> CheckpointAnswer:
        served = ", ".join(sorted(self._transports)) or "none"
        message = f"transport {target.transport!s} is not served here; served: {served}"
        return CheckpointAnswer(state=CheckpointState.FAILED, message=message)
