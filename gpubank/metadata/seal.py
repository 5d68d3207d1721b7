"""Signing node metadata, and believing it only when it is signed, fresh enough to be newer, and for this node.

    gpubank-node-metadata/1 <key id> <signature, base64>     one line
    <body>

The signature is Ed25519 over the first word and the body. Several public keys may be trusted at once, so that keys
can be changed: trust the new one everywhere, sign with it, drop the old one.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gpubank.domain.attribution import NodeMetadata
from gpubank.domain.errors import PolicyError
from gpubank.metadata import body

MAGIC: Final = b"gpubank-node-metadata/1"
LARGEST: Final = body.LARGEST + 512
"""Bytes of the largest sealed snapshot."""

SKEW: Final = timedelta(minutes=5)
"""How far the control plane's clock may be ahead of the node's."""


class SealError(PolicyError):
    """A snapshot is not signed by a trusted key, not for this node, or older than what is known."""


class Sealer:
    """Signs snapshots with one key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = key_id(key.public_key())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the private key, an unencrypted PEM file. Raises PolicyError."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # megabytes that no node needs

        try:
            key = load_pem_private_key(_read(path, "signing key"), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise PolicyError(f"signing key {str(path)!r} is no private key in PEM; {_REMEDY}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise PolicyError(f"signing key {str(path)!r} is no Ed25519 key; {_REMEDY}")
        return cls(key)

    def seal(self, metadata: NodeMetadata) -> bytes:
        """Write and sign a snapshot."""
        return self.seal_body(body.encode(metadata))

    def seal_body(self, raw: bytes) -> bytes:
        """Sign a snapshot that is written already."""
        signature = base64.b64encode(self._key.sign(MAGIC + b"\n" + raw))
        return b"%s %s %s\n%s" % (MAGIC, self.key_id.encode(), signature, raw)


class Opener:
    """Checks snapshots for one node."""

    def __init__(self, node: str, keys: Iterable[Ed25519PublicKey]) -> None:
        self.node = node
        self._keys = {key_id(key): key for key in keys}
        if not self._keys:
            raise PolicyError("no public key is trusted, so no snapshot can be; name at least one")

    @classmethod
    def load(cls, node: str, paths: Iterable[Path]) -> Self:
        """Read the trusted public keys, PEM files. Raises PolicyError."""
        return cls(node, [_public_key(path) for path in paths])

    def open(self, sealed: bytes, *, now: datetime, newest: datetime | None = None) -> NodeMetadata:
        """Return what a snapshot says; nothing of it is read before its signature holds.

        Raises SealError, and MetadataFormatError where a trusted key signed what cannot be read. `newest` is when the
        newest known one was issued: an older one is a replay.
        """
        if len(sealed) > LARGEST:
            raise SealError(f"snapshot has {len(sealed)} bytes; the most is {LARGEST}")
        head, newline, raw = sealed.partition(b"\n")
        parts = head.split(b" ")
        if not newline or len(parts) != 3 or parts[0] != MAGIC:
            raise SealError("snapshot is no sealed node metadata of version 1")
        key = self._keys.get(parts[1].decode("ascii", "replace"))
        if key is None:
            raise SealError(
                f"snapshot is signed with key {parts[1][:32].decode('ascii', 'replace')!r}, which is not trusted"
            )
        try:
            signature = base64.b64decode(parts[2], validate=True)
            if base64.b64encode(signature) != parts[2]:  # the last letter has bits that mean nothing
                raise ValueError
            key.verify(signature, MAGIC + b"\n" + raw)
        except (InvalidSignature, binascii.Error, ValueError) as error:
            raise SealError("snapshot's signature does not hold; it was changed on its way or on disk") from error
        metadata = body.decode(raw)
        if metadata.node != self.node:
            raise SealError(f"snapshot is for node {metadata.node!r}, and this is {self.node!r}")
        if metadata.issued_at > now + SKEW:
            raise SealError(
                f"snapshot was issued at {metadata.issued_at.isoformat()}, in the future; compare the clocks"
            )
        if newest is not None and metadata.issued_at < newest:
            raise SealError(f"snapshot was issued at {metadata.issued_at.isoformat()}, before the one that is known")
        return metadata


_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+?)\s*-----END PUBLIC KEY-----")
_ED25519: Final = bytes.fromhex("302a300506032b6570032100")
"""SubjectPublicKeyInfo of an Ed25519 key (RFC 8410), up to the key itself."""

_REMEDY: Final = "make one with `openssl genpkey -algorithm ed25519`"


def key_id(key: Ed25519PublicKey) -> str:
    """Name a key by its hash."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _public_key(path: Path) -> Ed25519PublicKey:
    """Read an Ed25519 key in PEM, a fixed head and 32 bytes: a reader of every kind of key takes megabytes."""
    found = _PEM.search(_read(path, "public key"))
    if found is None:
        raise PolicyError(f"public key {str(path)!r} is no public key in PEM; {_REMEDY}")
    try:
        raw = base64.b64decode(b"".join(found[1].split()), validate=True)
        if len(raw) != len(_ED25519) + 32 or not raw.startswith(_ED25519):
            raise PolicyError(f"public key {str(path)!r} is no Ed25519 key; {_REMEDY}")
        return Ed25519PublicKey.from_public_bytes(raw[len(_ED25519) :])
    except (binascii.Error, ValueError, UnsupportedAlgorithm) as error:
        raise PolicyError(f"public key {str(path)!r} is no public key in PEM; {_REMEDY}") from error


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{what} {str(path)!r} cannot be read: {error.strerror}; name a file that can") from error
