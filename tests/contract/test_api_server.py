"""The real API server: it takes our CRDs and policies, every good example, and refuses every bad one that it can."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from gpubank.domain import contract
from gpubank.domain.contract import WorkloadContract
from gpubank.lab import Lab, LabError
from gpubank.lab.access import Api, namespace, wait_until
from gpubank.schema import KINDS, admission_policies, crds, priority_policies
from tests.contract.judged import Body, only_in, path_in, posted, warnings_of
from tests.data.bad_examples import BAD, Bad, By
from tests.data.good_examples import GOOD, PUBLISHED

NAMESPACE = "api-server-test"
HTTP = contract.CHECKPOINT_TRANSPORT_ANNOTATION
STORAGE = contract.CHECKPOINT_STORAGE_ANNOTATION
ENDPOINT = contract.CHECKPOINT_ENDPOINT_ANNOTATION
RETRYABLE = {contract.RETRYABLE_LABEL: "true"}
Post = Callable[[Body], str | None]


@pytest.fixture(scope="module")
def api(lab: Lab) -> Iterator[Api]:
    """A client of a server that has our CRDs, two pools, and the admission policies for this test's namespace."""
    pools = [a_pool("strict"), a_pool("lax", maxTermination="5m")]
    policies = [_only_here(manifest) for manifest in admission_policies()]
    with lab.api() as client:
        client.apply_all([namespace(NAMESPACE), *crds(), *pools, *policies])
        try:
            _await_policies(client)
            yield client
        finally:
            for manifest in [*pools, *policies]:
                client.request("DELETE", client.path_of(manifest))


def a_pool(name: str, **limits: Any) -> Body:
    limits = {"maxTermination": "60s", **limits}
    return {**GOOD["GPUPool"], "metadata": {"name": name}, "spec": {"capacity": 8, "limits": limits}}


def _only_here(manifest: Body) -> Body:
    return only_in(NAMESPACE, manifest)


def _await_policies(api: Api) -> None:
    """Wait until each policy judges: the server reads new ones, and new parameters, in the background."""
    probes = (
        a_job(labels={}),
        a_job(labels=RETRYABLE, annotations={contract.ELASTIC_JOB_ANNOTATION: "true"}),
        a_job(labels=RETRYABLE, seconds=61),
        a_job(labels=RETRYABLE, seconds=301, pool="lax"),
        a_pod(),
        a_deployment(),
        _apart(a_job(labels={}, template={"labels": {contract.QUEUE_LABEL: "strict-borrow"}})),
    )
    wait_until(lambda: all(_posted(api, probe) for probe in probes), 30, "admission policies in force")


def _posted(api: Api, body: Body) -> str | None:
    return posted(api, NAMESPACE, body)


@pytest.fixture
def post(api: Api) -> Post:
    """Create an object in a dry run; what the server says against it, or None."""
    return lambda body: _posted(api, body)


# The kinds --------------------------------------------------------------------------------------------------


def test_every_crd_is_structural_and_established(api: Api) -> None:
    for definition in crds():
        conditions = {
            each["type"]: each["status"] for each in api.request("GET", api.path_of(definition))["status"]["conditions"]
        }
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize(
    "body", [*GOOD.values(), *PUBLISHED], ids=lambda body: f"{body['kind']}-{body['metadata']['name']}"
)
def test_a_good_example_is_accepted(post: Post, body: Body) -> None:
    here = deepcopy(body)
    here["metadata"].pop("namespace", None)
    assert post(here) is None


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_example_is_refused_where_a_schema_can_say_so(post: Post, bad: Bad) -> None:
    refusal = post(bad.body)
    if bad.by is By.MODELS:
        assert refusal is None, "the server can say this too: mark the row so"
    else:
        assert refusal is not None
        assert any(word in refusal for word in (" 422:", " 400:")), refusal


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_the_defaults_of_the_server_are_those_of_the_model(api: Api, kind: Any) -> None:
    body = deepcopy(GOOD[kind.name])
    stored = api.request("POST", path_in(NAMESPACE, kind.name), params={"dryRun": "All"}, json=body)
    assert kind.model.from_wire(stored).spec == kind.model.from_wire(body).spec
    assert kind.model.from_wire(body).to_wire()["spec"].keys() >= stored["spec"].keys()


