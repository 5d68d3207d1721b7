"""A broken or hostile trainer behind the HTTP transport."""

import asyncio
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import httpx2
import pytest

from gpubank.adapters.checkpoint import (
    AddressRules,
    HttpHook,
)
from gpubank.domain.checkpoint import (
    CheckpointRequest,
    CheckpointState,
    CheckpointTarget,
)
from gpubank.domain.contract import Transport
from gpubank.domain.errors import BackendError
from tests.fakes.plays import Play, Server, drips, hangs, hangs_up, pours, replies, status

UID = "pod-uid-1"


def request(name: str = "loan/local/uid-1/1", epoch: int = 1, reason: str = "wanted back") -> CheckpointRequest:
    return CheckpointRequest(id=name, epoch=epoch, deadline=datetime.now(UTC) + timedelta(minutes=10), reason=reason)


def http_target(endpoint: str, pod_ip: str = "") -> CheckpointTarget:
    return CheckpointTarget(
        namespace="a", pod="p", uid=UID, transport=Transport.HTTP, endpoint=endpoint, storage="file:///x", pod_ip=pod_ip
    )


@pytest.mark.parametrize(
    ("play", "says"),
    [
        pytest.param(hangs, "did not answer within", id="hang"),
        pytest.param(drips, "did not answer within", id="slow-drip"),
        pytest.param(pours, "more than 65536 bytes", id="flood"),
        pytest.param(hangs_up, "cannot be reached", id="hang-up"),
        pytest.param(status("500 Oops", b'{"message": "cuda error"}'), "500: cuda error", id="500"),
        pytest.param(status("503 Busy"), "503", id="503"),
        pytest.param(status("429 Slow"), "429", id="429"),
        pytest.param(status("200 OK", b"<html>"), "no checkpoint answer", id="garbage"),
        pytest.param(status("202 Accepted", b'{"state": "perhaps"}'), "state: ", id="unknown-state"),
        pytest.param(status("200 OK", b"\x1f\x8b", "Content-Encoding: gzip"), "no checkpoint answer", id="packed"),
        pytest.param(replies(b"SSH-2.0-OpenSSH\r\n"), "cannot be reached", id="no-http"),
    ],
)
async def test_broken_trainer_is_a_failure_that_may_pass(play: Play, says: str) -> None:
    http = HttpHook(rules=AddressRules(loopback=True), timeout=timedelta(seconds=1))
    async with Server(play) as endpoint:
        with pytest.raises(BackendError, match=says):
            await http.request(http_target(endpoint), request())
        with pytest.raises(BackendError, match=says):
            await http.answer(http_target(endpoint), "r-1")
    await http.close()


@pytest.mark.parametrize(
    ("play", "says"),
    [
        pytest.param(status("400 Bad", b'{"message": "epoch: must be"}'), "epoch: must be", id="400"),
        pytest.param(status("403 No"), "403", id="403"),
        pytest.param(status("409 Old", b'{"message": "is older"}'), "is older", id="409"),
        pytest.param(status("404 None"), "embed the hook", id="404"),
        pytest.param(status("501 None"), "embed the hook", id="501"),
        pytest.param(status("302 Found", b"", "Location: http://127.0.0.1:1/"), "redirects are not", id="redirect"),
    ],
)
async def test_refusal_is_a_failed_answer_with_the_reason(play: Play, says: str) -> None:
    http = HttpHook(rules=AddressRules(loopback=True))
    async with Server(play) as endpoint:
        answer = await http.request(http_target(endpoint), request())
    await http.close()
    assert answer.state is CheckpointState.FAILED
    assert says in answer.message


async def test_redirect_is_never_followed() -> None:
    elsewhere = Server(status("200 OK", b'{"state": "durable"}'))
    http = HttpHook(rules=AddressRules(loopback=True))
    async with elsewhere as secret, Server(status("307 Go", b"", f"Location: {secret}/v1/checkpoint")) as endpoint:
        answer = await http.request(http_target(endpoint), request())
        assert answer.state is CheckpointState.FAILED
    await http.close()
    assert elsewhere.calls == 0


async def test_nobody_listening_is_a_failure_that_may_pass() -> None:
    async with Server(hangs) as endpoint:
        pass
    http = HttpHook(rules=AddressRules(loopback=True))
    with pytest.raises(BackendError, match="cannot be reached"):
        await http.answer(http_target(endpoint), "r-1")
    await http.close()


