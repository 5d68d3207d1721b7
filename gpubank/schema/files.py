"""The generated files: which there are, what they hold, and writing or comparing them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpubank import metrics
from gpubank.schema import reference
from gpubank.schema.admission import admission_policies
from gpubank.schema.crd import crd
from gpubank.schema.kinds import KINDS
from gpubank.schema.leases import lease_policies
from gpubank.schema.priority import priority_policies
from gpubank.schema.settings import settings_page
from gpubank.schema.structural import json_schema

_HEADER: Final = "# Written by `gpubank schema write`; edit the models in gpubank/domain instead.\n"
_FOLDERS: Final = ("manifests/crds", "manifests/base/admission", "docs/reference")
"""Folders whose every file is generated."""

_ELSEWHERE: Final = frozenset({"docs/reference/cli.md", "docs/reference/metrics-nodeagent.md"})
"""Generated beside ours, by what we may not import."""


class _Dumper(yaml.SafeDumper):
    """YAML without anchors: every manifest reads by itself."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values out."""
        return True


def to_yaml(*documents: Mapping[str, Any]) -> str:
    """Write documents as Kubernetes' manifests are written: keys in the order given, long lines whole."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)


def generated_files() -> dict[str, str]:
    """Render every generated file, by its path below the project's root."""
    crd_names = [f"{kind.plural}.yaml" for kind in KINDS.values()]
    files = {f"manifests/crds/{kind.plural}.yaml": _HEADER + to_yaml(crd(kind)) for kind in KINDS.values()}
    files["manifests/crds/kustomization.yaml"] = _kustomization(crd_names)
    files["manifests/base/admission/borrow-queues.yaml"] = _HEADER + to_yaml(*admission_policies())
    files["manifests/base/admission/leases.yaml"] = _HEADER + to_yaml(*lease_policies())
    files["manifests/base/admission/priority-classes.yaml"] = _HEADER + to_yaml(*priority_policies())
    files["manifests/base/admission/kustomization.yaml"] = _kustomization(
        ["borrow-queues.yaml", "leases.yaml", "priority-classes.yaml"]
    )
    files["docs/reference/README.md"] = reference.index()
    files["docs/reference/workload-contract.md"] = reference.contract_page()
    files["docs/reference/metrics.md"] = metrics.page()
    files["docs/reference/settings.md"] = settings_page()
    for kind in KINDS.values():
        files[f"docs/reference/{kind.singular}.md"] = reference.kind_page(kind)
        files[f"docs/reference/{kind.singular}.schema.json"] = (
            json.dumps(_editor_schema(kind.name), indent=2, ensure_ascii=False) + "\n"
        )
    return files


def write(root: Path, *, check: bool = False) -> list[str]:
    """Write the generated files below `root` and return those that differed, stale ones included.

    With `check` nothing is written. A file in a generated folder that is no longer generated is stale; it is removed.
    """
    wanted = generated_files()
    changed = [path for path, text in wanted.items() if _text_at(root / path) != text]
    stale = [
        str(path.relative_to(root))
        for folder in _FOLDERS
        for path in sorted((root / folder).glob("*"))
        if path.is_file() and str(path.relative_to(root)) not in {*wanted, *_ELSEWHERE}
    ]
    if not check:
        for path in changed:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(wanted[path], encoding="utf-8")
        for path in stale:
            (root / path).unlink()
    return sorted([*changed, *stale])


def _text_at(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _kustomization(resources: list[str]) -> str:
    body = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}
    return _HEADER + to_yaml(body)


def _editor_schema(name: str) -> dict[str, Any]:
    schema = json_schema(KINDS[name].model)
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **schema}
