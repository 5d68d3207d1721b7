"""As much of kustomize as our manifests use: resources, components, patches, images, namespace. Unknown keys raise."""

import copy
import re
from pathlib import Path
from typing import Any, Final

import yaml

from gpubank.lab.access import documents

Manifest = dict[str, Any]

_KNOWN: Final = {"apiVersion", "kind", "resources", "components", "images", "patches", "namespace"}
FILE: Final = "kustomization.yaml"


def build(folder: Path) -> list[Manifest]:
    """Return what `kubectl kustomize FOLDER` prints, in any order."""
    return _apply(folder, [])


def added(bodies: list[Manifest], component: Path) -> list[Manifest]:
    """Return what an installation would be if it named this component too."""
    return _apply(component, bodies)


def kustomization(folder: Path) -> Manifest:
    """Return the kustomization of a folder; raise where it uses what is not known here."""
    found: Manifest = yaml.safe_load((folder / FILE).read_text())
    if unknown := set(found) - _KNOWN:
        raise ValueError(f"{folder / FILE} uses {', '.join(sorted(unknown))}, which this reader does not know")
    return found


def _apply(folder: Path, bodies: list[Manifest]) -> list[Manifest]:
    """Add to `bodies`, and change them, as the folder says."""
    said = kustomization(folder)
    bodies = list(bodies)
    for entry in said.get("resources") or ():
        path = folder / entry
        bodies += build(path) if path.is_dir() else documents(path)
    for entry in said.get("components") or ():
        bodies = _apply(folder / entry, bodies)
    for patch in said.get("patches") or ():
        bodies = _patched(folder, patch, bodies)
    for image in said.get("images") or ():
        bodies = [_with_image(body, image) for body in bodies]
    if namespace := said.get("namespace"):
        bodies = [_merged(body, {"metadata": {"namespace": namespace}}) for body in bodies]  # none is cluster-wide
    return bodies


def _patched(folder: Path, patch: Manifest, bodies: list[Manifest]) -> list[Manifest]:
    if "path" in patch:
        wanted = yaml.safe_load((folder / patch["path"]).read_text())
        targets = [body for body in bodies if _key(body) == _key(wanted)]
        if len(targets) != 1:
            raise ValueError(f"{folder / patch['path']} patches {_key(wanted)}, of which there are {len(targets)}")
        return [_merged(body, wanted) if body is targets[0] else body for body in bodies]
    targets = [body for body in bodies if _selected(body, patch["target"])]
    if not targets:
        raise ValueError(f"{folder / FILE}: no object is {patch['target']}")
    operations = yaml.safe_load(patch["patch"])
    return [_operated(body, operations) if body in targets else body for body in bodies]


def _selected(body: Manifest, target: Manifest) -> bool:
    labels = body["metadata"].get("labels") or {}
    wanted = dict(pair.split("=") for pair in target.get("labelSelector", "").split(",") if pair)
    named = re.fullmatch(target.get("name", ".*"), body["metadata"]["name"])
    return body["kind"] == target["kind"] and named is not None and wanted.items() <= labels.items()


def _operated(body: Manifest, operations: list[Manifest]) -> Manifest:
    body = copy.deepcopy(body)
    for operation in operations:
        if operation["op"] != "add":
            raise ValueError(f"operation {operation['op']!r} is not known here")
        *path, last = operation["path"].strip("/").split("/")
        place: Any = body
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            if last != "-":
                raise ValueError(f"path {operation['path']!r}: only the end of a list is known here")
            place.append(operation["value"])
        else:
            place[last] = operation["value"]
    return body


def _merged(body: Any, change: Any) -> Any:
    if not isinstance(body, dict) or not isinstance(change, dict):
        return change
    return {**body, **{key: _merged(body.get(key), value) for key, value in change.items()}}


def _with_image(body: Manifest, image: Manifest) -> Manifest:
    if body["kind"] not in ("Deployment", "DaemonSet"):
        return body
    body = copy.deepcopy(body)
    for container in body["spec"]["template"]["spec"]["containers"]:
        if container["image"] == image["name"]:
            container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    return body


def _key(body: Manifest) -> tuple[str, str, str]:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]
