"""Jobs that run real processes, and how they end."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpubank.domain.contract import (
    CHECKPOINT_ENDPOINT_ANNOTATION,
    CHECKPOINT_REQUEST_ANNOTATION,
    CHECKPOINT_STATUS_ANNOTATION,
    Side,
)
from gpubank.domain.facts import Mark, PoolFacts
from gpubank.simulation.clock import SystemClock, Timing
from gpubank.simulation.cluster import SimulatedCluster
from gpubank.simulation.workloads import JobState, JobView
from tests.contract.simulated_world import SimulatedWorld
from tests.contract.world import JobRequest, layout, the

QUICK = Timing(batch=0.1, retry=0.05, creation=0.01, start=0.01, eviction=0.01)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SimulatedWorld]:
    cluster = SimulatedCluster(SystemClock(), timing=QUICK, home=tmp_path / "pods")
    async with cluster.running():
        world = SimulatedWorld(cluster)
        await world.backend.lay_out(layout(world, "ads"))
        await world.add_nodes(8, 8)
        await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=16, revision=1)
        yield world


def script(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def view(world: SimulatedWorld, name: str) -> JobView:
    return next(each for each in world.simulated.list_jobs() if each.name == name)


def ends(world: SimulatedWorld, name: str) -> Callable[[PoolFacts], bool]:
    return lambda facts: view(world, name).state in (JobState.SUCCEEDED, JobState.FAILED)


async def test_a_command_runs_with_its_pods_environment_and_the_job_succeeds(
    world: SimulatedWorld, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    names = "$GPUBANK_HOOK_UID $GPUBANK_HOOK_PORT $JOB_COMPLETION_INDEX $GPUBANK_NODE_NAME $SEED"
    text = f'echo "{names}" > {told}; sleep 0.3'
    await world.submit_job(
        JobRequest("ads", "train", command=script(text), annotations={"lab.gpubank.dev/env": '{"SEED": "7"}'})
    )
    facts = await world.wait_until(lambda facts: told.exists() and told.read_text())
    (pod,) = the(facts, "train").pod_facts
    uid, port, index, node, seed = told.read_text().split()
    assert (uid, index, node, seed) == (pod.uid, "0", pod.node, "7")
    assert pod.annotations[CHECKPOINT_ENDPOINT_ANNOTATION] == f"http://127.0.0.1:{port}"
    assert pod.running
    facts = await world.wait_until(ends(world, "train"))
    assert view(world, "train").state is JobState.SUCCEEDED
    seen = the(facts, "train")
    assert (seen.finished, seen.reserved, seen.gone) == (True, False, True)
    assert not any(node.used for node in facts.nodes)


async def test_python_in_a_manifest_is_the_banks_own(world: SimulatedWorld, tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"import sys, pathlib; pathlib.Path({str(told)!r}).write_text(sys.executable)"
    await world.submit_job(JobRequest("ads", "train", command=["python", "-c", code]))
    await world.wait_until(ends(world, "train"))
    assert told.read_text() == str(Path(sys.executable).parent / "python")


async def test_a_job_is_tried_again_and_fails_beyond_its_backoff_limit(world: SimulatedWorld, tmp_path: Path) -> None:
    manifest = JobRequest("ads", "train", command=script(f"echo x >> {tmp_path}/tries; exit 3")).manifest(world)
    manifest["spec"]["backoffLimit"] = 2
    world.simulated.submit(manifest)
    facts = await world.wait_until(ends(world, "train"))
    assert view(world, "train").state is JobState.FAILED
    assert (tmp_path / "tries").read_text() == "x\n" * 3
    assert (the(facts, "train").finished, the(facts, "train").reserved) == (True, False)


async def test_a_command_that_does_not_exist_fails_the_job(world: SimulatedWorld) -> None:
    manifest = JobRequest("ads", "train", command=["/no/such/program"]).manifest(world)
    manifest["spec"]["backoffLimit"] = 0
    world.simulated.submit(manifest)
    await world.wait_until(ends(world, "train"))
    assert view(world, "train").state is JobState.FAILED


async def test_a_stopped_job_gets_sigterm_and_comes_back_with_a_new_pod(world: SimulatedWorld, tmp_path: Path) -> None:
    text = (
        f"trap 'echo term >> {tmp_path}/log; exit 7' TERM; echo start >> {tmp_path}/log; while :; do sleep 0.02; done"
    )
    await world.submit_job(JobRequest("ads", "train", command=script(text)))
    log = tmp_path / "log"
    seen = the(await world.wait_until(lambda facts: log.exists() and log.read_text() == "start\n"), "train")
    first = seen.pod_facts[0].uid
    mark = Mark(loan="loan/local/1", term=1, step="stop")
    await world.backend.stop(world.pool, seen.key, mark, seen=seen.version)
    seen = the(await world.wait_until(lambda facts: the(facts, "train").gone), "train")
    assert log.read_text() == "start\nterm\n"
    assert (view(world, "train").state, seen.finished) == (JobState.STOPPED, False)
    back = Mark(loan="loan/local/1", term=2, step="resume")
    await world.backend.resume(world.pool, seen.key, back, seen=seen.version)
    facts = await world.wait_until(lambda facts: log.read_text() == "start\nterm\nstart\n")
    assert the(facts, "train").pod_facts[0].uid != first
    assert view(world, "train").state is JobState.RUNNING


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(world: SimulatedWorld, tmp_path: Path) -> None:
    text = f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    await world.submit_job(JobRequest("ads", "train", command=script(text), termination_grace=1))
    await world.wait_until(lambda facts: (tmp_path / "up").exists())
    await world.delete_job("ads", "train")
    facts = await world.wait_until(lambda facts: not facts.workloads)
    assert sum(node.used for node in facts.nodes) == 8, "its GPUs are in use until it is gone"
    await world.wait_until(lambda facts: not any(node.used for node in facts.nodes))


async def test_pods_that_ended_well_give_their_quota_back(world: SimulatedWorld, tmp_path: Path) -> None:
    text = f'test "$JOB_COMPLETION_INDEX" = 0 || while ! test -e {tmp_path}/go; do sleep 0.02; done'
    await world.submit_job(JobRequest("ads", "train", pods=2, command=script(text)))
    facts = await world.wait_until(lambda facts: facts.workloads and the(facts, "train").gpus == 8)
    seen = the(facts, "train")
    assert (seen.pods, seen.gpus_per_pod, seen.finished, len(seen.pod_facts)) == (1, 8, False, 1)
    assert [queue.reserved for queue in facts.queues if queue.kind is Side.OWN] == [8]
    await world.submit_job(JobRequest("ads", "next"))
    await world.wait_until(lambda facts: the(facts, "next").placed)
    (tmp_path / "go").touch()
    await world.wait_until(ends(world, "train"))


async def test_completions_beyond_the_parallelism_run_one_after_the_other(
    world: SimulatedWorld, tmp_path: Path
) -> None:
    manifest = JobRequest("ads", "train", command=script(f"echo $JOB_COMPLETION_INDEX >> {tmp_path}/log")).manifest(
        world
    )
    manifest["spec"] |= {"parallelism": 1, "completions": 3}
    world.simulated.submit(manifest)
    await world.wait_until(ends(world, "train"))
    assert (tmp_path / "log").read_text() == "0\n1\n2\n"


async def test_a_request_annotation_reaches_the_process_and_its_answer_the_pod(
    world: SimulatedWorld, tmp_path: Path
) -> None:
    text = (
        'while ! test -e "$GPUBANK_HOOK_REQUEST_FILE"; do sleep 0.02; done;'
        ' cp "$GPUBANK_HOOK_REQUEST_FILE" "$GPUBANK_HOOK_STATUS_FILE"; sleep 30'
    )
    await world.submit_job(JobRequest("ads", "train", command=script(text)))
    facts = await world.wait_until(lambda facts: facts.workloads and the(facts, "train").placed)
    (pod,) = the(facts, "train").pod_facts
    assert world.simulated.annotate_pod(pod.uid, {CHECKPOINT_REQUEST_ANNOTATION: '{"id": "7"}'})
    facts = await world.wait_until(
        lambda facts: CHECKPOINT_STATUS_ANNOTATION in the(facts, "train").pod_facts[0].annotations
    )
    assert the(facts, "train").pod_facts[0].annotations[CHECKPOINT_STATUS_ANNOTATION] == '{"id": "7"}'
    found = world.simulated.pod_annotations(world.namespace("ads"), pod.name)
    assert found is not None
    assert found[0] == pod.uid
    assert not world.simulated.annotate_pod("no such pod", {})


async def test_a_cluster_that_ends_takes_its_processes_along_and_one_that_crashed_is_cleaned_up_after(
    tmp_path: Path,
) -> None:
    home = tmp_path / "pods"
    crashed = SimulatedCluster(SystemClock(), timing=QUICK, home=home)
    pid = tmp_path / "pid"
    block = crashed.running()
    await block.__aenter__()
    world = SimulatedWorld(crashed)
    await world.backend.lay_out(layout(world, "ads"))
    await world.add_nodes(8)
    await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=8, revision=1)
    await world.submit_job(JobRequest("ads", "train", command=script(f"echo $$ > {pid}; exec sleep 60")))
    await world.wait_until(lambda facts: pid.exists() and pid.read_text())
    survivor = int(pid.read_text())
    os.kill(survivor, 0)
    # Its successor starts on the same folder while the process still runs, as after a crash.
    async with SimulatedCluster(SystemClock(), timing=QUICK, home=home).running():
        with pytest.raises(ProcessLookupError):
            os.kill(survivor, 0)
    await block.__aexit__(None, None, None)


async def test_the_folder_of_its_own_goes_with_the_cluster() -> None:
    cluster = SimulatedCluster(SystemClock(), timing=QUICK)
    async with cluster.running():
        world = SimulatedWorld(cluster)
        await world.backend.lay_out(layout(world, "ads"))
        await world.add_nodes(8)
        await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=8, revision=1)
        await world.submit_job(
            JobRequest("ads", "train", command=script('pwd > "$GPUBANK_HOOK_STATUS_FILE"; sleep 60'))
        )
        facts = await world.wait_until(
            lambda facts: (
                facts.workloads
                and the(facts, "train").pod_facts
                and CHECKPOINT_STATUS_ANNOTATION in the(facts, "train").pod_facts[0].annotations
            )
        )
        assert the(facts, "train").pod_facts[0].ip == "127.0.0.1"
        home = cluster._own_home
        assert home is not None
        assert home.is_dir()
    assert not home.exists()
