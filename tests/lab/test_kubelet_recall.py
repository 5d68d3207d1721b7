"""The bank recalls work that runs in real containers: hooks over every transport, and SIGTERM from a real kubelet.

The pod templates are those of the page for owners of training jobs.
"""

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lightkube import AsyncClient, KubeConfig

from gpubank.adapters.checkpoint import ExecHook, LightkubePods
from gpubank.adapters.kubernetes.kinds import WORKLOAD, Object
from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointState, CheckpointTarget
from gpubank.domain.contract import RETRYABLE_LABEL, WORKLOAD_TYPE_LABEL, Side, Transport
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase
from gpubank.hook.export import single_file
from gpubank.lab import Lab, podspec
from gpubank.lab.access import Manifest, documents
from gpubank.lab.components.containerd import POD_RANGE
from gpubank.lab.names import REAL_NODE
from gpubank.lab.postgres import Postgres
from tests.contract.world import job_of
from tests.support import paced, restricted
from tests.support.containers import (
    ContainerJob,
    RealBank,
    api_server_for_pods,
    documented,
    on_this_machine,
    real_pool,
    yaml_blocks,
)
from tests.support.realnode import PREFIX, ROOT, RealNode
from tests.support.running import running_bank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

PAGE = ROOT / "docs" / "how-to" / "make-training-recallable.md"
COMPONENTS = ("checkpoint-annotation", "checkpoint-exec")
CLASS = f"{PREFIX}h100-80gb"
POOL = 6
SHARE = 2
"""GPUs of one borrower; one borrower for each transport takes all of the pool."""

STEPS = 300
STEP_SECONDS = 0.5
"""Until the recall is over: so the run is in the middle whenever it comes, however slow the machine is."""

STOPPED = 143
KILLED = 137
DEAF_GRACE = 3
DEAF = """
import fcntl, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
alive = (folder / "alive").open("w")
fcntl.flock(alive, fcntl.LOCK_EX)
signal.signal(signal.SIGTERM, lambda *_: print("heard SIGTERM and goes on", flush=True))
print("begins", flush=True)
while not (folder / "done").exists():
    time.sleep(0.1)
"""
IDLES = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit()); signal.pause()"
SAYS_WHICH = shlex.join(
    ["python", "-c", "import json, os; print(json.dumps({'state': 'failed', 'message': os.environ['WHICH']})); exit(1)"]
)
WAITS = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.1)"


