"""The real API server on priorities: which classes work in a pool's queues may name, and whose pods are judged."""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import pytest

from gpubank.domain import contract
from gpubank.lab import Lab, LabError
from gpubank.lab.access import Api, namespace, wait_until
from gpubank.schema import crds, priority_policies
from tests.contract.judged import Body, only_in, path_in, warnings_of
from tests.contract.judged import posted as posted_in
from tests.contract.test_api_server import a_deployment, a_job, a_pod, a_pool

NAMESPACE = "priority-test"


def pools(*classes: str) -> list[Body]:
    return [a_pool("listed", allowedPriorityClasses=list(classes)), a_pool("open")]


@pytest.fixture(scope="module")
def api(lab: Lab) -> Iterator[Api]:
    """A client of a server with two pools, one of which lists classes, and policies that judge by them."""
    everything = [*pools("high", "low"), *map(partial(only_in, NAMESPACE), priority_policies())]
    with lab.api() as client:
        client.apply_all([namespace(NAMESPACE), *crds(), *everything])
        try:
            probes = (job("urgent"), a_deployment_of("urgent"), pod("urgent"))
            wait_until(
                lambda: all(REFUSAL in str(posted(client, probe)) for probe in probes), 30, "the policies in force"
            )
            yield client
        finally:
            for manifest in everything:
                client.request("DELETE", client.path_of(manifest))


def posted(api: Api, body: Body) -> str | None:
    return posted_in(api, NAMESPACE, body)


def job(priority: str, *, pool: str = "listed", side: str = "", of_template: bool = False) -> Body:
    labels = {contract.RETRYABLE_LABEL: "true"} | ({} if of_template or not priority else named(priority))
    body = a_job(labels=labels, pool=pool, side=side)
    if of_template:
        body["spec"]["template"]["spec"]["priorityClassName"] = priority
    return body


def named(priority: str) -> dict[str, str]:
    return {contract.PRIORITY_CLASS_LABEL: priority}


def a_deployment_of(priority: str) -> Body:
    body = deepcopy(a_deployment(side=""))
    body["metadata"]["labels"] = {contract.QUEUE_LABEL: "listed", **named(priority)}
    return body


def pod(priority: str) -> Body:
    body = deepcopy(a_pod())
    body["metadata"]["labels"] = {contract.QUEUE_LABEL: "listed", **named(priority)}
    return body


REFUSAL = "priority class urgent is none that pool listed allows (high, low); name one of them, or none"


@pytest.mark.parametrize("side", ["", "-borrow"])
def test_work_names_only_classes_that_its_pool_allows(api: Api, side: str) -> None:
    assert REFUSAL in str(posted(api, job("urgent", side=side)))
    assert REFUSAL in str(posted(api, job("urgent", side=side, of_template=True)))
    for fine in ("high", "low", ""):
        assert REFUSAL not in str(posted(api, job(fine, side=side)))


def test_services_and_bare_pods_are_judged_too(api: Api) -> None:
    assert REFUSAL in str(posted(api, a_deployment_of("urgent")))
    assert REFUSAL in str(posted(api, pod("urgent")))
    assert REFUSAL not in str(posted(api, a_deployment_of("low")))


def test_a_pool_that_lists_none_allows_any(api: Api) -> None:
    assert "is none that pool" not in str(posted(api, job("urgent", pool="open")))


def test_the_label_that_kueue_reads_first_decides(api: Api) -> None:
    body = job("high")
    body["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    assert REFUSAL not in str(posted(api, body))


def test_an_owner_that_somebody_writes_into_a_pod_keeps_it_from_no_judgement(api: Api) -> None:
    for version, kind in (("v1", "ConfigMap"), ("example.test/v1", "Robot")):  # kinds that Kueue does not look for
        forged = pod("urgent")
        owner = {"apiVersion": version, "kind": kind, "name": "any", "uid": "8f7c0b9a-0000-4000-8000-000000000000"}
        forged["metadata"]["ownerReferences"] = [owner | {"controller": True}]
        assert REFUSAL in str(posted(api, forged)), kind


def patched(api: Api, path: str, **labels: str) -> str | None:
    """Give an object other labels; return what the server says against it, or None."""
    merge = {"content-type": "application/merge-patch+json"}
    try:
        api.request("PATCH", path, content=json.dumps({"metadata": {"labels": labels}}), headers=merge)
    except LabError as error:
        return str(error)
    return None


def config_map(api: Api) -> str:
    """Make an owner that the garbage collector finds, and return its UID."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "any", "namespace": NAMESPACE}}
    uid: str = api.apply(body)["metadata"]["uid"]
    return uid


def test_a_pod_that_is_there_cannot_be_given_another_class_than_the_pool_allows(api: Api) -> None:
    path = path_in(NAMESPACE, "Pod")
    stored = api.request("POST", path, json=pod("low"))
    mine = f"{path}/{stored['metadata']['name']}"

    told = partial(patched, api, mine)
    try:
        assert REFUSAL in str(told(**named("urgent")))
        assert told(**named("high")) is None
        assert told(**{contract.QUEUE_LABEL: "open"}, **named("urgent")) is None
        assert REFUSAL in str(told(**{contract.QUEUE_LABEL: "listed"}))
    finally:
        api.request("DELETE", mine)


def test_kueue_may_write_queue_and_class_of_what_was_judged_into_its_pods(api: Api) -> None:
    owned = pod("")
    owned["metadata"]["labels"].pop(contract.PRIORITY_CLASS_LABEL)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "any", "uid": config_map(api), "controller": True}
    owned["metadata"]["ownerReferences"] = [owner]
    path = path_in(NAMESPACE, "Pod")
    api.request("POST", path, json=owned)
    mine = f"{path}/{owned['metadata']['name']}"
    try:
        assert patched(api, mine, **named("urgent")) is None
        assert REFUSAL in str(patched(api, mine, **named("urgent-too"))).replace("urgent-too", "urgent")
    finally:
        api.request("DELETE", mine)


def test_pods_of_what_runs_are_made_anew_after_the_pool_has_struck_their_class(api: Api) -> None:
    body = a_deployment_of("low")
    body["spec"]["replicas"] = 1
    body["spec"]["template"]["metadata"]["labels"] |= {contract.QUEUE_LABEL: "listed", **named("low")}
    path = path_in(NAMESPACE, "Deployment")

    def pods() -> set[str]:
        found = api.request("GET", path_in(NAMESPACE, "Pod"), params={"labelSelector": "a=b"})["items"]
        return {each["metadata"]["uid"] for each in found if "deletionTimestamp" not in each["metadata"]}

    try:
        api.request("POST", path, json=body)
        wait_until(lambda: len(pods()) == 1, 30, "the service's pod")
        (first,) = pods()
        api.apply_all(pools("high"))
        wait_until(lambda: "is none that pool" in str(posted(api, job("low"))), 30, "the shorter list in force")
        api.request("DELETE", path_in(NAMESPACE, "Pod"), params={"labelSelector": "a=b"})
        wait_until(lambda: len(pods()) == 1 and first not in pods(), 30, "a pod in the first one's place")
    finally:
        api.apply_all(pools("high", "low"))
        api.request("DELETE", f"{path}/{body['metadata']['name']}")
        wait_until(lambda: posted(api, job("low")) is None, 30, "the longer list in force")


def test_the_servers_type_checker_finds_nothing_in_the_policies(api: Api) -> None:
    assert warnings_of(api, priority_policies()) == []
