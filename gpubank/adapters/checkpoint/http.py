"""Checkpoints over HTTP: `POST /v1/checkpoint`, `GET /v1/checkpoint/{id}` on the index-0 pod.

The endpoint is what a job says, and the answer is what a pod sends; neither is trusted. The address must be the
pod's own, or one that the operator allows; no redirect is followed, no proxy asked, no answer read beyond 64 KiB, and
a whole exchange ends in time however slowly the bytes drip.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import quote, urlsplit

import httpx2

from gpubank.addresses import Address, Network, is_near, is_never_called, is_opened, plain
from gpubank.domain.checkpoint import (
    MAX_ANSWER_BYTES,
    CheckpointAnswer,
    CheckpointRequest,
    CheckpointState,
    CheckpointTarget,
    ClaimError,
)
from gpubank.domain.errors import BackendError

PATH: Final = "/v1/checkpoint"
_HEARD: Final = frozenset({200, 202})
_AGAIN: Final = frozenset({408, 425, 429})
_NO_HOOK: Final = frozenset({404, 405, 501})


class AddressRules:
    """Which addresses the bank talks to besides the pod's own; see `gpubank.addresses`."""

    def __init__(self, *, loopback: bool = False, networks: Sequence[str] = ()) -> None:
        """Allow `networks` (CIDRs), and with `loopback` this machine, as the lab and the embedded mode need it."""
        self._loopback = loopback
        self._networks: tuple[Network, ...] = tuple(ip_network(network) for network in networks)

    def allows(self, address: Address, *, pod_ip: str) -> bool:
        """Whether a request may go to `address` for the pod with `pod_ip`."""
        address = plain(address)
        if is_never_called(address):
            return False
        if address.is_loopback and self._loopback:
            return True
        # A pod on the host network has the node's address, which is its own. Every machine has a near one.
        own = bool(pod_ip) and address == plain(ip_address(pod_ip)) and not is_near(address)
        return own or is_opened(address, self._networks)


class HttpHook:
    """A `CheckpointHook` over HTTP."""

    def __init__(
        self,
        *,
        rules: AddressRules | None = None,
        timeout: timedelta = timedelta(seconds=10),
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Talk to the addresses that `rules` allow; `timeout` ends a whole exchange."""
        self._rules = rules or AddressRules()
        self._timeout = timeout.total_seconds()
        self._client = httpx2.AsyncClient(
            timeout=self._timeout, follow_redirects=False, trust_env=False, verify=True, transport=transport
        )

    async def request(self, target: CheckpointTarget, request: CheckpointRequest) -> CheckpointAnswer:
        """Ask, once per `request.id`; see `gpubank.ports.CheckpointHook`."""
        url = self._url(target)
        if isinstance(url, CheckpointAnswer):
            return url
        status, body = await self._exchange("POST", url + PATH, request.to_wire())
        if status in _HEARD:
            return _answer(url, body)
        if status in _NO_HOOK:
            return _failed(f"{url} does not serve {PATH} (HTTP status {status}); embed the hook in the training script")
        return _failed(f"{url} refuses the request (HTTP status {status}): {_message(body)}")

    async def answer(self, target: CheckpointTarget, request_id: str) -> CheckpointAnswer | None:
        """Return how far a request is; None where it is unknown."""
        url = self._url(target)
        if isinstance(url, CheckpointAnswer):
            return url
        status, body = await self._exchange("GET", f"{url}{PATH}/{quote(request_id, safe='')}", None)
        if status == 404:
            return None
        if status in _HEARD:
            return _answer(url, body)
        return _failed(f"{url} refuses to answer (HTTP status {status}): {_message(body)}")

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    def _url(self, target: CheckpointTarget) -> str | CheckpointAnswer:
        """Return the base URL, or a failed answer where the endpoint is none that may be called."""
        try:
            return _base_url(target, self._rules)
        except ValueError as error:
            return _failed(f"endpoint {target.endpoint!r} of pod {target.namespace}/{target.pod}: {error}")

    async def _exchange(self, method: str, url: str, content: str | None) -> tuple[int, bytes]:
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream(
                    method, url, content=content, headers={"Content-Type": "application/json", "Connection": "close"}
                ) as response,
            ):
                body = bytearray()
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise BackendError(f"{url} answers with more than {MAX_ANSWER_BYTES} bytes; what serves there?")
                status = response.status_code
        except TimeoutError as error:
            raise BackendError(
                f"{url} did not answer within {self._timeout:g} s; does the hook's thread run?"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise BackendError(f"{url} cannot be reached: {type(error).__name__}: {error}"[:500]) from error
        if 500 <= status != 501 or status in _AGAIN:
            raise BackendError(f"{url} answers with HTTP status {status}: {_message(bytes(body))}")
        if 300 <= status < 400:
            return status, b"redirects are not followed; name the final address as the endpoint"
        return status, bytes(body)


def _base_url(target: CheckpointTarget, rules: AddressRules) -> str:
    endpoint = target.endpoint.strip()
    if not endpoint:
        raise ValueError("none is declared or published")
    if endpoint.lstrip(":").isdigit():
        endpoint = f"http://{_bracketed(target.pod_ip)}:{endpoint.lstrip(':')}" if target.pod_ip else ""
        if not endpoint:
            raise ValueError("only a port, and the pod has no address yet")
    elif "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https"):
        raise ValueError("must be http or https")
    if parts.username is not None or parts.path.rstrip("/") or parts.query or parts.fragment:
        raise ValueError("must be scheme, host and port only")
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        rule = "the host must be an IP address, for a name may lead anywhere; write only the port for the pod's own"
        raise ValueError(rule) from None
    port = parts.port  # raises ValueError for a port that is none
    if not rules.allows(address, pod_ip=target.pod_ip):
        raise ValueError(f"{address} is neither the pod's address nor one that the operator allows")
    # The address that was judged is the one that is called, however it was written.
    return f"{parts.scheme}://{_bracketed(str(address))}" + (f":{port}" if port is not None else "")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _answer(url: str, body: bytes) -> CheckpointAnswer:
    try:
        return CheckpointAnswer.from_claim(body)
    except ClaimError as error:
        raise BackendError(f"{url} answers with what is no checkpoint answer: {error}") from error


def _failed(message: str) -> CheckpointAnswer:
    return CheckpointAnswer(state=CheckpointState.FAILED, message=message[:1000])


def _message(body: bytes) -> str:
    """Return the message of a refusal, which is JSON if a hook wrote it."""
    try:
        found = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = body.decode(errors="replace")
    return "".join(character for character in str(found)[:300] if character.isprintable())
