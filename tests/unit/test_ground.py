"""The ground that everything stands on: packages, lock file, decisions, leaks."""

import importlib.metadata
import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gpubank", "workflows", "activities", "workers", "nodeagent")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_flat_package_is_the_one_of_this_tree(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(ROOT)


def test_every_dependency_is_pinned_by_hash_in_the_lock_file() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", lock)
    assert all("--hash=sha256:" in block for block in blocks)
    locked = {match.group(1) for match in re.finditer(r"^([a-z0-9][a-z0-9._-]*)==", lock, re.MULTILINE)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *(name for extra in project["project"]["optional-dependencies"].values() for name in extra),
        *project["dependency-groups"]["dev"],
    ]
    names = {re.split(r"[\[<>=!~ ]", name)[0].lower().replace("_", "-") for name in wanted}
    assert names <= locked


def test_what_is_installed_is_what_is_locked() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for name in ("temporalio", "pydantic", "sqlalchemy", "lightkube"):
        assert f"{name}=={importlib.metadata.version(name)} " in lock


def test_the_index_of_decisions_names_every_record_once() -> None:
    folder = ROOT / "docs" / "adr"
    records = {path.name for path in folder.glob("[0-9]*.md")}
    index = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert sorted(index) == sorted(records)
    for name in records:
        text = (folder / name).read_text()
        assert re.search(r"^Status: (proposed|accepted|superseded by ADR-\d{4})$", text, re.MULTILINE), name
        assert all(f"## {part}" in text for part in ("Context", "Decision", "Consequences", "Alternatives")), name


def test_no_module_is_longer_than_400_lines() -> None:
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    too_long = {
        name: lines
        for name in files.stdout.split()
        if (ROOT / name).exists() and (lines := len((ROOT / name).read_text().splitlines())) > 400
    }
    assert not too_long


def test_links_between_documents_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


def _contract(name: str) -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts: list[dict[str, list[str]]] = project["tool"]["importlinter"]["contracts"]
    return next(contract for contract in contracts if contract["name"] == name)  # type: ignore[comparison-overlap]


def test_the_layer_contracts_name_every_activity_and_every_adapter() -> None:
    activities = {f"activities.{path.stem}" for path in (ROOT / "activities").glob("[a-z]*.py")}
    forbidden = set(_contract("Workflows see domain and activity signatures only")["forbidden_modules"])
    assert activities - {"activities.interfaces"} <= forbidden
    adapters = {
        f"gpubank.adapters.{path.stem}" for path in (ROOT / "gpubank" / "adapters").iterdir() if path.stem[0] != "_"
    }
    assert adapters == set(_contract("Adapters never import each other")["modules"])
