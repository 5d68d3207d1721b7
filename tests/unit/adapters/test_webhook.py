"""The webhook against a real receiver: what it gets, whether it can trust it, and what is never called."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp import web

from gpubank.adapters.webhook import KEY_HEADER, SIGNATURE_HEADER, NoTickets, Webhook, signature
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.incidentsteps import Ticket

SECRET = "a shared secret"
LOOPBACK = (ip_network("127.0.0.0/8"),)
TICKET = Ticket(
    id="incident/local/n1/GPU-1/t/opened-3",
    type="run.aik8s.platform.incident.opened",
    source="/gpubank/local",
    subject="incident/local/n1/GPU-1",
    time=datetime(2026, 1, 5, 12, tzinfo=UTC),
    data={"gpu": "GPU-1", "cause": "xid 79"},
)


@dataclass
class Receiver:
    """Takes events as a ticket system does: checks the signature, then remembers the id."""

    url: str = ""
    status: int = 202
    headers: dict[str, str] = field(default_factory=dict)
    taken: dict[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    calls: int = 0
    delay: float = 0.0

    async def take(self, request: web.Request) -> web.Response:
        self.calls += 1
        body = await request.read()
        stamp, _, digest = request.headers[SIGNATURE_HEADER].partition(",v1=")
        at = stamp.removeprefix("t=")
        wanted = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        fresh = abs(datetime.now(UTC).timestamp() - int(at)) < 300
        if not (hmac.compare_digest(wanted, digest) and fresh):
            self.refused.append("signature")
            return web.Response(status=401, text="bad signature")
        if self.status >= 300:
            return web.Response(status=self.status, headers=self.headers, text="not now")
        event = json.loads(body)
        assert request.headers[KEY_HEADER] == event["id"]
        assert request.content_type == "application/cloudevents+json"
        self.taken[event["id"]] = event
        return web.Response(status=self.status)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/events", found.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (address,) = runner.addresses
    found.url = f"http://127.0.0.1:{address[1]}/events"
    yield found
    await runner.cleanup()


@pytest.fixture
async def webhook(receiver: Receiver) -> AsyncIterator[Webhook]:
    found = Webhook(receiver.url, secret=SECRET, networks=LOOPBACK)
    yield found
    await found.close()


async def test_an_event_arrives_signed_and_whole_and_a_second_time_is_the_same(
    receiver: Receiver, webhook: Webhook
) -> None:
    for _ in range(2):
        receipt = await webhook.send(TICKET)
        assert (receipt.sent, receipt.note) == (True, "taken by 127.0.0.1 (HTTP status 202)")
    assert receiver.taken == {
        TICKET.id: {
            "specversion": "1.0",
            "id": TICKET.id,
            "type": "run.aik8s.platform.incident.opened",
            "source": "/gpubank/local",
            "subject": "incident/local/n1/GPU-1",
            "time": "2026-01-05T12:00:00Z",
            "datacontenttype": "application/json",
            "data": {"gpu": "GPU-1", "cause": "xid 79"},
        }
    }
    assert (receiver.calls, receiver.refused) == (2, [])


async def test_a_receiver_refuses_another_secret_and_an_old_time(receiver: Receiver) -> None:
    for secret, at in (("guessed", None), (SECRET, 1_000_000.0)):
        now = {"now": lambda at=at: at} if at is not None else {}
        webhook = Webhook(receiver.url, secret=secret, networks=LOOPBACK, **now)  # type: ignore[arg-type]
        receipt = await webhook.send(TICKET)
        await webhook.close()
        assert (receipt.sent, receipt.note) == (False, "refused by 127.0.0.1 (HTTP status 401): bad signature")
    assert receiver.taken == {}


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_what_may_pass_is_tried_again(receiver: Receiver, webhook: Webhook, status: int) -> None:
    receiver.status = status
    with pytest.raises(BackendError, match=f"HTTP status {status}"):
        await webhook.send(TICKET)


async def test_a_redirect_is_refused_and_not_followed(receiver: Receiver, webhook: Webhook) -> None:
    receiver.status, receiver.headers = 307, {"Location": receiver.url}
    receipt = await webhook.send(TICKET)
    assert not receipt.sent
    assert "it redirects, which is not followed" in receipt.note
    assert receiver.calls == 1


@pytest.mark.parametrize(
    ("networks", "rule"),
    [
        ((), "is this machine's or of its link"),
        ((ip_network("10.0.0.0/8"),), "lies in no network"),
        ((ip_network("0.0.0.0/0"), ip_network("::/0")), "is this machine's or of its link"),
    ],
)
async def test_an_address_that_is_not_allowed_is_never_called(receiver: Receiver, networks: Any, rule: str) -> None:
    for url in (receiver.url, receiver.url.replace("127.0.0.1", "localhost")):
        webhook = Webhook(url, secret=SECRET, networks=networks)
        receipt = await webhook.send(TICKET)
        await webhook.close()
        assert not receipt.sent
        assert rule in receipt.note
    assert receiver.calls == 0


@pytest.mark.parametrize("networks", [(), (ip_network("0.0.0.0/0"), ip_network("::/0"))])
@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("[fd00:ec2::254]", "metadata"),
        ("[::ffff:192.0.0.192]", "metadata"),
        ("0.0.0.0", "nobody's"),
        ("255.255.255.255", "everybody's"),
        ("169.254.169.254", "of its link"),
        ("[::ffff:169.254.169.254]", "of its link"),
    ],
)
async def test_no_wide_network_opens_clouds_metadata(address: str, rule: str, networks: Any) -> None:
    webhook = Webhook(f"http://{address}:1/", secret=SECRET, networks=networks)
    receipt = await webhook.send(TICKET)
    await webhook.close()
    assert not receipt.sent
    assert rule in receipt.note


async def test_nobody_at_home_is_said_and_tried_again() -> None:
    webhook = Webhook("http://127.0.0.1:1/events", secret=SECRET, networks=LOOPBACK, timeout=timedelta(seconds=2))
    with pytest.raises(BackendError, match="cannot be reached"):
        await webhook.send(TICKET)
    await webhook.close()


@pytest.mark.parametrize(
    ("url", "secret", "message"),
    [
        ("ftp://host/", SECRET, "write http"),
        ("http:///x", SECRET, "write http"),
        ("http://user:pass@host/", SECRET, "without a user"),
        ("https://host/", "", "has no secret"),
    ],
)
def test_an_address_or_secret_that_is_none_is_refused_at_the_start(url: str, secret: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Webhook(url, secret=secret)


async def test_without_a_webhook_the_receipt_says_so() -> None:
    receipt = await NoTickets().send(TICKET)
    assert receipt == receipt.model_copy(update={"sent": False})
    assert "no webhook is set" in receipt.note


def test_a_signature_holds_for_one_body_at_one_time() -> None:
    found = {signature(b"k", body, at) for body in (b"a", b"b") for at in (1, 2)}
    assert len(found) == 4
