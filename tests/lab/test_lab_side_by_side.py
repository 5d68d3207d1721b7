"""Two labs on one machine, and one whose servers crash."""

import uuid
from collections.abc import Iterator

import httpx2
import psycopg
import pytest

from gpubank.lab import Lab
from gpubank.lab.errors import LabError, StateError
from tests.lab.objects import Tenant
from tests.support.waiting import AFTER_AN_OUTAGE, until


@pytest.fixture(scope="module")
def second(lab: Lab) -> Iterator[Lab]:
    """A second lab beside the session's, for tests that break things."""
    second = Lab(f"second-{uuid.uuid4().hex[:6]}", nodes=2)
    second.up()
    yield second
    second.clean()


def test_two_labs_share_nothing(lab: Lab, second: Lab) -> None:
    with second.api() as api:
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "only-there"}})
    with lab.api() as api, pytest.raises(LabError, match="404"):
        api.request("GET", "/api/v1/namespaces/only-there")
    assert lab.is_up()
    assert second.is_up()


def test_a_lab_trusts_no_server_of_another(lab: Lab, second: Lab) -> None:
    for ours, theirs in ((lab, second), (second, lab)):
        with httpx2.Client(verify=ours.tls(), trust_env=False) as http:
            assert http.get(f"https://{ours.url('kube-apiserver')}/readyz").status_code == 200
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                http.get(f"https://{theirs.url('kube-apiserver')}/readyz")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("component", ["kueue", "kube-apiserver", "etcd"])
def test_a_job_is_admitted_after_a_server_crashed_and_came_back(second: Lab, component: str) -> None:
    second.kill(component)
    second.start(component)
    with second.api() as api:
        tenant = Tenant(api, own=8)
        tenant.submit("train", "own", complete_after="0s")
        until(lambda: tenant.admitted("train"), f"admission after {component} came back", AFTER_AN_OUTAGE)
        tenant.leave()


def test_a_user_without_rights_is_refused(second: Lab) -> None:
    with httpx2.Client(verify=second.tls("mallory"), trust_env=False) as http:
        assert http.get(f"https://{second.url('kube-apiserver')}/api/v1/nodes").status_code == 403


def test_postgres_joins_a_running_lab(second: Lab) -> None:
    with pytest.raises(StateError, match="--with postgres"):
        _ = second.postgres_url
    joined = Lab(second.name, extra=["postgres"])
    assert joined.up()
    with psycopg.connect(joined.postgres_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert second.is_up()
