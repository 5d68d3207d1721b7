"""Certificates for tests: an authority of their own, and what it signs."""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpubank.metadata.channel import TlsFiles


@dataclass
class Certificates:
    """An authority and what it signed."""

    folder: Path

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self._write("ca.pem", certificate.sign(self._key, hashes.SHA256()))

    def issue(self, common_name: str) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        certificate = self._builder(subject, key.public_key()).add_extension(names, critical=False)
        stem = common_name.replace(":", "-")
        self._write(f"{stem}.pem", certificate.sign(self._key, hashes.SHA256()))
        (self.folder / f"{stem}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return TlsFiles(self.folder / f"{stem}.pem", self.folder / f"{stem}.key", self.folder / "ca.pem")

    def _builder(self, subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=1))
            .not_valid_after(now + dt.timedelta(hours=1))
        )

    def _write(self, name: str, certificate: x509.Certificate) -> None:
        (self.folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