@pytest.fixture(scope="module")
def gpus(kubelet_lab: Lab, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """The real node, with GPUs of one class."""
    with kubelet_lab.api() as api:
        node = RealNode(kubelet_lab, api, tmp_path_factory.mktemp("node"), nvml_library)
        try:
            for index in range(POOL):
                node.facts.gpu(f"GPU-{index:08d}-0000-4000-8000-000000000000")
            node.start_plugin()
            node.sees({CLASS.removeprefix(PREFIX): POOL})
            yield node
        finally:
            node.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bank(
    gpus: RealNode, postgres_server: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealBank]:
    """The bank with the rights that the two components give it, and the pool: all of it is vision's, and lent."""
    folder = tmp_path_factory.mktemp("bank")
    async with running_bank(gpus.lab, postgres_server.create_database(), folder, gated=False) as running:
        for each in COMPONENTS:
            gpus.lab.apply(documents(ROOT / "manifests" / "components" / each / "rbac.yaml"))
        async with real_pool(running, tmp_path_factory.mktemp("pool"), CLASS) as bank:
            bank.audit_every = 0.1
            await bank.agree((POOL,), vision=POOL, search=0)
            yield bank


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the training run comes to if nobody interrupts it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = ["--storage", str(folder), "--steps", str(STEPS), "--out", str(folder / "result.json")]
    subprocess.run([sys.executable, str(paced.TRAINER), *arguments], check=True, stdout=subprocess.DEVNULL)
    return read(folder / "result.json")


def prepare(bank: RealBank, lab: Lab) -> None:
    """Make what the page takes for granted: a volume, the hook in the image, the sidecar's rights."""
    for transport in Transport:
        (bank.folder / "checkpoints" / transport).mkdir(parents=True)
    (bank.folder / "gpubank_hook.py").write_text(single_file())
    space = bank.world.namespace(bank.name("search"))
    rights = [each for each in yaml_blocks(PAGE.read_text().replace("search-jobs", space)) if "kind" in each]
    assert [each["kind"] for each in rights] == ["ServiceAccount", "Role", "RoleBinding"]
    lab.apply(rights)


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def trainer(bank: RealBank, transport: str, api_server: dict[str, str]) -> Manifest:
    """Return the page's pod template for a transport, with the example's trainer in it."""
    folder, hook = bank.folder, bank.folder / "gpubank_hook.py"
    arguments = [*("--steps", str(STEPS)), *("--step-time", str(STEP_SECONDS)), *("--log-every", "1")]
    command = [paced.__file__, str(folder / "hurry"), *arguments, "--out", str(result(bank, transport))]
    own = podspec.python_pod(command, read_only=[ROOT], writable=[folder], environment=api_server, folder=ROOT)
    replaced = {
        "/checkpoints": str(folder / "checkpoints"),
        "/run-7": f"/{transport}",
        "/train/gpubank_hook.py": str(hook),
        "nvidia.com/gpu: 8": f"{CLASS}: {SHARE}",
    }
    shown = documented(PAGE, transport, replaced)
    return on_this_machine(shown, own, {"checkpoints": folder / "checkpoints"})


def result(bank: RealBank, transport: str) -> Path:
    return bank.folder / f"{transport}.json"


def borrower(bank: RealBank, name: str, template: Manifest, **labels: str) -> ContainerJob:
    kind = {WORKLOAD_TYPE_LABEL: "training", **labels}
    return ContainerJob(bank.name("search"), name, side=Side.BORROW, labels=kind, template=template)


async def owners_batch(bank: RealBank, name: str) -> None:
    """Have vision want everything back, for a job that ends when it is told to."""
    (bank.folder / name).mkdir()
    spec = podspec.python_pod(
        ["-c", WAITS, str(bank.folder / name / "done")], resources={CLASS: POOL}, writable=[bank.folder]
    )
    await bank.submit(ContainerJob(bank.name("vision"), name, template={"spec": spec}), "vision")


async def running(bank: RealBank, job: str, container: str, line: str) -> Object:
    """See a job's latest container print a line; return its pod."""
    await bank.placed(job)

    async def look() -> Object | None:
        for pod in bank.pods.of(job)[-1:]:
            if line in await bank.pods.log(pod, container):
                return pod
        return None

    return await bank.until(look, f"{job} says {line!r}", every=0.5)


async def ended(bank: RealBank, pod: Object, container: str) -> Object:
    """See a container end; return how."""
    name = pod["metadata"]["name"]

    async def look() -> Object | None:
        status = bank.pods.now(pod)["status"]
        statuses = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        (found,) = [each for each in statuses if each["name"] == container]
        state: Object | None = found["state"].get("terminated")
        return state

    return await bank.until(look, f"container {container} of {name} has ended")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_recall_reaches_containers_over_every_transport_and_they_go_on_from_their_checkpoints(
    bank: RealBank, gpus: RealNode, undisturbed: dict[str, Any]
) -> None:
    prepare(bank, gpus.lab)
    jobs = {transport: f"train-{transport}" for transport in Transport}
    async with api_server_for_pods(gpus.lab) as api_server:
        for transport, job in jobs.items():
            template = trainer(bank, transport, api_server)
            await bank.submit(borrower(bank, job, template, **{RETRYABLE_LABEL: "false"}), "search")
        first = {transport: await running(bank, job, "train", "step ") for transport, job in jobs.items()}
        logs = {each: asyncio.create_task(bank.pods.whole_log(pod, "train")) for each, pod in first.items()}

        await owners_batch(bank, "batch")
        await bank.placed("batch")
        parked = {transport: await bank.loan_in(job, LoanPhase.PARKED) for transport, job in jobs.items()}
        (batch,) = bank.pods.of("batch")
        assert batch["spec"]["nodeName"] == REAL_NODE
        for transport, pod in first.items():
            checkpoint = parked[transport].checkpoint
            assert checkpoint is not None
            assert checkpoint.uri.startswith(f"file://{bank.folder}/checkpoints/{transport}/")
            await see_sigterm_obeyed(bank, pod, await logs[transport], checkpoint.step)
        await see_each_asked_by_its_transport(gpus.lab, bank, first)

        await bank.settled()
        await bank.finish("vision", "batch")
        for job in jobs.values():
            await running(bank, job, "train", "resumed from step ")
        (bank.folder / "hurry").touch()
        for transport, job in jobs.items():
            closed = await bank.loan_in(job, LoanPhase.CLOSED)
            assert [term.term for term in closed.history] == [1, 2]
            checkpoint = parked[transport].checkpoint
            assert checkpoint == closed.history[0].checkpoint
            assert checkpoint is not None
            before, after = bank.pods.of(job)
            assert before["metadata"]["uid"] != after["metadata"]["uid"]
            assert (await ended(bank, after, "train"))["exitCode"] == 0
            log = await bank.pods.log(after, "train")
            assert log.startswith(f"resumed from step {checkpoint.step} ")
            came_to = read(result(bank, transport))
            assert came_to["steps"] > checkpoint.step > 0
            assert came_to == undisturbed | {"weights": f"{transport}.npz"}
    await returned(bank)
    assert_admitted_by_class(await workloads(bank), {"batch": POOL, **dict.fromkeys(jobs.values(), SHARE)})


async def see_sigterm_obeyed(bank: RealBank, pod: Object, log: str, saved: int) -> None:
    """See that a container ended by itself because of SIGTERM, after its checkpoint and before it was to be killed."""
    lines = log.splitlines()
    assert lines[-1].startswith("stopped by SIGTERM after step "), lines[-3:]
    assert int(lines[-1].split()[-1]) >= saved
    assert any(line.startswith(f"checkpoint at step {saved} written: ") for line in lines)
    how = await ended(bank, pod, "train")
    assert how["exitCode"] == STOPPED
    assert moment(how["finishedAt"]) < bank.pods.deadline(pod)


async def see_each_asked_by_its_transport(lab: Lab, bank: RealBank, first: dict[Transport, Object]) -> None:
    names = {transport: pod["metadata"]["name"] for transport, pod in first.items()}
    made = set(restricted.calls(lab))
    assert {call.name for call in made if call.resource == "pods/exec"} == {names[Transport.EXEC]}
    patched = {call.name for call in made if (call.process, call.resource, call.verb) == ("worker", "pods", "patch")}
    assert patched == {names[Transport.ANNOTATION]}
    assert (await ended(bank, first[Transport.ANNOTATION], "relay"))["exitCode"] == 0
    assert ip_address(first[Transport.HTTP]["status"]["podIP"]) in ip_network(POD_RANGE)


async def workloads(bank: RealBank) -> dict[str, Object]:
    """Return the Workloads of the pool by the names of their jobs."""
    found, _, _ = await bank.connection.page(WORKLOAD, selectors={})
    return {each["metadata"]["ownerReferences"][0]["name"]: each for each in found}


def assert_admitted_by_class(found: dict[str, Object], wanted: dict[str, int]) -> None:
    for job, count in wanted.items():
        (assignment,) = found[job]["status"]["admission"]["podSetAssignments"]
        assert assignment["resourceUsage"][CLASS] == str(count)


async def returned(bank: RealBank) -> None:
    """See every loan returned, and the books in balance."""

    async def look() -> bool:
        return not (await bank.books()).lines

    await bank.until(look, "no line is open")
    granted = [line for line in await bank.lines() if line.granted_at]  # an offer may have been withdrawn in time
    assert {line.state for line in granted} == {LineState.RETURNED}
    await bank.ledger.post(until=datetime.now(UTC))
    postings = await bank.ledger.postings(cluster=bank.world.cluster, pool=bank.world.pool)
    assert {posting.account for posting in postings} == {bank.name("vision"), bank.name("search")}
    assert sum(posting.gpu_ms for posting in postings) == 0
    await bank.settled()


async def test_a_trainer_that_ignores_sigterm_counts_as_there_until_the_kubelet_has_killed_it(bank: RealBank) -> None:
    folder = bank.folder / "deaf"
    folder.mkdir()
    spec = podspec.python_pod(
        ["-c", DEAF, str(folder)], resources={CLASS: POOL}, writable=[bank.folder], grace=DEAF_GRACE
    )
    await bank.submit(borrower(bank, "deaf", {"spec": spec}, **{RETRYABLE_LABEL: "true"}), "search")
    pod = await running(bank, "deaf", "main", "begins")
    log = asyncio.create_task(bank.pods.whole_log(pod, "main"))

    def too_early(facts: PoolFacts) -> bool:
        """Whether the bank takes the job for gone, or its GPUs for the owner's, while its process lives."""
        seen, owner = job_of(facts, "deaf"), job_of(facts, "batch-2")
        gone = seen is not None and seen.gone
        return (gone or (owner is not None and owner.reserved)) and lives(folder)

    async with bank.forbidden(too_early, "the GPUs of a process that lives are taken for free"):
        await owners_batch(bank, "batch-2")
        await bank.placed("batch-2")
    assert not lives(folder)
    assert (await log).splitlines() == ["begins", "heard SIGTERM and goes on"]
    how = await ended(bank, pod, "main")
    assert how["exitCode"] == KILLED
    end = moment(how["finishedAt"])
    assert end >= bank.pods.deadline(pod), "its grace was not over"
    line = (await bank.lines(job="deaf"))[0]
    assert line.ended_at is not None
    assert line.ended_at >= end
    (batch,) = bank.pods.of("batch-2")
    assert moment(batch["metadata"]["creationTimestamp"]) >= end

    await bank.finish("vision", "batch-2")
    again = await running(bank, "deaf", "main", "begins")
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]
    await bank.finish("search", "deaf")
    await bank.loan_in("deaf", LoanPhase.CLOSED)
    await returned(bank)


