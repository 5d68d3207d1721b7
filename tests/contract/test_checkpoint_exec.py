"""The exec transport through the API server's WebSocket protocol, played by a small server of our own.

A real kubelet behind it is the node agent's business; here the frames, the exit codes and the limits are.
"""

import asyncio
import json
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiohttp import WSMsgType, web
from lightkube import AsyncClient, KubeConfig

from gpubank.adapters.checkpoint import ExecHook, LightkubePods
from gpubank.domain.checkpoint import MAX_ANSWER_BYTES, CheckpointState, CheckpointTarget
from gpubank.domain.contract import Transport
from gpubank.domain.errors import BackendError, ConflictError

UID = "pod-uid-1"
SOON = timedelta(seconds=30)


def as_json(body: object, status: int = 200) -> web.Response:
    """Answer like an API server, whose content type names no charset."""
    return web.Response(body=json.dumps(body).encode(), status=status, content_type="application/json")


async def get_pod(call: web.Request) -> web.Response:
    if call.match_info["pod"] != "job-0":
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": "not found"}
        return as_json(status, status=404)
    metadata = {"name": "job-0", "namespace": "a", "uid": UID}
    containers = [{"name": "train", "image": "train"}, {"name": "other", "image": "other"}]
    return as_json({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}})


def not_there(program: str) -> dict[str, object]:
    """Say what a kubelet says of a program that runc does not find: no exit code, only words."""
    fact = "error executing command in container: failed to exec in container: OCI runtime exec failed: exec failed: "
    reason = f'unable to start container process: exec: "{program}": executable file not found in $PATH'
    message = f"Internal error occurred: {fact}{reason}"
    details = {"causes": [{"message": message}]}
    status = {"status": "Failure", "reason": "InternalError", "code": 500, "message": message, "details": details}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **status}


async def exec_in_pod(call: web.Request) -> web.StreamResponse:
    """Run the command here and tell output and exit code in the frames of v5.channel.k8s.io."""
    if call.query.get("container") != "train":
        status = {"kind": "Status", "status": "Failure", "code": 400, "message": "container not found"}
        return as_json(status, status=400)
    socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
    await socket.prepare(call)
    command = call.query.getall("command")
    if shutil.which(command[0]) is None:
        await socket.send_bytes(b"\x03" + json.dumps(not_there(command[0])).encode())
        return socket
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        stdout, stderr = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    for channel, content in ((1, stdout), (2, stderr)):
        for start in range(0, len(content), 30_000):
            await socket.send_bytes(bytes([channel]) + content[start : start + 30_000])
    ended: dict[str, object] = {"metadata": {}, "status": "Success"}
    if process.returncode:
        causes = [{"reason": "ExitCode", "message": str(process.returncode)}]
        ended = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    await socket.send_bytes(b"\x03" + json.dumps(ended).encode())
    async for message in socket:
        if message.type is WSMsgType.CLOSE:
            break
    return socket


@pytest.fixture
async def pods() -> AsyncIterator[LightkubePods]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/a/pods/{pod}", get_pod)
    app.router.add_route("*", "/api/v1/namespaces/a/pods/{pod}/exec", exec_in_pod)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    client = AsyncClient(config=KubeConfig.from_dict(config), trust_env=False)
    yield LightkubePods(client)
    await client.close()
    await runner.cleanup()


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


async def test_output_and_exit_code_come_through(pods: LightkubePods) -> None:
    code = "import sys; print('log'); print('{}'); print('oops', file=sys.stderr); sys.exit(75)"
    result = await pods.run("a", "job-0", uid=UID, container="", command=python(code), timeout=SOON)
    assert (result.exit_code, result.stdout, result.stderr) == (75, b"log\n{}\n", b"oops\n")
    done = await pods.run("a", "job-0", uid=UID, container="train", command=python("pass"), timeout=SOON)
    assert (done.exit_code, done.stdout) == (0, b"")


async def test_only_the_end_of_an_endless_output_is_kept(pods: LightkubePods) -> None:
    code = "print('x' * 1_000_000); print('last')"
    result = await pods.run("a", "job-0", uid=UID, container="", command=python(code), timeout=SOON)
    assert len(result.stdout) == MAX_ANSWER_BYTES
    assert result.stdout.endswith(b"x\nlast\n")


async def test_command_that_does_not_end_is_a_failure_that_may_pass(pods: LightkubePods) -> None:
    with pytest.raises(BackendError, match="did not end within"):
        await pods.run(
            "a",
            "job-0",
            uid=UID,
            container="",
            command=python("import time; time.sleep(60)"),
            timeout=timedelta(seconds=0.5),
        )


async def test_pod_with_another_uid_or_none_is_a_conflict_and_nothing_runs(pods: LightkubePods) -> None:
    for pod, uid in (("job-0", "pod-uid-2"), ("job-1", UID)):
        with pytest.raises(ConflictError, match="is gone"):
            await pods.run("a", pod, uid=uid, container="", command=["/bin/false"], timeout=SOON)


async def test_refused_upgrade_is_a_failure_that_may_pass(pods: LightkubePods) -> None:
    with pytest.raises(BackendError, match="pod a/job-0"):
        await pods.run("a", "job-0", uid=UID, container="other", command=["/bin/true"], timeout=SOON)


async def test_program_that_is_not_there_has_failed_for_good(pods: LightkubePods) -> None:
    target = CheckpointTarget(
        namespace="a", pod="job-0", uid=UID, transport=Transport.EXEC, endpoint="no-such-hook", storage="file:///x"
    )
    answer = await ExecHook(pods).answer(target, "r-1")
    assert answer is not None
    assert answer.state is CheckpointState.FAILED
    assert "executable file not found" in answer.message


async def test_hook_reads_the_answer_of_the_command(pods: LightkubePods) -> None:
    code = """print('saving...'); print('{"state": "durable", "step": 7, "trainerUID": "pod-uid-1"}')"""
    endpoint = shlex.join(python(code))
    target = CheckpointTarget(
        namespace="a", pod="job-0", uid=UID, transport=Transport.EXEC, endpoint=endpoint, storage="file:///x"
    )
    answer = await ExecHook(pods).answer(target, "r-1")
    assert answer is not None
    assert (answer.state, answer.step) == (CheckpointState.DURABLE, 7)
