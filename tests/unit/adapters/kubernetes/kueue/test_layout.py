"""What a layout does about each way in which an object may not be as wanted, and what it says."""

import copy
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from lightkube import SingleConfig
from lightkube.config.models import Cluster, Context, User

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, COHORT, LOCAL_QUEUE, RESOURCE_FLAVOR, Kind, Object
from gpubank.adapters.kubernetes.kueue import layout as layouts
from gpubank.adapters.kubernetes.kueue.layout import LayoutWriter
from gpubank.adapters.kubernetes.kueue.order import IN_ORDER_ANNOTATION, LONGEST
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.domain.contract import GROUP_LABEL, MANAGED_BY_LABEL, POOL_LABEL
from gpubank.domain.layout import GroupLayout, LayoutReport, PoolLayout

NOW = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)
CONFIG = SingleConfig(
    context_name="test",
    context=Context(cluster="test"),
    cluster=Cluster(server="http://api.example.com"),
    user=User(token="t"),
)
KINDS = {kind.plural: kind for kind in (CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, COHORT)}
FLAVOR, QUEUE, LOCAL = (RESOURCE_FLAVOR, "h100"), (CLUSTER_QUEUE, "a.h100.own"), (LOCAL_QUEUE, "team/h100")
WANTED = PoolLayout(
    cluster="local",
    pool="h100",
    resource_name="nvidia.com/gpu",
    node_labels={"gpu": "h100"},
    groups=(GroupLayout(group="a", namespaces=("team",)),),
)

Place = tuple[Kind, str]
"""Kind, and name or namespace/name."""


class Api:
    """An API server that keeps queue objects, and the caches that follow it."""

    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.calls: list[str] = []
        self.connection = Connection(CONFIG, transport=httpx2.MockTransport(self._answer))
        self.view = View(self.connection, lambda: NOW)
        self.writer = LayoutWriter(self.connection, self.view, lambda: NOW)
        self._version = 0

    async def lay_out(self) -> LayoutReport:
        self.calls.clear()
        return await self.writer.lay_out(WANTED)

    def change(self, place: Place, change: Object, *, seen: bool = True) -> None:
        """Change an object as somebody else would."""
        self._put(place, merged(self.objects[place], change))
        if seen:
            self.view.absorb(place[0], self.read(place))

    def read(self, place: Place) -> Object:
        return copy.deepcopy(self.objects[place])

    def _put(self, place: Place, body: Object) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[place] = body

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        parts = request.url.path.split("/")[4:]
        namespace = f"{parts[1]}/" if parts[0] == "namespaces" else ""
        kind, *name = parts[2:] if namespace else parts
        body = json.loads(request.content) if request.content else {}
        place = KINDS[kind], namespace + (name[0] if name else body["metadata"]["name"])
        if request.method != "GET":
            self.calls.append(f"{request.method} {place[0]}/{place[1]}")
        if request.method == "POST":
            if place in self.objects:
                return httpx2.Response(409, json={"message": "it is there"})
            self._put(place, body)
        elif place not in self.objects:
            return httpx2.Response(404, json={"message": "it is not there"})
        elif request.method == "PATCH":
            if body["metadata"].pop("resourceVersion") != self.objects[place]["metadata"]["resourceVersion"]:
                return httpx2.Response(409, json={"message": "it has changed"})
            self._put(place, merged(self.objects[place], body))
        elif request.method == "DELETE":
            return httpx2.Response(200, json=self.objects.pop(place))
        return httpx2.Response(200, json=self.objects[place])