def lives(folder: Path) -> bool:
    """Whether a process holds the lock, which only its death lets go."""
    with (folder / "alive").open("r+") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def test_a_hook_command_runs_in_the_default_container_and_one_that_is_not_there_has_failed(
    gpus: RealNode,
) -> None:
    spec = podspec.python_pod(["-c", IDLES], environment={"WHICH": "first"})
    (first,) = spec["containers"]
    second = first | {"name": "second", "env": [*first["env"], {"name": "WHICH", "value": "second"}]}
    uid = gpus.run("two", spec | {"containers": [first, second]})
    await asyncio.to_thread(gpus.await_phase, "two", "Running")
    client = AsyncClient(config=KubeConfig.from_file(str(gpus.lab.kubeconfig)), trust_env=False)
    pods = LightkubePods(client)

    async def asked(command: str) -> CheckpointAnswer | None:
        target = CheckpointTarget(
            namespace="default", pod="two", uid=uid, transport=Transport.EXEC, endpoint=command, storage="file:///x"
        )
        return await ExecHook(pods).answer(target, "r-1")

    try:
        for command in ("no-such-program", "/no/such/program"):
            answer = await asked(command)
            assert answer is not None
            assert answer.state is CheckpointState.FAILED
            assert f'exec: "{command}": ' in answer.message
        assert which(await asked(SAYS_WHICH)) == "first"
        await pods.write("default", "two", uid=uid, annotations={"kubectl.kubernetes.io/default-container": "second"})
        assert which(await asked(SAYS_WHICH)) == "second"
    finally:
        await client.close()


def which(answer: CheckpointAnswer | None) -> str:
    assert answer is not None
    return answer.message
