"""The wire between control plane and node: one gRPC method, and the files of mutual TLS.

    /gpubank.metadata.v1.NodeMetadata/Watch    request  JSON {"node": "gpu-17"}      stream of sealed snapshots

The answers are the sealed bytes themselves, for they are what the node keeps; no other message is needed, and so no
generated code. A client says which node it is, and its certificate must say so too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpubank.domain.attribution import is_object_name
from gpubank.domain.errors import PolicyError

SERVICE: Final = "gpubank.metadata.v1.NodeMetadata"
WATCH: Final = "Watch"
METHOD: Final = f"/{SERVICE}/{WATCH}"

NODE_USER: Final = "system:node:"
"""Before a node's name in a certificate's common name, as Kubernetes writes it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one end; read anew for every connection, so that certificates may be renewed under it."""

    certificate: Path
    key: Path
    authorities: Path
    """Who may have signed the other end's certificate."""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return key, certificate, authorities. Raises PolicyError."""
        try:
            return self.key.read_bytes(), self.certificate.read_bytes(), self.authorities.read_bytes()
        except OSError as error:
            fact = f"TLS file {str(error.filename)!r} cannot be read: {error.strerror}"
            raise PolicyError(f"{fact}; name a file that can") from error


def request(node: str) -> bytes:
    """Write what a node asks for."""
    return json.dumps({"node": node}).encode()


def requested_node(raw: bytes) -> str | None:
    """Read what is asked for; None if it is no request."""
    try:
        body = json.loads(raw[:4096])
    except (ValueError, RecursionError):
        return None
    node = body.get("node") if isinstance(body, dict) else None
    return node if is_object_name(node) else None


def may_watch(identity: Mapping[str, Sequence[bytes]], node: str, shared_name: str = "") -> bool:
    """Whether a client with this certificate may see this node's metadata.

    Its common name or one of its alternative names must be the node's name or `system:node:<name>`; `shared_name`,
    where one is set, is the name in a certificate that all nodes share.
    """
    names = {
        value.decode("utf-8", "replace")
        for field in ("x509_common_name", "x509_subject_alternative_name")
        for value in identity.get(field, ())
    }
    return bool(names & {node, NODE_USER + node} or (shared_name and shared_name in names))
