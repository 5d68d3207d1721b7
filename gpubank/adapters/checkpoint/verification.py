"""The verification of one claim: read what it names, then judge it by `gpubank.decide.attest`."""

from datetime import datetime

from gpubank.decide.attest import (
    AttestPolicy,
    Disbelief,
    Escape,
    Verdict,
    attest,
    file_uri,
    read_manifest,
    refuse_claim,
)
from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointRequest, CheckpointTarget, Manifest
from gpubank.ports import CheckpointStorage


async def verify(
    storage: CheckpointStorage,
    claim: CheckpointAnswer,
    *,
    request: CheckpointRequest,
    requested_at: datetime,
    target: CheckpointTarget,
    last_step: int,
    policy: AttestPolicy,
    now: datetime,
) -> Verdict:
    """Return whether the bank believes that `claim` is a checkpoint to resume from.

    Nothing is read for a claim that refutes itself. Raises `BackendError` where the storage does not answer, which
    says nothing about the checkpoint.
    """
    refusal = refuse_claim(
        claim,
        request=request,
        requested_at=requested_at,
        target=target,
        last_step=last_step,
        policy=policy,
        now=now,
    )
    if refusal is not None or claim.manifest is None:
        return refusal or Verdict(reason=Disbelief.NOT_DURABLE, detail="the claim names no manifest")
    raw = await storage.read_manifest(claim.manifest.uri, prefix=target.storage, max_bytes=policy.max_manifest_bytes)
    if isinstance(raw, Escape):
        return Verdict(reason=Disbelief.OUTSIDE_STORAGE, detail=raw.detail)
    manifest = read_manifest(raw, claim, request=request, target=target, last_step=last_step, policy=policy)
    if not isinstance(manifest, Manifest):
        return manifest
    paths = [file.path for file in manifest.files]
    facts = await storage.look_at(
        [file_uri(claim, path) for path in paths], prefix=target.storage, hashes=policy.check_hashes
    )
    return attest(manifest, claim, dict(zip(paths, facts, strict=True)), policy=policy)
