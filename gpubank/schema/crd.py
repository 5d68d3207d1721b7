"""CustomResourceDefinitions of every kind."""

from typing import Any

from gpubank.domain.base import GROUP, VERSION
from gpubank.schema.kinds import CATEGORY, KINDS, Column, Kind
from gpubank.schema.structural import structural_schema


def crds() -> list[dict[str, Any]]:
    """Render the CustomResourceDefinition of every kind."""
    return [crd(kind) for kind in KINDS.values()]


def crd(kind: Kind) -> dict[str, Any]:
    """Render the CustomResourceDefinition of one kind."""
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short_name],
                "categories": [CATEGORY],
            },
            "scope": str(kind.scope),
            "versions": [version],
        },
    }


def _root(kind: Kind) -> dict[str, Any]:
    """Render the whole object: metadata is Kubernetes' own, so the schema only names it."""
    schema = structural_schema(kind.model)
    properties = schema["properties"]
    root = {
        "type": "object",
        "description": schema["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Group and version."},
            "kind": {"type": "string", "description": "Kind."},
            "metadata": {"type": "object"},
            "spec": properties["spec"],
            # The default of a status would make every object carry one before the bank has judged it.
            "status": {key: value for key, value in properties["status"].items() if key != "default"},
        },
    }
    if rules := schema.get("x-kubernetes-validations"):
        root["x-kubernetes-validations"] = rules
    return root


def _column(column: Column) -> dict[str, Any]:
    out: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**out, "priority": 1} if column.wide else out