@pytest.mark.parametrize(
    ("endpoint", "pod_ip", "says"),
    [
        ("", "10.1.2.3", "none is declared"),
        ("8471", "", "no address yet"),
        ("ftp://10.1.2.3", "10.1.2.3", "http or https"),
        ("file:///etc/passwd", "10.1.2.3", "http or https"),
        ("http://user:pw@10.1.2.3", "10.1.2.3", "scheme, host and port only"),
        ("http://10.1.2.3/admin", "10.1.2.3", "scheme, host and port only"),
        ("http://10.1.2.3?x=y", "10.1.2.3", "scheme, host and port only"),
        ("http://metadata.internal", "10.1.2.3", "must be an IP address"),
        ("http://2130706433:80", "10.1.2.3", "must be an IP address"),
        ("http://10.9.9.9:8471", "10.1.2.3", "neither the pod's address"),
        ("http://169.254.169.254", "169.254.169.254", "neither the pod's address"),
        ("http://127.0.0.1:8471", "10.1.2.3", "neither the pod's address"),
        ("http://localhost:8471", "10.1.2.3", "neither the pod's address"),
        ("http://127.0.0.1:8471", "127.0.0.1", "neither the pod's address"),
        ("http://[::1]:8471", "10.1.2.3", "neither the pod's address"),
        ("http://[::ffff:127.0.0.1]:8471", "10.1.2.3", "neither the pod's address"),
        ("http://[::ffff:169.254.169.254]", "169.254.169.254", "neither the pod's address"),
        ("http://[fe80::1%25eth0]", "10.1.2.3", "neither the pod's address"),
        ("http://0.0.0.0:8471", "0.0.0.0", "neither the pod's address"),
        ("http://[::]:8471", "::", "neither the pod's address"),
        ("http://255.255.255.255", "255.255.255.255", "neither the pod's address"),
        ("http://224.0.0.1", "224.0.0.1", "neither the pod's address"),
        ("http://168.63.129.16", "168.63.129.16", "neither the pod's address"),
        ("http://[fd00:ec2::254]", "fd00:ec2::254", "neither the pod's address"),
        ("http://0x7f000001", "10.1.2.3", "must be an IP address"),
        ("http://0177.0.0.1", "10.1.2.3", "must be an IP address"),
        ("http://127.1", "10.1.2.3", "must be an IP address"),
        ("http://10.1.2.3.nip.io", "10.1.2.3", "must be an IP address"),
        ("http://10.1.2.3@10.9.9.9", "10.1.2.3", "scheme, host and port only"),
        ("http://10.9.9.9#@10.1.2.3", "10.1.2.3", "scheme, host and port only"),
        ("http://10.1.2.3\\@10.9.9.9", "10.1.2.3", "scheme, host and port only"),
        ("http://kubernetes.default.svc:443", "10.1.2.3", "must be an IP address"),
        ("http://10.1.2.3:99999", "10.1.2.3", "Port out of range"),
        ("http://[", "10.1.2.3", "Invalid IPv6"),
    ],
)
async def test_endpoint_that_is_not_the_pods_own_is_never_called(endpoint: str, pod_ip: str, says: str) -> None:
    def must_not_be_called(call: Any) -> Any:
        raise AssertionError(f"called {call.url}")

    http = HttpHook(transport=httpx2.MockTransport(must_not_be_called))
    answer = await http.request(http_target(endpoint, pod_ip), request())
    assert answer.state is CheckpointState.FAILED
    assert says in answer.message
    assert await http.answer(http_target(endpoint, pod_ip), "r-1") == answer
    await http.close()


@pytest.mark.parametrize(
    ("endpoint", "pod_ip", "networks", "url"),
    [
        ("8471", "10.1.2.3", (), "http://10.1.2.3:8471/v1/checkpoint"),
        (":8471", "fd00::1", (), "http://[fd00::1]:8471/v1/checkpoint"),
        ("10.1.2.3:8471", "10.1.2.3", (), "http://10.1.2.3:8471/v1/checkpoint"),
        ("https://10.1.2.3/", "10.1.2.3", (), "https://10.1.2.3/v1/checkpoint"),
        ("http://10.9.9.9:8471", "10.1.2.3", ("10.9.0.0/16",), "http://10.9.9.9:8471/v1/checkpoint"),
        ("http://127.0.0.1:8471", "10.1.2.3", ("127.0.0.0/8",), "http://127.0.0.1:8471/v1/checkpoint"),
    ],
)
async def test_pods_own_address_and_allowed_networks_are_called(
    endpoint: str, pod_ip: str, networks: tuple[str, ...], url: str
) -> None:
    called: list[str] = []

    def answers(call: Any) -> Any:
        called.append(str(call.url))
        return httpx2.Response(202, stream=httpx2.ByteStream(b'{"state": "accepted"}'))

    http = HttpHook(rules=AddressRules(networks=networks), transport=httpx2.MockTransport(answers))
    assert (await http.request(http_target(endpoint, pod_ip), request())).state is CheckpointState.ACCEPTED
    assert called == [url]
    await http.close()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "0.0.0.0",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd00:ec2::254%1",
    ],
)
def test_a_wide_network_opens_neither_this_machine_nor_metadata(address: str) -> None:
    rules = AddressRules(networks=("0.0.0.0/0", "::/0"))
    assert not rules.allows(ip_address(address), pod_ip="10.1.2.3")
    assert rules.allows(ip_address("10.9.9.9"), pod_ip="10.1.2.3")
    assert rules.allows(ip_address("::ffff:10.9.9.9"), pod_ip="10.1.2.3")


async def test_what_came_before_an_answer_without_end_is_not_waited_for() -> None:
    """Answers of status 100 may come as often as a server likes before the one that counts."""

    async def hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    http = HttpHook(rules=AddressRules(loopback=True), timeout=timedelta(seconds=0.5))
    async with Server(hints) as endpoint:
        with pytest.raises(BackendError, match=r"did not answer within|cannot be reached"):
            await http.answer(http_target(endpoint), "r-1")
    await http.close()


async def test_a_request_id_is_one_part_of_the_path_whatever_it_says() -> None:
    called: list[str] = []

    def answers(call: Any) -> Any:
        called.append(call.url.raw_path.decode())
        return httpx2.Response(404, stream=httpx2.ByteStream(b"{}"))

    http = HttpHook(transport=httpx2.MockTransport(answers))
    assert await http.answer(http_target("8471", "10.1.2.3"), "../../admin?x=1#y\r\nHost: z") is None
    assert called == ["/v1/checkpoint/..%2F..%2Fadmin%3Fx%3D1%23y%0D%0AHost%3A%20z"]
    await http.close()
