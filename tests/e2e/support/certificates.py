"""A certificate authority of its own, as companies have, and a certificate of it for loopback."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_authority(directory: Path) -> tuple[Path, tuple[Path, Path]]:
    """Make the certificate of an authority, and what a server at 127.0.0.1 shows: its certificate
    and key."""
    directory.mkdir()
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _name("Test authority")
    signed = _builder(authority, authority, authority_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    server = _builder(_name("127.0.0.1"), authority, server_key.public_key()).add_extension(
        x509.SubjectAlternativeName([address]), critical=False
    )
    files = [directory / name for name in ("authority.pem", "server.pem", "server.key")]
    for file, builder in zip(files[:2], (signed, server), strict=True):
        certificate = builder.sign(authority_key, hashes.SHA256())
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[2].write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files[0], (files[1], files[2])


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
