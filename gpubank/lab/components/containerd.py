"""containerd: runs the containers of the lab's real node, through runc, with addresses of the pods' own.

It is the machine's containerd in nothing: state, sockets, images, network and plug-ins are the lab's.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpubank.lab import machine, runtime
from gpubank.lab.build import GoProgram
from gpubank.lab.components.base import Component, Context
from gpubank.lab.errors import LabError, StartError

VERSION: Final = "2.4.2"
CNI_VERSION: Final = "1.9.1"
POD_RANGE: Final = "198.18.38.0/24"
"""Addresses of the pods: of the range for benchmarks (RFC 2544), which no network routes."""
SOCKET: Final = machine.RUN / "containerd.sock"
NAMESPACE: Final = "k8s.io"
"""containerd's namespace of what the kubelet asked for."""
SNAPSHOTTER: Final = "native"
"""Copies instead of overlays: it works on every file system, and the lab's images are small."""
_MODULE: Final = "github.com/containerd/containerd/v2"
_CNI: Final = "github.com/containernetworking/plugins/plugins"


def _program(name: str) -> GoProgram:
    return GoProgram(
        name=name,
        version=VERSION,
        wrapper="containerd",
        package=f"{_MODULE}/cmd/{name}",
        variables=((f"{_MODULE}/version.Version", f"v{VERSION}"),),
        tags=("no_btrfs", "no_devmapper", "no_zfs"),
    )


def _plugin(name: str, folder: str) -> GoProgram:
    return GoProgram(name=name, version=CNI_VERSION, wrapper="cni", package=f"{_CNI}/{folder}/{name}")


SHIM: Final = _program("containerd-shim-runc-v2")
CTR: Final = _program("ctr")
PLUGINS: Final = (_plugin("ptp", "main"), _plugin("host-local", "ipam"))


def load_image(context: Context, archive: Path) -> None:
    """Make the image of an OCI archive known to the node. Raises LabError with what containerd says."""
    ctr = [str(context.built[CTR.name].binary), f"--address={SOCKET}", f"--namespace={NAMESPACE}"]
    importing = ["images", "import", "--local", f"--snapshotter={SNAPSHOTTER}", str(archive)]
    done = subprocess.run([*ctr, *importing], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"image {archive}: containerd does not take it: {done.stderr.strip()[-800:]}")


def configuration(context: Context) -> dict[str, Any]:
    """Return containerd's configuration."""
    found = runtime.runc()
    if found is None:
        raise StartError("runc is not in the cache any more; run `gpubank lab build --with kubelet`")
    runc_options = {"BinaryName": str(found), "Root": str(machine.RUN / "runc"), "SystemdCgroup": False}
    runc = {
        "runtime_type": "io.containerd.runc.v2",
        "runtime_path": str(context.built[SHIM.name].binary),
        "options": runc_options,
    }
    return {
        "version": 3,
        "root": str(context.data("containerd")),
        "state": str(machine.RUN / "containerd"),
        "temp": str(context.data("containerd-temp")),
        # The first writes to /opt; the others would be a second way in, for nobody.
        "disabled_plugins": ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"],
        "grpc": {"address": str(SOCKET)},
        "plugins": {
            "io.containerd.cri.v1.images": {
                "snapshotter": SNAPSHOTTER,
                "pinned_images": {"sandbox": runtime.PAUSE_IMAGE},
            },
            "io.containerd.cri.v1.runtime": {
                "enable_cdi": True,
                "cdi_spec_dirs": [str(cdi_folder(context))],
                # Where the lab itself runs without CAP_SYS_RESOURCE nobody may lower a score, and runc dies trying.
                "restrict_oom_score_adj": True,
                "netns_mounts_under_state_dir": True,
                "cni": {
                    "bin_dirs": [str(context.built[each.name].folder) for each in PLUGINS],
                    "conf_dir": str(_network(context)),
                    "use_internal_loopback": True,
                },
                "containerd": {"default_runtime_name": "runc", "runtimes": {"runc": runc}},
            },
        },
    }


def cdi_folder(context: Context) -> Path:
    """Return the folder of the node's CDI specifications."""
    return context.data("cdi")


def _network(context: Context) -> Path:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(machine.RUN / "addresses"),
    }
    network = {
        "cniVersion": "1.0.0",
        "name": machine.NETWORK,
        # No masquerade: pods reach this machine and each other, and nothing beyond.
        "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses}],
    }
    return context.written("cni/10-lab.conflist", json.dumps(network, indent=2)).parent


def _toml(value: Any) -> str:
    """Return a value as TOML; a table inline, for which JSON is nearly right."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _command(context: Context) -> list[str]:
    text = "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in configuration(context).items())
    return [f"--config={context.written('containerd.toml', text)}"]


def _ready(context: Context) -> str | None:
    ctr = [str(context.built[CTR.name].binary), f"--address={SOCKET}", "--timeout=2s", "version"]
    done = subprocess.run(ctr, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()[-200:] or "does not answer"


def _settle(context: Context) -> None:
    load_image(context, runtime.pause_archive())


CONTAINERD = Component(
    name="containerd",
    program=_program("containerd"),
    tools=(SHIM, CTR, *PLUGINS),
    provide=runtime.provide,
    command=_command,
    ready=_ready,
    prepare=lambda context: machine.claim(context.name, context.folder),
    settle=_settle,
    clear=machine.release,
    stop_grace=3,
)
