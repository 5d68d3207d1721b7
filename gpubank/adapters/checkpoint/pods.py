"""Pods of a real cluster, for the annotation and the exec transport: the API server through lightkube."""

import asyncio
import io
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import httpx2
from httpx2.websockets import HTTPXWSException
from lightkube import ApiError, AsyncClient
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

from gpubank.adapters.checkpoint.annotation import PodNotes
from gpubank.adapters.checkpoint.exec import ExecResult
from gpubank.domain.checkpoint import MAX_ANSWER_BYTES
from gpubank.domain.errors import BackendError, ConflictError

_NOT_THERE: Final = 127
"""Exit code of a shell for a program that is not there."""
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


class LightkubePods:
    """`PodAnnotations` and `ExecInPod` over the API server.

    Needs the verbs get and patch on pods, and create on pods/exec where the exec transport is used.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def read(self, namespace: str, pod: str) -> PodNotes | None:
        """Return the annotations; None if there is no such pod."""
        found = await self._get(namespace, pod)
        return None if found is None else _notes(namespace, pod, found)

    async def write(self, namespace: str, pod: str, *, uid: str, annotations: Mapping[str, str]) -> None:
        """Set annotations on the pod with that uid; `ConflictError` if it is another one or none."""
        # A uid in the patch is a precondition: for a later pod of the same name the server says that it is immutable.
        patch: dict[str, Any] = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        try:
            await self._client.patch(Pod, pod, patch, namespace=namespace, patch_type=PatchType.MERGE)
        except ApiError as error:
            if error.status.code in (404, 409) or (error.status.code == 422 and "metadata.uid" in str(error)):
                raise ConflictError(f"pod {namespace}/{pod} with uid {uid} is gone; read the workload again") from error
            raise _backend_error(namespace, pod, error) from error
        except httpx2.HTTPError as error:
            raise _backend_error(namespace, pod, error) from error

    async def run(
        self, namespace: str, pod: str, *, uid: str, container: str, command: Sequence[str], timeout: timedelta
    ) -> ExecResult:
        """Run `command` in the pod with that uid and wait for its end.

        An empty `container` is the one that kubectl would take. Exit code 127 is also a program that cannot be started.
        """
        found = await self._get(namespace, pod)
        if found is None or _notes(namespace, pod, found).uid != uid:
            raise ConflictError(f"pod {namespace}/{pod} with uid {uid} is gone; read the workload again")
        stdout, stderr = _Tail(MAX_ANSWER_BYTES), _Tail(MAX_ANSWER_BYTES)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                ended = await self._client.exec(
                    pod,
                    namespace=namespace,
                    container=container or _default_container(found),
                    command=list(command),
                    stdout=stdout,
                    stderr=stderr,
                )
        except TimeoutError as error:
            raise BackendError(f"command {command[0]!r} in {namespace}/{pod} did not end within {timeout}") from error
        except (httpx2.HTTPError, HTTPXWSException) as error:
            if _is_not_there(command[0], error):
                return ExecResult(exit_code=_NOT_THERE, stdout=b"", stderr=str(error).encode())
            raise _backend_error(namespace, pod, error) from error
        return ExecResult(exit_code=ended.exit_code, stdout=stdout.content(), stderr=stderr.content())

    async def _get(self, namespace: str, pod: str) -> Pod | None:
        try:
            return await self._client.get(Pod, pod, namespace=namespace)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise _backend_error(namespace, pod, error) from error
        except httpx2.HTTPError as error:
            raise _backend_error(namespace, pod, error) from error


class _Tail(io.BytesIO):
    """Keeps the end of what is written to it, so that a command cannot fill the memory of the bank."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._kept = b""

    def write(self, content: Any, /) -> int:
        self._kept = (self._kept + bytes(content))[-self._limit :]
        return len(content)

    def content(self) -> bytes:
        return self._kept


def _notes(namespace: str, pod: str, found: Pod) -> PodNotes:
    metadata = found.metadata
    if metadata is None or metadata.uid is None:
        raise BackendError(f"pod {namespace}/{pod} has no uid; is that an API server?")
    return PodNotes(uid=metadata.uid, annotations=dict(metadata.annotations or {}))


def _default_container(pod: Pod) -> str | None:
    """Return the container that the pod names as its default, else its first: with several, the server takes none."""
    named = (pod.metadata.annotations or {}).get(_DEFAULT_CONTAINER) if pod.metadata else None
    containers = pod.spec.containers if pod.spec else []
    return named or (containers[0].name if containers else None)


def _is_not_there(program: str, error: Exception) -> bool:
    """Whether a container runtime says that it has no such program, or may not run it, which no second try changes.

    It has no exit code for that, only words: those of runc, which are Go's, or those of crun.
    """
    return any(words in str(error) for words in (f'exec: "{program}": ', f"executable file `{program}` not found"))


def _backend_error(namespace: str, pod: str, error: Exception) -> BackendError:
    return BackendError(f"pod {namespace}/{pod}: {type(error).__name__}: {error}"[:500])
