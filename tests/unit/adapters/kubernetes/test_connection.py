import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube import SingleConfig
from lightkube.config.models import Cluster, Context, User

from gpubank.adapters.kubernetes import connection as connections
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError, ApiNotFoundError, WatchExpiredError
from gpubank.adapters.kubernetes.kinds import NODE, POD, WORKLOAD, Kind
from gpubank.domain.errors import BackendError, ConflictError

CONFIG = SingleConfig(
    context_name="test",
    context=Context(cluster="test"),
    cluster=Cluster(server="http://api.example.com"),
    user=User(token="t"),
)
Answer = Callable[[httpx2.Request], httpx2.Response]


def connection(answer: Answer) -> Connection:
    return Connection(CONFIG, transport=httpx2.MockTransport(answer))


def status(code: int, reason: str = "", message: str = "no", **more: Any) -> httpx2.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, **more}
    return httpx2.Response(code, json=body)


@pytest.mark.parametrize(
    ("kind", "name", "namespace", "path"),
    [
        (POD, "p", "team", "/api/v1/namespaces/team/pods/p"),
        (POD, "", None, "/api/v1/pods"),
        (NODE, "n", None, "/api/v1/nodes/n"),
        (NODE, "n", "ignored", "/api/v1/nodes/n"),
        (WORKLOAD, "w", "team", "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/w"),
    ],
)
def test_where_an_object_stands(kind: Kind, name: str, namespace: str | None, path: str) -> None:
    assert kind.path(name, namespace) == path


async def test_an_object_that_is_not_there_is_none() -> None:
    async with connection(lambda request: status(404, "NotFound")) as api:
        assert await api.get(POD, "p", "team") is None
        assert await api.delete(POD, "p", "team") is False
        with pytest.raises(ApiNotFoundError):
            await api.patch(POD, "p", "team", {})


async def test_all_objects_are_those_of_every_page() -> None:
    pages = {"": (["a", "b"], "2"), "2": (["c"], "3"), "3": ([], "")}
    chosen = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        chosen.append(request.url.params.get("labelSelector"))
        names, token = pages[request.url.params.get("continue", "")]
        items = [{"metadata": {"name": name}} for name in names]
        return httpx2.Response(200, json={"metadata": {"continue": token}, "items": items})

    async with connection(answer) as api:
        found = await api.all(NODE, selectors={"labelSelector": "x=y"})
        assert [item["metadata"]["name"] for item in found] == ["a", "b", "c"]
        assert len(await api.all(NODE)) == 3
    assert chosen == ["x=y"] * 3 + [None] * 3


async def test_a_conflict_is_a_conflict_of_the_bank() -> None:
    async with connection(lambda request: status(409, "Conflict", "the object has been modified")) as api:
        with pytest.raises(ConflictError, match="has been modified"):
            await api.patch(POD, "p", "team", {}, version="7")


async def test_a_refusal_says_what_the_server_says() -> None:
    causes = [{"field": "spec.x", "reason": "FieldValueInvalid", "message": "must be y"}]
    async with connection(lambda request: status(422, "Invalid", "x is invalid", details={"causes": causes})) as api:
        with pytest.raises(ApiError) as refused:
            await api.create(POD, {"metadata": {"namespace": "team"}})
    error = refused.value
    assert (error.code, error.reason, error.detail, error.causes) == (422, "Invalid", "x is invalid", causes)
    assert error.is_refusal


async def test_an_answer_that_is_no_status_is_told_as_it_is() -> None:
    async with connection(lambda request: httpx2.Response(502, text="bad gateway")) as api:
        with pytest.raises(ApiError, match="502: bad gateway") as failed:
            await api.get(POD, "p", "team")
    assert not failed.value.is_refusal


async def test_no_answer_names_the_server() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused")

    async with connection(refuse) as api:
        with pytest.raises(BackendError, match="connection refused; check that the API server is up"):
            await api.get(POD, "p", "team")
        with pytest.raises(BackendError, match=r"watch Pod at http://api\.example\.com: connection refused"):
            await anext(api.watch(POD, version="1", selectors={}))


async def test_a_busy_server_is_asked_again_and_in_the_end_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_BUSY_WAIT", 0.001)
    answers = [httpx2.Response(429, headers={"Retry-After": "1"}), httpx2.Response(200, json={"kind": "Pod"})]
    async with connection(lambda request: answers.pop(0)) as api:
        assert await api.get(POD, "p", "team") == {"kind": "Pod"}
    async with connection(lambda request: httpx2.Response(429)) as api:
        with pytest.raises(ApiError, match="429"):
            await api.get(POD, "p", "team")


async def test_a_patch_is_a_merge_against_the_version_it_names_in_our_name() -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={})

    async with connection(answer) as api:
        await api.patch(POD, "p", "team", {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}, version="7")
    (request,) = seen
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.headers["authorization"] == "Bearer t"
    assert request.url.params["fieldManager"] == "gpubank"
    want = {"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}, "spec": {"x": 1}}
    assert json.loads(request.content) == want


async def test_a_watch_yields_events_and_ends_with_the_servers_time() -> None:
    events = [{"type": "ADDED", "object": {"n": 1}}, {"type": "BOOKMARK", "object": {"n": 2}}]
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, text="\n".join(json.dumps(event) for event in events))

    async with connection(answer) as api:
        found = [event async for event in api.watch(POD, version="7", selectors={"labelSelector": "a=b"})]
    assert found == [("ADDED", {"n": 1}), ("BOOKMARK", {"n": 2})]
    params = seen[0].url.params
    assert (params["watch"], params["allowWatchBookmarks"], params["resourceVersion"]) == ("true", "true", "7")
    assert params["labelSelector"] == "a=b"


@pytest.mark.parametrize(
    "answer",
    [
        status(410, "Expired", "too old"),
        httpx2.Response(200, text=json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}})),
    ],
    ids=["at-the-start", "in-the-middle"],
)
async def test_a_version_that_is_too_old_is_told_apart_from_a_failure(answer: httpx2.Response) -> None:
    async with connection(lambda request: answer) as api:
        with pytest.raises(WatchExpiredError, match="too old"):
            await anext(api.watch(POD, version="7", selectors={}))


async def test_an_error_in_a_watch_is_a_failure() -> None:
    event = {"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}}
    async with connection(lambda request: httpx2.Response(200, text=json.dumps(event))) as api:
        with pytest.raises(ApiError, match="etcd is away"):
            await anext(api.watch(POD, version="7", selectors={}))


async def test_a_watch_that_answers_nonsense_is_a_failure() -> None:
    async with connection(lambda request: httpx2.Response(200, text="<html>")) as api:
        with pytest.raises(BackendError, match="watch Pod"):
            await anext(api.watch(POD, version="7", selectors={}))


def test_a_kubeconfig_that_is_not_there_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"nowhere.*name one that exists"):
        Connection.open(tmp_path / "nowhere")


def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("clusters: []\ncontexts: []\n")
    with pytest.raises(BackendError, match="cannot be used"):
        Connection.open(path)
    with pytest.raises(BackendError, match="cannot be used"):
        Connection.open(path, context="elsewhere")
