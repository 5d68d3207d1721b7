"""The component that gives workers a version, and what a worker makes of it."""

from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.workflow import _Definition

from gpubank.domain.errors import PolicyError
from gpubank.settings import Settings
from tests.support import kustomize
from workers.main import version_of
from workers.wiring import WORKFLOWS, deployed

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
EXAMPLE: Final = MANIFESTS / "overlays" / "example"


def deployments(*components: str) -> dict[str, Any]:
    """Return the containers of the example's processes, with these components."""
    bodies = kustomize.build(EXAMPLE)
    for component in components:
        bodies = kustomize.added(bodies, MANIFESTS / "components" / component)
    return {
        body["metadata"]["name"]: body["spec"]["template"]["spec"]["containers"][0]
        for body in bodies
        if body["kind"] == "Deployment"
    }


def test_the_component_gives_the_worker_a_version_and_touches_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = deployments(), deployments("worker-versions")
    assert [name for name in before if before[name] != after[name]] == ["gpubank-worker"]
    added = [each for each in after["gpubank-worker"]["env"] if each not in before["gpubank-worker"]["env"]]
    for each in added:
        monkeypatch.setenv(each["name"], each["value"])
    settings = Settings.load({"mode": "cluster"})
    assert version_of(settings.worker) == WorkerDeploymentVersion("gpubank", metadata.version("gpubank"))
    (image,) = kustomize.kustomization(EXAMPLE)["images"]
    assert image["newTag"] == metadata.version("gpubank")


def test_a_worker_is_unversioned_unless_it_is_told_otherwise() -> None:
    settings = Settings.load({"mode": "cluster"})
    assert version_of(settings.worker) is None
    assert deployed(None) is None


def test_a_build_of_ones_own_wins_over_the_programs_version() -> None:
    settings = Settings.load({"worker.deployment": "gpubank", "worker.build_id": "0.1.0-fix2"})
    version = version_of(settings.worker)
    assert version == WorkerDeploymentVersion("gpubank", "0.1.0-fix2")
    config = deployed(version)
    assert config is not None
    assert config.default_versioning_behavior is VersioningBehavior.AUTO_UPGRADE


@pytest.mark.parametrize("setting", [{"deployment": "a.b"}, {"deployment": "x" * 64}, {"build_id": "a b"}])
def test_a_name_that_temporal_would_refuse_is_refused_at_once(setting: dict[str, str]) -> None:
    (name,) = setting
    with pytest.raises(PolicyError, match=f"worker.{name}"):
        Settings.load({f"worker.{key}": value for key, value in setting.items()})


def test_no_workflow_says_by_itself_how_it_is_versioned() -> None:
    """An unversioned worker would be refused every task of one that does, for ever."""
    definitions = [_Definition.must_from_class(each) for each in WORKFLOWS]
    assert {each.versioning_behavior for each in definitions} == {VersioningBehavior.UNSPECIFIED}
