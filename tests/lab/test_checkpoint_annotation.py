"""The annotation transport on a real API server: request, downward-API file, trainer, sidecar, answer."""

import asyncio
import base64
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.resources.core_v1 import Pod

from gpubank.adapters.checkpoint import AnnotationHook, FsspecStorage, LightkubePods, verify
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointRequest, CheckpointState, CheckpointTarget
from gpubank.domain.contract import CHECKPOINT_REQUEST_ANNOTATION, CHECKPOINT_STATUS_ANNOTATION, Transport
from gpubank.domain.errors import ConflictError
from gpubank.hook import Hook
from gpubank.lab import Lab

NAMESPACE = "checkpoint-annotation"
POD = "job-0"


def manifest(kind: str, name: str, version: str = "v1", **rest: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **rest}


def a_pod() -> dict[str, Any]:
    container = {"name": "train", "image": "train"}
    return manifest("Pod", POD, spec={"containers": [container], "nodeSelector": {"never": "scheduled"}})


@dataclass
class There:
    client: AsyncClient
    uid: str
    relay: list[str]
    """Command line of the sidecar, with credentials that may do no more than a trainer's may."""


@pytest.fixture
async def there(lab: Lab, tmp_path: Path) -> AsyncIterator[There]:
    with lab.api() as api:
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
        subject = {"kind": "ServiceAccount", "name": "trainer", "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "trainer"}
        for each in (
            manifest("ServiceAccount", "trainer"),
            manifest("Role", "trainer", "rbac.authorization.k8s.io/v1", rules=rules),
            manifest("RoleBinding", "trainer", "rbac.authorization.k8s.io/v1", subjects=[subject], roleRef=role),
        ):
            api.apply(each)
        token = api.request(
            "POST",
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/trainer/token",
            json={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        api.apply(a_pod())
    cluster = yaml.safe_load(lab.kubeconfig.read_text())["clusters"][0]["cluster"]
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (tmp_path / "token").write_text(token["status"]["token"])
    client = AsyncClient(config=KubeConfig.from_file(str(lab.kubeconfig)), trust_env=False)
    notes = await LightkubePods(client).read(NAMESPACE, POD)
    assert notes is not None
    relay = [
        *(sys.executable, "-m", "gpubank.hook", "relay", f"--pod={POD}", f"--namespace={NAMESPACE}", "--every=0.1"),
        *(f"--uid={notes.uid}", f"--status-file={tmp_path}/status", f"--api-server={cluster['server']}"),
        *(f"--ca-file={tmp_path}/ca.crt", f"--token-file={tmp_path}/token"),
    ]
    yield There(client, notes.uid, relay)
    await client.delete(Pod, POD, namespace=NAMESPACE, grace_period=0)
    await client.close()


async def as_kubelet(client: AsyncClient, path: Path) -> None:
    """Show the request annotation to the trainer, as a downward-API volume does."""
    while True:
        found = await client.get(Pod, POD, namespace=NAMESPACE)
        text = ((found.metadata and found.metadata.annotations) or {}).get(CHECKPOINT_REQUEST_ANNOTATION, "")
        scratch = path.with_suffix(".new")
        scratch.write_text(text)
        os.replace(scratch, path)
        await asyncio.sleep(0.1)


def train(hook: Hook, end: threading.Event) -> None:
    step = 0
    while not end.wait(0.01):
        step += 1
        asked = hook.requested(step)
        if asked is not None:
            hook.save(step, lambda folder: (folder / "weights.bin").write_bytes(b"w" * 100), asked)


async def settled(bank: AnnotationHook, target: CheckpointTarget, request_id: str) -> CheckpointAnswer:
    """Ask until the answer is final."""
    async with asyncio.timeout(60):
        while True:
            answer = await bank.answer(target, request_id)
            if answer is not None and answer.is_final:
                return answer
            await asyncio.sleep(0.1)


async def test_request_on_the_pod_becomes_a_checkpoint_that_the_bank_believes(there: There, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    target = CheckpointTarget(
        namespace=NAMESPACE, pod=POD, uid=there.uid, transport=Transport.ANNOTATION, storage=f"file://{folder}"
    )
    requested_at = datetime.now(UTC)
    asked = CheckpointRequest(id="r/1", epoch=1, deadline=requested_at + timedelta(minutes=5), reason="wanted back")
    bank, end = AnnotationHook(LightkubePods(there.client)), threading.Event()
    kubelet = asyncio.create_task(as_kubelet(there.client, tmp_path / "request"))
    sidecar = await asyncio.create_subprocess_exec(*there.relay)
    hook = Hook(
        folder,
        uid=there.uid,
        request_file=tmp_path / "request",
        status_file=tmp_path / "status",
        poll_seconds=0.05,
    )
    with hook:
        trainer = threading.Thread(target=train, args=[hook, end])
        trainer.start()
        try:
            assert (await bank.request(target, asked)).state is CheckpointState.ACCEPTED
            answer = await settled(bank, target, "r/1")
        finally:
            end.set()
            trainer.join()
            kubelet.cancel()
            sidecar.terminate()
            assert await sidecar.wait() == 0
    assert answer.trainer_uid == there.uid
    storage = FsspecStorage()
    verdict = await verify(
        storage,
        answer,
        request=asked,
        requested_at=requested_at,
        target=target,
        last_step=0,
        policy=AttestPolicy(check_hashes=True),
        now=datetime.now(UTC),
    )
    storage.close()
    assert verdict.verified, verdict.detail


async def test_neither_bank_nor_sidecar_writes_on_a_later_pod_of_the_same_name(
    there: There, lab: Lab, tmp_path: Path
) -> None:
    await there.client.delete(Pod, POD, namespace=NAMESPACE, grace_period=0)
    with lab.api() as api:
        api.apply(a_pod())
    pods = LightkubePods(there.client)
    target = CheckpointTarget(
        namespace=NAMESPACE, pod=POD, uid=there.uid, transport=Transport.ANNOTATION, storage="file:///x"
    )
    asked = CheckpointRequest(id="r-1", epoch=1, deadline=datetime.now(UTC))
    answer = await AnnotationHook(pods).request(target, asked)
    assert answer.state is CheckpointState.FAILED
    assert "is gone" in answer.message
    with pytest.raises(ConflictError, match="is gone"):
        await pods.write(NAMESPACE, POD, uid=there.uid, annotations={"a": "b"})

    (tmp_path / "status").write_text('{"state": "durable"}')
    sidecar = await asyncio.to_thread(
        subprocess.run, [*there.relay, "--once"], capture_output=True, text=True, timeout=60
    )
    assert sidecar.returncode == 75
    assert "metadata.uid" in sidecar.stderr
    notes = await pods.read(NAMESPACE, POD)
    assert notes is not None
    assert notes.uid != there.uid
    assert CHECKPOINT_STATUS_ANNOTATION not in notes.annotations
    assert "a" not in notes.annotations


async def test_pod_that_is_not_there_is_told_from_a_server_that_is_not(there: There) -> None:
    pods = LightkubePods(there.client)
    assert await pods.read(NAMESPACE, "nobody") is None
    with pytest.raises(ConflictError):
        await pods.write(NAMESPACE, "nobody", uid="x", annotations={"a": "b"})
