"""Pods for the lab's real node: one that does nothing, and one with this machine's Python in it.

The image holds next to nothing. A container gets the machine's system folders and the Python that runs this, read-only,
so that it needs no image of its own and no registry.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpubank.lab.access import Manifest
from gpubank.lab.names import REAL_NODE
from gpubank.lab.runtime import PAUSE_IMAGE

_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ssl", "/etc/alternatives")


def idle_pod(*, resources: Mapping[str, int | str] | None = None, grace: int = 2) -> Manifest:
    """Return the spec of a pod whose one container, `main`, waits until it is told to end."""
    container = {"name": "main", "image": PAUSE_IMAGE, "imagePullPolicy": "Never", **_limits(resources)}
    return _spec([container], grace)


def python_pod(
    arguments: Sequence[str],
    *,
    resources: Mapping[str, int | str] | None = None,
    read_only: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    grace: int = 5,
) -> Manifest:
    """Return the spec of a pod whose one container, `main`, runs this Python with `arguments`.

    `read_only` and `writable` are folders or files of this machine, at the same path in the container; the packages
    that this Python imports are there anyway. `folder` is where it starts.
    """
    prefixes = dict.fromkeys(Path(each) for each in (sys.prefix, sys.base_prefix))
    system = (path for each in _SYSTEM if (path := Path(each)).exists())
    shown = dict.fromkeys((*system, *prefixes, *read_only), True) | dict.fromkeys(writable, False)
    # What lies below a folder that is shown already would be mounted into a read-only file system.
    kept = {path: ro for path, ro in shown.items() if not ro or not any(parent in shown for parent in path.parents)}
    container: dict[str, Any] = {
        "name": "main",
        "image": PAUSE_IMAGE,
        "imagePullPolicy": "Never",
        "command": [sys.executable, *arguments],
        "env": [{"name": key, "value": value} for key, value in _environment(environment).items()],
        "volumeMounts": [
            {"name": f"host-{place}", "mountPath": str(path), "readOnly": ro}
            for place, (path, ro) in enumerate(kept.items())
        ],
        **_limits(resources),
    }
    if folder:
        container["workingDir"] = str(folder)
    volumes = [{"name": f"host-{place}", "hostPath": {"path": str(path)}} for place, path in enumerate(kept)]
    return _spec([container], grace) | {"volumes": volumes}


def pod(name: str, spec: Manifest, *, namespace: str = "default", labels: Mapping[str, str] | None = None) -> Manifest:
    """Return a Pod that goes to the real node without a scheduler."""
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | {"nodeName": REAL_NODE}}


def _environment(own: Mapping[str, str] | None) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"} | dict(own or {})


def _limits(resources: Mapping[str, int | str] | None) -> Manifest:
    return {"resources": {"limits": {name: str(count) for name, count in resources.items()}}} if resources else {}


def _spec(containers: Sequence[Manifest], grace: int) -> Manifest:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        # Most pods of the lab ask the API server nothing.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": list(containers),
    }