# Borrow queues ----------------------------------------------------------------------------------------------


def a_job(
    *,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    template: Body | None = None,
    seconds: int | None = None,
    pool: str = "strict",
    side: str = "-borrow",
) -> Body:
    spec: Body = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    if seconds is not None:
        spec["terminationGracePeriodSeconds"] = seconds
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "job",
            "labels": {contract.QUEUE_LABEL: f"{pool}{side}", **labels},
            "annotations": annotations or {},
        },
        "spec": {"template": {"metadata": template or {}, "spec": spec}},
    }


def a_pod(owner: Body | None = None) -> Body:
    metadata: Body = {"name": "pod", "labels": {contract.QUEUE_LABEL: "strict-borrow", **RETRYABLE}}
    if owner:
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
        metadata["ownerReferences"] = [{**reference, **{key: owner["metadata"][key] for key in ("name", "uid")}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def a_deployment(side: str = "-borrow") -> Body:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "labels": {contract.QUEUE_LABEL: f"strict{side}"}},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }


def a_stateful_set() -> Body:
    return {**deepcopy(a_deployment()), "kind": "StatefulSet"}


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({contract.WORKLOAD_TYPE_LABEL: "training"}, {}, id="training-alone"),
        pytest.param({contract.WORKLOAD_TYPE_LABEL: "batch"}, {}, id="batch-alone"),
        pytest.param(RETRYABLE, {}, id="retryable"),
        pytest.param({contract.RETRYABLE_LABEL: "false"}, {}, id="not-retryable"),
        pytest.param({contract.RETRYABLE_LABEL: "yes"}, {}, id="malformed-retryable"),
        pytest.param({contract.WORKLOAD_TYPE_LABEL: "notebook"}, {}, id="notebook"),
        pytest.param({contract.WORKLOAD_TYPE_LABEL: "inference", **RETRYABLE}, {}, id="inference"),
        pytest.param({contract.CAPACITY_ROLE_LABEL: "serving-floor", **RETRYABLE}, {}, id="role"),
        pytest.param({}, {HTTP: "http", STORAGE: "s3://b/r"}, id="checkpointable"),
        pytest.param({}, {HTTP: "annotation", STORAGE: "file:///r"}, id="annotation-transport"),
        pytest.param({}, {HTTP: "ftp", STORAGE: "s3://b/r"}, id="malformed-transport"),
        pytest.param({}, {HTTP: "http"}, id="no-storage"),
        pytest.param({}, {HTTP: "http", STORAGE: "bucket"}, id="malformed-storage"),
        pytest.param({}, {STORAGE: "s3://b/r"}, id="no-transport"),
        pytest.param({}, {HTTP: "exec", STORAGE: "s3://b/r"}, id="exec-without-command"),
        pytest.param({}, {HTTP: "exec", STORAGE: "s3://b/r", ENDPOINT: "/save"}, id="exec"),
    ],
)
def test_the_server_and_the_contract_agree_on_who_may_borrow(
    post: Post, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    may = WorkloadContract.of(labels, annotations).reclaim_class.may_borrow
    on_job, on_template = (
        post(a_job(labels=labels, annotations=annotations)),
        post(a_job(labels={}, template={"labels": labels, "annotations": annotations})),
    )
    assert (on_job is None, on_template is None) == (may, may), (on_job, on_template)


def test_the_jobs_own_words_come_before_its_templates(post: Post) -> None:
    assert post(a_job(labels={contract.RETRYABLE_LABEL: "false"}, template={"labels": RETRYABLE})) is not None


def test_the_own_queue_asks_nothing(post: Post) -> None:
    assert post(a_job(labels={}, side="", seconds=3600)) is None
    assert post(a_deployment(side="")) is None


def test_pods_enter_no_borrow_queue_without_what_they_belong_to(post: Post) -> None:
    queued = {contract.QUEUE_LABEL: "strict-borrow"}
    remedies = (f"label {contract.QUEUE_LABEL} on the Job itself", "only what can be suspended borrows")
    for body, remedy in zip((a_job(labels=RETRYABLE), a_stateful_set()), remedies, strict=True):
        alone = _apart(body)
        alone["spec"]["template"]["metadata"] = {"labels": queued | {"a": "b"}}
        refusal = str(post(alone))
        assert f"pods of this {body['kind']} would enter the borrow queue strict-borrow each by itself" in refusal
        assert remedy in refusal
    # The Job is in the queue itself, and its pods say so too; own queues take pods in whatever way.
    assert post(a_job(labels=RETRYABLE, template={"labels": queued})) is None
    assert post(_apart(a_job(labels={}, template={"labels": {contract.QUEUE_LABEL: "strict"}}))) is None


def test_a_refusal_says_what_to_do(post: Post) -> None:
    refusal = post(a_job(labels={}))
    assert refusal is not None
    assert "platform.aik8s.run/retryable=true" in refusal
    assert "own queue" in refusal


@pytest.mark.parametrize("name", [contract.MIN_PARALLELISM_ANNOTATION, contract.ELASTIC_JOB_ANNOTATION])
def test_partial_and_elastic_jobs_never_borrow(post: Post, name: str) -> None:
    refusal = post(a_job(labels=RETRYABLE, annotations={name: "1"}))
    assert refusal is not None
    assert "a loan is whole" in refusal


@pytest.mark.parametrize(
    ("pool", "seconds", "fine"),
    [
        ("strict", None, True),
        ("strict", 60, True),
        ("strict", 61, False),
        ("lax", 61, True),
        ("lax", 300, True),
        ("lax", 301, False),
    ],
)
def test_termination_is_judged_by_the_limit_of_the_queues_own_pool(
    post: Post, pool: str, seconds: int | None, fine: bool
) -> None:
    refusal = post(a_job(labels=RETRYABLE, seconds=seconds, pool=pool))
    assert (refusal is None) == fine
    assert fine or "maxTermination" in str(refusal)


def test_the_pods_of_a_borrowing_job_come_in(api: Api, post: Post) -> None:
    job = a_job(labels=RETRYABLE)
    job["metadata"]["namespace"] = NAMESPACE
    stored = api.apply(job)  # Kueue's webhook looks the owner up, so it must be there
    try:
        assert post(a_pod(owner=stored)) is None
    finally:
        api.request("DELETE", api.path_of(job), params={"propagationPolicy": "Background"})


@pytest.fixture
def stored_job(api: Api) -> Iterator[Body]:
    """A borrowing job that is there, suspended by Kueue."""
    job = a_job(labels=RETRYABLE, seconds=60, template={"labels": {contract.QUEUE_LABEL: "strict-borrow"}})
    job["metadata"] |= {"name": "stored", "namespace": NAMESPACE}
    yield api.apply(job)
    api.request("DELETE", api.path_of(job), params={"propagationPolicy": "Background"})


def patched(api: Api, job: Body, change: Body, *, dry: bool = True) -> str | None:
    """Merge a change into a stored job; return what the server says against it, or None."""
    try:
        api.request(
            "PATCH",
            api.path_of(job),
            params={"dryRun": "All"} if dry else {},
            content=json.dumps(change),
            headers={"content-type": "application/merge-patch+json"},
        )
    except LabError as error:
        return str(error)
    return None


def test_a_job_that_is_there_does_not_leave_its_pods_behind_in_the_queue(api: Api, stored_job: Body) -> None:
    left = {"metadata": {"labels": {contract.QUEUE_LABEL: None}}}
    assert "each by itself" in str(patched(api, stored_job, left))


def test_a_job_that_lost_its_class_while_it_waited_does_not_start_but_can_always_be_stopped(
    api: Api, stored_job: Body
) -> None:
    assert stored_job["spec"]["suspend"] is True
    assert patched(api, stored_job, {"spec": {"suspend": False}}) is None
    no_class = {"metadata": {"labels": {contract.RETRYABLE_LABEL: None}}}
    assert patched(api, stored_job, no_class, dry=False) is None
    assert "says how it can be stopped" in str(patched(api, stored_job, {"spec": {"suspend": False}}))
    assert patched(api, stored_job, {"spec": {"suspend": True}}) is None


def test_a_limit_that_was_lowered_later_holds_nobody_up(api: Api, stored_job: Body) -> None:
    newcomer = a_job(labels=RETRYABLE, seconds=60)
    api.apply(a_pool("strict", maxTermination="10s"))
    try:
        wait_until(lambda: "maxTermination" in str(_posted(api, newcomer)), 30, "the lowered limit in force")
        assert patched(api, stored_job, {"spec": {"suspend": False}}) is None
    finally:
        api.apply(a_pool("strict"))
        wait_until(lambda: _posted(api, newcomer) is None, 30, "the old limit in force")


def test_the_servers_type_checker_finds_nothing_in_the_policies(api: Api) -> None:
    assert warnings_of(api, admission_policies()) == []


def test_nothing_else_borrows(post: Post) -> None:
    for body in (a_pod(), a_deployment()):
        refusal = post(body)
        assert refusal is not None
        assert "only what can be suspended borrows" in refusal


# Parameters that cannot be found --------------------------------------------------------------------------------


@pytest.fixture
def lost(api: Api) -> Iterator[None]:
    """The policies once more, with parameters of a kind that the server does not know, as after its start."""
    policies = [_astray(_only_here(each)) for each in (*admission_policies(), *priority_policies())]
    api.apply_all(policies)
    queued = [_of_nobody(each) for each in (a_job(labels={}), a_pod(), a_deployment())]
    try:
        wait_until(
            lambda: all("Nowhere" in (_posted(api, each) or "") for each in queued), 30, "policies that are lost"
        )
        yield
    finally:
        for manifest in policies:
            api.request("DELETE", api.path_of(manifest))
        wait_until(lambda: not any("Nowhere" in (_posted(api, each) or "") for each in queued), 30, "their end")


def _astray(manifest: Body) -> Body:
    astray = deepcopy(manifest)
    astray["metadata"]["name"] = f"astray-{astray['metadata']['name']}"
    if "policyName" in astray["spec"]:
        astray["spec"]["policyName"] = f"astray-{astray['spec']['policyName']}"
    if "paramKind" in astray["spec"]:
        astray["spec"]["paramKind"]["kind"] = "Nowhere"
    return astray


def _of_nobody(body: Body) -> Body:
    """The same in no queue of the bank's, but in one."""
    return {**body, "metadata": {**body["metadata"], "labels": {contract.QUEUE_LABEL: "somebody-elses"}}}


def _apart(body: Body) -> Body:
    """The same in no queue itself; a Job without any label would be given those of its pod template."""
    return {**body, "metadata": {**body["metadata"], "labels": {"a": "b"}}}


def _unqueued(body: Body) -> Body:
    return {**body, "metadata": {**body["metadata"], "labels": {}}}


@pytest.mark.usefixtures("lost")
@pytest.mark.parametrize("body", [a_job(labels={}), a_pod(), a_deployment()], ids=lambda body: str(body["kind"]))
def test_policies_that_cannot_judge_keep_nothing_out_that_is_in_no_queue(post: Post, body: Body) -> None:
    assert post(_unqueued(body)) is None


@pytest.fixture
def queued_job(api: Api) -> Iterator[Body]:
    """A job that was in a queue before the policies were lost."""
    job = _of_nobody(a_job(labels={}))
    job["metadata"] |= {"name": "queued", "namespace": NAMESPACE}
    yield api.apply(job)
    api.request("DELETE", api.path_of(job), params={"propagationPolicy": "Background"})


def test_policies_that_cannot_judge_let_kueue_change_what_is_in_a_queue(api: Api, queued_job: Body, lost: None) -> None:
    assert patched(api, queued_job, {"metadata": {"annotations": {"told": "by-kueue"}}}) is None