def merged(body: Any, change: Any) -> Any:
    """Return the merge of a patch into a body (RFC 7386)."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    found = dict(body) if isinstance(body, dict) else {}
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """A cluster on which everything is laid out."""
    api = Api()
    async with api.connection:
        await api.lay_out()
        yield api


def in_order(age: float) -> Object:
    since = (NOW - timedelta(seconds=age)).isoformat()
    return {"metadata": {"annotations": {IN_ORDER_ANNOTATION: since}}, "spec": {"queueingStrategy": "StrictFIFO"}}


def said(report: LayoutReport) -> list[str]:
    return [problem.reason for problem in report.problems]


async def test_what_is_laid_out_is_laid_out_once(api: Api) -> None:
    assert sorted(f"{kind}/{name}" for kind, name in api.objects) == [
        "ClusterQueue/a.h100.borrow",
        "ClusterQueue/a.h100.own",
        "LocalQueue/team/h100",
        "LocalQueue/team/h100-borrow",
        "ResourceFlavor/h100",
    ]
    assert await api.lay_out() == LayoutReport()
    assert api.calls == []


THEIRS = {"metadata": {"labels": {MANAGED_BY_LABEL: "somebody"}}}
ANOTHER_POOLS = {"metadata": {"labels": {POOL_LABEL: "a100"}}}
DELETED = {"metadata": {"deletionTimestamp": "2026-11-02T09:00:00Z"}}
STOPPED = {"spec": {"stopPolicy": "Hold"}}
LABEL_LOST = {"metadata": {"labels": {GROUP_LABEL: None}}}
STRICT = {"spec": {"queueingStrategy": "StrictFIFO"}}
PREEMPTS = {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}


@pytest.mark.parametrize(
    ("place", "change", "calls", "words"),
    [
        pytest.param(QUEUE, {}, [], [], id="nothing"),
        pytest.param(QUEUE, {"spec": {"fairSharing": {"weight": "1"}}}, [], [], id="what-nobody-asks-about"),
        pytest.param(QUEUE, THEIRS, [], ["ForeignObject"], id="theirs"),
        pytest.param(LOCAL, ANOTHER_POOLS, [], ["ForeignObject"], id="another-pools"),
        pytest.param(QUEUE, merged(DELETED, PREEMPTS), [], ["Deleting"], id="deleted"),
        pytest.param(QUEUE, STOPPED, [], ["Stopped"], id="stopped"),
        pytest.param(QUEUE, merged(STOPPED, PREEMPTS), ["PATCH"], ["Stopped"], id="stopped-and-drifted"),
        pytest.param(LOCAL, STOPPED, [], ["Stopped"], id="stopped-local"),
        pytest.param(LOCAL, {"spec": {"clusterQueue": "b"}}, ["DELETE", "POST"], [], id="leads-elsewhere"),
        pytest.param(
            LOCAL,
            {"spec": {"clusterQueue": "b", "stopPolicy": "Hold"}},
            ["DELETE", "POST"],
            ["Stopped"],
            id="stopped-and-leads-elsewhere",
        ),
        pytest.param(LOCAL, LABEL_LOST, ["PATCH"], [], id="label"),
        pytest.param(FLAVOR, {"spec": {"nodeLabels": {"gpu": "a100"}}}, ["PATCH"], [], id="flavor"),
        pytest.param(QUEUE, STRICT, ["PATCH"], [], id="strategy"),
        pytest.param(QUEUE, PREEMPTS, ["PATCH"], [], id="preemption"),
        pytest.param(QUEUE, {"spec": {"cohortName": "theirs"}}, ["PATCH"], [], id="cohort"),
        pytest.param(QUEUE, {"spec": {"resourceGroups": None}}, ["PATCH"], [], id="frame"),
        pytest.param(QUEUE, in_order(0), [], [], id="strict-for-a-moment"),
        pytest.param(QUEUE, merged(in_order(0), PREEMPTS), ["PATCH"], [], id="strict-for-a-moment-and-drifted"),
        pytest.param(QUEUE, merged(in_order(0), STOPPED), [], ["Stopped"], id="strict-for-a-moment-and-stopped"),
        pytest.param(QUEUE, in_order(LONGEST + 1), ["PATCH"], [], id="strict-for-too-long"),
        pytest.param(
            QUEUE, merged(in_order(LONGEST + 1), STOPPED), ["PATCH"], ["Stopped"], id="strict-for-too-long-and-stopped"
        ),
    ],
)
async def test_what_is_done_and_said_about_an_object_that_somebody_changed(
    api: Api, place: Place, change: Object, calls: list[str], words: list[str]
) -> None:
    name = f"{place[0]}/{place[1]}"
    api.change(place, change)
    report = await api.lay_out()
    assert (api.calls, said(report)) == ([f"{call} {name}" for call in calls], words)
    assert set(report.changed) == ({name} if calls else set())
    again = await api.lay_out()
    holds = [] if "POST" in calls else words
    assert (api.calls, said(again)) == ([], holds), "what was done about it is done, what was said holds"


async def test_a_strict_moment_that_is_over_is_ended_first_and_the_rest_is_repaired_after_it(api: Api) -> None:
    api.change(QUEUE, merged(in_order(LONGEST + 1), PREEMPTS))
    for _ in range(2):
        assert (await api.lay_out()).changed == ("ClusterQueue/a.h100.own",)
    body = api.read(QUEUE)
    assert (body["spec"]["queueingStrategy"], body["metadata"]["annotations"]) == ("BestEffortFIFO", {})
    assert body["spec"]["preemption"]["withinClusterQueue"] == "Never"
    assert await api.lay_out() == LayoutReport()


async def test_a_strict_moment_is_looked_at_until_it_ends_although_nothing_changes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.change(QUEUE, in_order(0))
    assert await api.lay_out() == LayoutReport()
    monkeypatch.setattr(api.writer, "_clock", lambda: NOW + timedelta(seconds=LONGEST))
    assert (await api.lay_out()).changed == ("ClusterQueue/a.h100.own",)


async def test_what_the_caches_do_not_know_yet_is_judged_as_it_is(api: Api) -> None:
    api.change(QUEUE, PREEMPTS)
    api.change(QUEUE, THEIRS, seen=False)
    assert said(await api.lay_out()) == ["ForeignObject"]
    assert api.read(QUEUE)["spec"]["preemption"]["withinClusterQueue"] == "LowerPriority"


async def test_who_keeps_setting_a_field_is_not_fought(api: Api) -> None:
    for _ in range(layouts.REPAIRS):
        api.change(QUEUE, STRICT)
        assert (await api.lay_out()).changed
    api.change(QUEUE, STRICT)
    for _ in range(2):
        report = await api.lay_out()
        assert (api.calls, said(report)) == ([], ["RepeatedDrift"])
        assert "spec.queueingStrategy" in report.problems[0].message
