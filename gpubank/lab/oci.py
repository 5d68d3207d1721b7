"""Container images without a container engine: an OCI archive of one layer, as `ctr images import` takes it.

The same content gives the same bytes: no times, no owners, and names in their order.
"""

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"


def archive(
    name: str, files: Mapping[str, bytes], entrypoint: Sequence[str], *, machine: str, folders: Iterable[str] = ()
) -> bytes:
    """Return the archive of image `name`, such as `example.test/pause:1`.

    `files` are programs by their path without the first slash; `folders` are there for everybody to write to;
    `machine` is the hardware as `platform.machine()` says it.
    """
    layer = _tar([(path, data, 0o755) for path, data in files.items()], sorted(folders))
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
    )
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = _json(
        {"schemaVersion": 2, "manifests": [_descriptor(_MANIFEST, manifest) | {"annotations": named}]},
    )
    blobs = [(f"blobs/sha256/{_digest(blob)[7:]}", blob, 0o644) for blob in (manifest, config, layer)]
    layout = ("oci-layout", _json({"imageLayoutVersion": "1.0.0"}), 0o644)
    return _tar([layout, ("index.json", index, 0o644), *blobs])


def _tar(files: Iterable[tuple[str, bytes, int]], folders: Iterable[str] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in folders:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
        for path, data, mode in files:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{sha256(blob).hexdigest()}"


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
