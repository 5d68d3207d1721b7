"""Events to whoever repairs: CloudEvents 1.0 in structured JSON over HTTP, signed.

    POST url
    Content-Type: application/cloudevents+json; charset=utf-8
    Idempotency-Key: the event's id
    Gpubank-Signature: t=<Unix seconds>,v1=<hex of HMAC-SHA256(secret, "<t>.<body>")>

The receiver recomputes the signature over the bytes that it got, refuses old times, and remembers ids: an event is sent
again until it is taken. Every address that the host has is checked before one is connected to, and that very one is
connected to; no redirect is followed, no proxy asked, no answer read beyond 4 KiB.
"""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from ipaddress import ip_address
from time import time
from typing import Final
from urllib.parse import urlsplit

import httpx2

from gpubank.addresses import Address, Network, is_near, is_never_called, is_opened, plain
from gpubank.domain.base import format_instant
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.incidentsteps import Receipt, Ticket

SIGNATURE_HEADER: Final = "Gpubank-Signature"
KEY_HEADER: Final = "Idempotency-Key"
CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"

_AGAIN: Final = frozenset({408, 425, 429})
_MOST_READ: Final = 4096


class Webhook:
    """Implements `Tickets` over HTTP."""

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        networks: Sequence[Network] = (),
        timeout: timedelta = timedelta(seconds=10),
        now: Callable[[], float] = time,
    ) -> None:
        """Raises `PolicyError` for an address that cannot be called, or without a secret."""
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of a port, or of brackets
            fits = False
        if not fits or "@" in parts.netloc:
            # Not the address itself: a user's password, or a token in its query, would stand in the log.
            raise PolicyError(
                "incidents.webhook.url is no address that can be called:"
                " write http(s)://host[:port]/path, without a user"
            )
        if not secret:
            raise PolicyError("the webhook has no secret; set incidents.webhook.secret, for receivers trust signatures")
        self._parts, self._secret, self._networks, self._now = parts, secret.encode(), tuple(networks), now
        self._host = parts.hostname or ""
        self._timeout = timeout.total_seconds()
        self._client = httpx2.AsyncClient(timeout=self._timeout, follow_redirects=False, trust_env=False)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def send(self, ticket: Ticket) -> Receipt:
        """Send one event; see the port."""
        body = event_body(ticket)
        try:
            async with asyncio.timeout(self._timeout):
                address = await self._address()
                if isinstance(address, Receipt):
                    return address
                status, said = await self._post(address, ticket.id, body)
        except TimeoutError as error:
            raise BackendError(f"{self._host} did not take the event within {self._timeout:g} s") from error
        except (httpx2.HTTPError, OSError) as error:
            raise BackendError(f"{self._host} cannot be reached: {type(error).__name__}: {error}"[:500]) from error
        if 200 <= status < 300:
            return Receipt(sent=True, note=f"taken by {self._host} (HTTP status {status})")
        if status >= 500 or status in _AGAIN:
            raise BackendError(f"{self._host} answers with HTTP status {status}: {said}")
        if 300 <= status < 400:
            said = "it redirects, which is not followed; name the final address"
        return Receipt(sent=False, note=f"refused by {self._host} (HTTP status {status}): {said}")

    async def _post(self, address: Address, key: str, body: bytes) -> tuple[int, str]:
        parts = self._parts
        host = f"[{address}]" if address.version == 6 else str(address)
        url = parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host, fragment="").geturl()
        headers = {
            "Host": parts.netloc,
            "Content-Type": CONTENT_TYPE,
            "Connection": "close",
            KEY_HEADER: key,
            SIGNATURE_HEADER: signature(self._secret, body, int(self._now())),
        }
        async with self._client.stream(
            "POST", url, content=body, headers=headers, extensions={"sni_hostname": self._host}
        ) as response:
            read = b""
            async for part in response.aiter_raw():
                read += part
                if len(read) >= _MOST_READ:
                    break
        text = read[:200].decode(errors="replace")
        return response.status_code, "".join(c for c in text if c.isprintable())

    async def _address(self) -> Address | Receipt:
        """Return the address to connect to, or a receipt that says why there is none that may be called."""
        port = self._parts.port or (443 if self._parts.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
        addresses = [plain(ip_address(entry[4][0])) for entry in found]
        for address in addresses:
            if rule := self._rule_against(address):
                return Receipt(sent=False, note=f"not sent: address {address} of {self._host} {rule}")
        return addresses[0]

    def _rule_against(self, address: Address) -> str:
        """Return why a plain address may not be called; empty where it may."""
        if is_never_called(address):
            return "is never called: it is a cloud's metadata service, everybody's or nobody's"
        if self._networks and not any(address in network for network in self._networks):
            return "lies in no network that incidents.webhook.allowed_networks names"
        if is_opened(address, self._networks):
            return ""
        if is_near(address):
            return "is this machine's or of its link; name that very network in incidents.webhook.allowed_networks"
        if address.is_reserved:
            return "is reserved; name its network in incidents.webhook.allowed_networks"
        return ""


class NoTickets:
    """Implements `Tickets` where nobody outside is to be told."""

    async def send(self, ticket: Ticket) -> Receipt:
        """Say that nobody was told."""
        return Receipt(sent=False, note="nobody outside was told: no webhook is set (incidents.webhook.url)")


def event_body(ticket: Ticket) -> bytes:
    """Write the event as CloudEvents 1.0, structured."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": ticket.id,
            "type": ticket.type,
            "source": ticket.source,
            "subject": ticket.subject,
            "time": format_instant(ticket.time),
            "datacontenttype": "application/json",
            "data": ticket.data,
        },
        separators=(",", ":"),
    ).encode()


def signature(secret: bytes, body: bytes, at: int) -> str:
    """Sign a body as of a time, in Unix seconds; the time is a part of what is signed."""
    digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"
