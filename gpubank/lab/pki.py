"""The lab's own certificate authority.

Every server of a lab gets a certificate of this authority for loopback, every client one that names its user, and
everybody checks: nothing in the lab skips verification. The authority lives and dies with one lab.
"""

import ipaddress
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpubank.lab.names import NODE_ADDRESS

LIFETIME: Final = timedelta(days=365)
HOSTS: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
ADDRESSES: Final = ("127.0.0.1", "10.0.0.1", NODE_ADDRESS)
"""Loopback; the first of the service range, as the API server is called inside a cluster; the real node's own."""


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder; made when the folder has none, loaded when it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.certificate.exists():
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise TypeError(f"{folder / 'ca.key'} holds a {type(key).__name__}, not an elliptic-curve key")
            self._key = key
            self._subject = x509.load_pem_x509_certificate(self.certificate.read_bytes()).subject
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._subject = _name("gpubank-lab-ca", None)
            _write_key(folder / "ca.key", self._key)
            self.certificate.write_bytes(_pem(self._self_signed()))

    def issue(self, user: str, *, group: str | None = None) -> Certificate:
        """Return the certificate of `user` (in `group`), good for serving on loopback and as a client; made once."""
        file = file_name(user, group)
        made = Certificate(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        if made.certificate.exists():
            return made
        key = ec.generate_private_key(ec.SECP256R1())
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        names = [
            *(x509.DNSName(host) for host in HOSTS),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES),
        ]
        builder = (
            self._builder(_name(user, group), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(usages, critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        _write_key(made.key, key)
        made.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return made

    def key_pair(self, file: str) -> Certificate:
        """Make a bare key pair in PEM: `<file>.pub` and `<file>.key`, as service-account tokens are signed with."""
        made = Certificate(self.folder / f"{file}.pub", self.folder / f"{file}.key")
        if not made.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            _write_key(made.key, key)
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            made.certificate.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
        return made

    def client_context(self, client: Certificate) -> ssl.SSLContext:
        """Return a TLS context that trusts this authority only and shows `client`'s certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.load_cert_chain(client.certificate, client.key)
        return context

    def _self_signed(self) -> x509.Certificate:
        return (
            self._builder(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # A clock that is set back a little must not make a young certificate invalid.
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def file_name(user: str, group: str | None) -> str:
    """Return the stem of the files that belong to `user` in `group`."""
    return "@".join(part.replace(":", "-").replace("/", "-") for part in (user, group) if part)


def _name(common: str, organization: str | None) -> x509.Name:
    names = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(names)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    data = key.private_bytes(serialization.Encoding.PEM, form, plain)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
