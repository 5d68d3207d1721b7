"""One connection to an API server: credentials and TLS as lightkube reads them, objects as they are on the wire.

    kubeconfig | in-cluster ──▶ Connection ──▶ get list create replace patch delete watch
                                     └─ every failure is an error of the bank

Nothing is decoded into classes: what a newer server adds to an object survives a read and a write. Watches ask for
bookmarks and have a time limit on silence, so that a connection that died without a word is noticed.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2
from lightkube import ConfigError, KubeConfig, SingleConfig
from lightkube.config.client_adapter import ConnectionParams

from gpubank.adapters.kubernetes.errors import ApiError, ApiNotFoundError, WatchExpiredError, raise_for
from gpubank.adapters.kubernetes.kinds import Kind, Object
from gpubank.adapters.kubernetes.transport import KeptTransport
from gpubank.domain.contract import FIELD_MANAGER
from gpubank.domain.errors import BackendError

CALL_TIMEOUT: Final = 10.0
"""Seconds that one call may take to connect, to send, or between two bytes of its answer."""

SILENCE: Final = 75.0
"""Seconds without a byte after which a watch counts as dead; the API server sends a bookmark every minute."""

WATCH_SECONDS: Final = 300
"""Seconds after which the server ends a watch, which is then taken up where it ended."""

PAGE: Final = 500
"""Objects per page of a list."""

_BUSY_TRIES: Final = 4
_BUSY_WAIT: Final = 5.0
"""Longest time in seconds that one "too many requests" is waited for."""

_MERGE: Final = "application/merge-patch+json"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

Params = Mapping[str, str]


class Connection:
    """An open connection; use it as an async context manager, or call `close`."""

    def __init__(self, config: SingleConfig, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        """Prepare a connection; `transport` stands in for the network where one is given."""
        self.server: str = config.cluster.server
        address = urlsplit(self.server)
        # As kubectl does it: no proxy between two processes of one machine.
        trust_env = address.hostname not in _LOOPBACK
        try:
            params = ConnectionParams(timeout=httpx2.Timeout(CALL_TIMEOUT, pool=None), trust_env=trust_env)
            options = params.httpx_params(config)
        except (OSError, AssertionError) as error:
            fact = f"credentials for {self.server!r} cannot be used: {error}"
            raise BackendError(f"{fact}; check the kubeconfig") from error
        # Where a proxy may stand between, httpx2's own transport knows how to ask it and whom to spare (NO_PROXY).
        if transport is None and not (trust_env and getproxies().keys() & {address.scheme, "all"}):
            transport = KeptTransport(options["verify"])
        self._http = httpx2.AsyncClient(**options | {"transport": transport})

    @classmethod
    def open(cls, kubeconfig: Path | None = None, context: str | None = None) -> Self:
        """Open a connection: a kubeconfig if one is named, else in-cluster, `KUBECONFIG`, `~/.kube/config`.

        Nothing is sent yet. Raises `BackendError` where no configuration can be read.
        """
        try:
            found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
            config = found.get(context)
        except (ConfigError, OSError, KeyError, ValueError) as error:
            where = f"kubeconfig {str(kubeconfig)!r}" if kubeconfig else "kubeconfig"
            raise BackendError(f"{where} cannot be used: {error}; name one that exists, or set KUBECONFIG") from error
        if config is None:
            raise BackendError("kubeconfig names no context; set its current-context or name one")
        return cls(config)

    async def close(self) -> None:
        """Close every socket."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- reading

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return one object as it stands in the store, or None."""
        try:
            return await self.call("GET", kind.path(name, namespace))
        except ApiNotFoundError:
            return None

    async def page(self, kind: Kind, *, selectors: Params, token: str = "") -> tuple[list[Object], str, str]:
        """Return one page of a list, the version of the whole list, and the token of the next page."""
        params = {**selectors, "limit": str(PAGE)} | ({"continue": token} if token else {})
        answer = await self.call("GET", kind.path(), params=params)
        metadata = answer.get("metadata") or {}
        return answer.get("items") or [], metadata.get("resourceVersion", ""), metadata.get("continue", "")

    async def all(self, kind: Kind, *, selectors: Params | None = None) -> list[Object]:
        """Return every object of a kind that `selectors` choose, in all namespaces, page by page."""
        found, _, token = await self.page(kind, selectors=selectors or {})
        while token:
            more, _, token = await self.page(kind, selectors=selectors or {}, token=token)
            found += more
        return found

    async def watch(self, kind: Kind, *, version: str, selectors: Params) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield `(type, object)` of what changes after `version` until the server ends the watch.

        Bookmarks come as type `BOOKMARK`. Raises `WatchExpiredError` when `version` is no longer served and
        `BackendError` when the connection fails or falls silent.
        """
        params = {
            **selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = httpx2.Timeout(CALL_TIMEOUT, read=SILENCE, pool=None)
        try:
            async with self._http.stream("GET", kind.path(), params=params, timeout=timeout) as response:
                if response.is_error:
                    await response.aread()
                    raise_for(response, f"watch {kind}")
                async for line in response.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        if status.get("code") == 410:
                            raise WatchExpiredError(f"watch {kind}: {status.get('message', '')}")
                        raise ApiError(f"watch {kind}: {status.get('message', '')}", status)
                    yield event["type"], event["object"]
        except (httpx2.HTTPError, ConfigError, OSError, ValueError) as error:
            raise self._failed(f"watch {kind}", error) from error

    # ---- writing

    async def create(self, kind: Kind, body: Object, *, strict: bool = False) -> Object:
        """Create an object; `ConflictError` if it is there already."""
        namespace = body["metadata"].get("namespace")
        return await self.call("POST", kind.path("", namespace), body=body, params=_write(strict=strict))

    async def replace(
        self, kind: Kind, body: Object, *, strict: bool = False, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """Replace an object; with a resourceVersion in it, `ConflictError` unless it stands at that version.

        With `dry_run` the server checks everything, admission included, and keeps nothing.
        """
        metadata = body["metadata"]
        path = kind.path(metadata["name"], metadata.get("namespace"), subresource=subresource)
        params = _write(strict=strict) | ({"dryRun": "All"} if dry_run else {})
        return await self.call("PUT", path, body=body, params=params)

    async def patch(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        change: Object,
        *,
        version: str = "",
        subresource: str = "",
    ) -> Object:
        """Merge `change` into an object (a list is replaced whole), against `version` if one is given."""
        if version:
            change = change | {"metadata": change.get("metadata", {}) | {"resourceVersion": version}}
        path = kind.path(name, namespace, subresource=subresource)
        return await self.call("PATCH", path, body=change, params=_write(), content_type=_MERGE)

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, version: str = "") -> bool:
        """Ask for deletion, against `version` if one is given; False when there was nothing."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if version:
            options["preconditions"] = {"resourceVersion": version}
        try:
            await self.call("DELETE", kind.path(name, namespace), body=options)
        except ApiNotFoundError:
            return False
        return True

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Params | None = None,
        content_type: str = "application/json",
        patient: bool = True,
    ) -> Object:
        """Make one call and return the JSON object of its answer; if `patient`, wait while the server says it is busy.

        Raises `ConflictError` on 409, `ApiNotFoundError` on 404, `ApiError` on any other refusal and `BackendError`
        when there is no answer.
        """
        what = f"{method} {path}"
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if content is not None else {}
        for attempt in range(1, _BUSY_TRIES + 1):
            try:
                response = await self._http.request(method, path, params=params, content=content, headers=headers)
            except (httpx2.HTTPError, ConfigError, OSError) as error:
                raise self._failed(what, error) from error
            busy = response.status_code == httpx2.codes.TOO_MANY_REQUESTS
            if not busy or not patient or attempt == _BUSY_TRIES:
                break
            await asyncio.sleep(_retry_after(response))
        raise_for(response, what)
        return cast(Object, response.json())

    def _failed(self, what: str, error: Exception) -> BackendError:
        fact = str(error) or type(error).__name__
        return BackendError(f"{what} at {self.server}: {fact}; check that the API server is up and can be reached")


def _write(*, strict: bool = False) -> dict[str, str]:
    return {"fieldManager": FIELD_MANAGER} | ({"fieldValidation": "Strict"} if strict else {})


def _retry_after(response: Any) -> float:
    try:
        wanted = float(response.headers.get("Retry-After", "1"))
    except ValueError:
        wanted = 1.0
    return min(max(wanted, 0.1), _BUSY_WAIT)
