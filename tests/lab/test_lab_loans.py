"""What the bank's design stands on, on real Kueue: a loan moves nominal quota, and only the bank ever stops a job."""

from gpubank.lab.access import Api
from tests.lab.objects import Tenants
from tests.support.waiting import until


def test_a_loan_is_lent_recalled_and_resumed(api: Api, tenant: Tenants) -> None:
    borrower, lender = tenant(own=0, borrow=0), tenant(own=16, borrow=0)

    borrower.submit("train", "borrow")
    until(lambda: bool(borrower.workload("train")), "a Workload for the borrower's job")
    assert not borrower.reserved("train")

    lender.set_quota("own", 8)
    borrower.set_quota("borrow", 8)
    until(lambda: borrower.admitted("train"), "the loan's admission")
    until(lambda: [each["status"].get("phase") for each in borrower.pods("train")] == ["Running"], "its pod")

    lender.submit("gang", "own", pods=2)
    borrower.set_quota("borrow", 0)
    assert borrower.admitted("train"), "lowering a quota below its use must evict nobody"
    borrower.set_active("train", False)
    until(lambda: not borrower.reserved("train") and not borrower.pods("train"), "the borrower to stop")
    assert not lender.admitted("gang")

    lender.set_quota("own", 16)
    until(lambda: lender.admitted("gang"), "the owner's admission")
    assert not borrower.reserved("train")

    api.request(
        "DELETE",
        f"/apis/batch/v1/namespaces/{lender.namespace}/jobs/gang",
        params={"propagationPolicy": "Background"},
    )
    until(lambda: not lender.pods("gang"), "the end of the gang")
    lender.set_quota("own", 8)
    borrower.set_active("train", True)
    borrower.set_quota("borrow", 8)
    until(lambda: borrower.admitted("train"), "the borrower's return")


def test_a_job_of_more_than_gpus_enters_a_queue_that_knows_only_gpus(api: Api, tenant: Tenants) -> None:
    group = tenant(own=8)
    group.submit("train", "own", gpus=8)
    until(lambda: group.admitted("train"), "admission of a job that asks for cpu and memory too")


def test_a_pod_completes_by_itself_only_when_it_asks_to(api: Api, tenant: Tenants) -> None:
    group = tenant(own=16)
    group.submit("long", "own")
    group.submit("short", "own", complete_after="1s")

    def phases(job: str) -> list[str | None]:
        return [each["status"].get("phase") for each in group.pods(job)]

    until(lambda: phases("short") == ["Succeeded"], "the short job's end")
    assert phases("long") == ["Running"]


def test_pods_of_a_deployment_wait_for_quota(api: Api, tenant: Tenants) -> None:
    group = tenant(own=8)
    template = {
        "metadata": {"labels": {"app": "serve"}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}},
                }
            ]
        },
    }
    api.request(
        "POST",
        f"/apis/apps/v1/namespaces/{group.namespace}/deployments",
        json={
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "serve", "labels": {"kueue.x-k8s.io/queue-name": "own"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "serve"}}, "template": template},
        },
    )

    def phases() -> list[str]:
        return sorted(str(each["status"].get("phase")) for each in group.pods())

    until(lambda: phases() == ["Pending", "Running"], "one replica within the quota and one that waits")
    gated = next(each for each in group.pods() if each["status"].get("phase") == "Pending")
    assert {"name": "kueue.x-k8s.io/admission"} in gated["spec"]["schedulingGates"]

    group.set_quota("own", 16)
    until(lambda: phases() == ["Running", "Running"], "the second replica")
