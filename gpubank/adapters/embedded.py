"""The CLI's side of the embedded mode's Unix socket."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from gpubank.domain.errors import BackendError, BankError, ConflictError, PolicyError
from gpubank.domain.facts import PoolFacts

_TIMEOUT = aiohttp.ClientTimeout(total=30)


class EmbeddedClient:
    """Talks to `gpubank up` on this machine; an async context manager."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(path=str(self._socket))
        self._session = aiohttp.ClientSession("http://gpubank", connector=connector, timeout=_TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def status(self) -> dict[str, Any]:
        """Versions and addresses of the running bank."""
        status: dict[str, Any] = await self._call("GET", "/v1/status")
        return status

    async def observe(self, pool: str) -> PoolFacts:
        """What the scheduler sees of a pool."""
        return PoolFacts.model_validate(await self._call("GET", f"/v1/pools/{pool}/facts"))

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of a kind; Jobs and Deployments too."""
        items: list[dict[str, Any]] = (await self._call("GET", f"/v1/objects/{kind}"))["items"]
        return items

    async def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None."""
        query = {"name": name} | ({"namespace": namespace} if namespace else {})
        items: list[dict[str, Any]] = (await self._call("GET", f"/v1/objects/{kind}", params=query))["items"]
        return items[0] if items else None

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Apply one manifest; `PolicyError` where it is refused."""
        applied: dict[str, Any] = await self._call("POST", "/v1/objects", json=dict(body))
        return applied

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        """Delete one object; False when there was none."""
        query = {"namespace": namespace} if namespace else {}
        done = await self._call("DELETE", f"/v1/objects/{kind}/{name}", params=query, missing=None)
        return done is not None

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
        """Replace the status; `ConflictError` if the object moved on since version `seen`."""
        query = (
            {"seen": seen} | ({"namespace": namespace} if namespace else {}) | ({"dryRun": "All"} if dry_run else {})
        )
        await self._call("PUT", f"/v1/objects/{kind}/{name}/status", params=query, json=dict(status))

    async def whoami(self) -> str | None:
        """Nobody confirms identities here: whoever may open the socket may do everything."""
        return None

    async def _call(self, method: str, path: str, *, missing: Any = ..., **arguments: Any) -> Any:
        assert self._session is not None
        try:
            async with self._session.request(method, path, **arguments) as response:
                body = await response.json()
        except aiohttp.ContentTypeError as error:
            raise BackendError(
                f"the bank on {str(self._socket)!r} failed at {method} {path} ({error.status}); its log says why"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BackendError(
                f"no bank answers on {str(self._socket)!r}; `gpubank up` starts the embedded one,"
                " `--mode cluster` reaches a cluster's"
            ) from error
        if response.status == 404 and missing is not ...:
            return missing
        if response.status >= 400:
            raise _ERRORS.get(response.status, BackendError)(body.get("error", response.reason))
        return body


_ERRORS: dict[int, type[BankError]] = {404: PolicyError, 409: ConflictError, 422: PolicyError}
