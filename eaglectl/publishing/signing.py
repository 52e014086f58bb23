"""Signatures over files (model.sig), made by the optional package model-signing."""

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eaglectl.checkpoint.files import read_small_file
from eaglectl.checkpoint.layout import SIGNATURE
from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.publishing.signature import (
    INSTALL,
    MAX_KEY,
    Signer,
    check_key,
    has_package,
    hashing_of,
    manifest_of,
    read_signature,
)
from eaglectl.publishing.upload_files import UploadFile
from eaglectl.verdicts import SignatureState

SIGSTORE, PKCS11 = "sigstore", "pkcs11:"
# the password of an encrypted key, or the PIN of a token: never an argument, which other users can see
PASSWORD = "EAGLECTL_KEY_PASSWORD"
# what a download has beside the files that were sent; `model_signing verify` ignores git's files by itself
IGNORED = (SIGNATURE, ".cache/huggingface", ".git", ".gitattributes", ".github", ".gitignore")
KINDS = f", the word {SIGSTORE}, or a URI {PKCS11}token=...;object=... of a hardware or cloud key"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """What signs: a private key's file, "sigstore", or an RFC 7512 URI of a PKCS#11 token.

    `password` opens an encrypted file, or is the token's PIN. `certificate` is the file of the key's
    certificate, `chain` that of those between it and a root.
    """

    key: str
    password: str | None = field(default=None, repr=False)
    certificate: str | None = None
    chain: str | None = None

    @classmethod
    def read(
        cls,
        key: str,
        ask: Callable[[str], str] | None = None,
        *,
        certificate: str | None = None,
        chain: str | None = None,
    ) -> "SigningKey":
        """The key with its password from the environment, or by `ask` where an encrypted file needs one."""
        password = os.environ.get(PASSWORD) or None
        if password is None and ask is not None and has_package() and _is_encrypted(key):
            password = ask(f"password of {key}: ")
        return cls(key, password, certificate, chain)

    @property
    def is_file(self) -> bool:
        """Whether a file holds the key."""
        return self.key != SIGSTORE and not self.key.startswith(PKCS11)

    def check(self) -> None:
        """Raise UnreadableError where signing is impossible, UsageError for a password in an argument."""
        if not has_package():
            raise UnreadableError(
                f"--sign needs the package model-signing, which is not installed; {INSTALL}"
            )
        self._check_certificate()
        if self.key.startswith(PKCS11):
            self._check_token()
        elif self.is_file:
            self._check_file()

    def _check_certificate(self) -> None:
        """Raise where there is a certificate, and it could not be verified or does not go with the key."""
        if self.certificate is None:
            if self.chain is not None:
                raise UsageError("--certificate-chain goes with --signing-certificate; give both")
            return
        if self.key == SIGSTORE:
            raise UsageError("--signing-certificate: sigstore makes its own certificates; leave it out")
        if self.chain is not None:
            read_small_file(Path(self.chain), MAX_KEY, "--certificate-chain")
        _check_usable(self.certificate)

    def _check_token(self) -> None:
        if "pin-value" in self.key:
            raise UsageError(
                f"--sign: the PIN of a token is no argument, which other users of the machine can see; set"
                f" {PASSWORD}, or write pin-source=file:/PATH in the place of pin-value"
            )
        if find_spec("PyKCS11") is None:
            raise UnreadableError(
                "--sign pkcs11: needs the package PyKCS11, which is not installed; run `pip install"
                " 'model-signing[pkcs11]'`"
            )

    def _check_file(self) -> None:
        is_encrypted = _is_encrypted(self.key)
        if is_encrypted and not self.password:
            raise UsageError(
                f"--sign {self.key}: the key is encrypted; set {PASSWORD} to its password, or run the command"
                " in a terminal"
            )
        try:
            _config(self)
            public_key = _public_key(self)
        except ImportError as error:
            raise _lacking(error) from None
        except Exception as error:  # of cryptography; its text may hold the key
            about = f"a PEM file of an elliptic curve (P-256, P-384 or P-521) was expected{KINDS}"
            if is_encrypted:
                about = "the password does not open it"
            raise UnreadableError(
                f"--sign {self.key} is no private key that can be used ({type(error).__name__}); {about}"
            ) from None
        if self.certificate is not None and public_key != _certificates(self)[0].public_key():
            raise _other_key(self)


def _public_key(signer: SigningKey) -> Any:
    """The public key of a private key's file."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    password = signer.password.encode() if signer.password and _is_encrypted(signer.key) else None
    return load_pem_private_key(read_small_file(Path(signer.key), MAX_KEY, "--sign"), password).public_key()


def _other_key(signer: SigningKey) -> UnreadableError:
    return UnreadableError(
        f"--sign {signer.key}: {signer.certificate} must be of its public key; give the key's own certificate"
    )


def _certificates(signer: SigningKey) -> list[Any]:
    """The certificate of the key, and those up to a root."""
    from cryptography import x509

    files = [(signer.certificate, "--signing-certificate"), (signer.chain, "--certificate-chain")]
    raw = [read_small_file(Path(path), MAX_KEY, option) for path, option in files if path is not None]
    return [certificate for pem in raw for certificate in x509.load_pem_x509_certificates(pem)]


def _check_usable(path: str) -> None:
    """Raise UnreadableError for a file without a certificate that can sign now."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(
            read_small_file(Path(path), MAX_KEY, "--signing-certificate")
        )
        can_sign = any(_uses(certificate))
    except ValueError as error:
        raise UnreadableError(
            f"--signing-certificate {path} is no certificate in PEM ({type(error).__name__})"
        ) from None
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= datetime.now(UTC) <= end:
        raise UnreadableError(
            f"--signing-certificate {path} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, and not now"
        )
    if not can_sign:
        raise UnreadableError(
            f"--signing-certificate {path} is not for signatures: key usage digitalSignature, or extended key"
            " usage codeSigning, was expected"
        )


def _uses(certificate: Any) -> Iterator[bool]:
    """For each use that lets a certificate sign, whether it states it."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    for extension in certificate.extensions:
        match extension.value:
            case x509.KeyUsage() as usage:
                yield usage.digital_signature
            case x509.ExtendedKeyUsage() as usage:
                yield ExtendedKeyUsageOID.CODE_SIGNING in usage


def _is_encrypted(key: str) -> bool:
    """Whether a private key's file needs a password. Raises UnreadableError for no file."""
    if key == SIGSTORE or key.startswith(PKCS11):
        return False
    check_key("--sign", key, KINDS)
    return b"ENCRYPTED" in read_small_file(Path(key), MAX_KEY, "--sign")


def sign_files(files: Sequence[UploadFile], signer: SigningKey) -> bytes:
    """A signature over `files`, as `model_signing verify` checks it in a download. Raises UnreadableError."""
    with scratch_folder() as folder:
        out = folder / SIGNATURE
        try:
            _config(signer).set_hashing_config(hashing_of(_manifest_of(files))).sign(folder, out)
            return (_certified(out, signer) if signer.certificate else out.read_bytes().rstrip()) + b"\n"
        except EaglectlError:
            raise
        except ImportError as error:
            raise _lacking(error) from None
        except Exception as error:  # of many packages; its text may hold the key
            about = "; is the token there, and the PIN right?" if signer.key.startswith(PKCS11) else ""
            raise UnreadableError(
                f"--sign {signer.key}: the files could not be signed ({type(error).__name__}{about}); nothing"
                " was sent"
            ) from None


def _certified(bundle: Path, signer: SigningKey) -> bytes:
    """A bundle that the key made, with certificates in the place of its public key.

    The package's own signers of that kind (1.1.1) take no encrypted key and fail for a token. What is signed
    is the list alone. Raises UnreadableError where the certificate is of another key.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    certificates = _certificates(signer)
    key = bundle.with_name("public.pem")
    form = PublicFormat.SubjectPublicKeyInfo
    key.write_bytes(certificates[0].public_key().public_bytes(Encoding.PEM, form))
    made = read_signature(bundle, Signer(public_key=str(key)), is_offline=True)
    if made.judgement != SignatureState.VERIFIED:
        raise _other_key(signer)
    chain = [
        {"rawBytes": b64encode(certificate.public_bytes(Encoding.DER)).decode()}
        for certificate in certificates
    ]
    material = {"x509CertificateChain": {"certificates": chain}, "tlogEntries": []}
    return json.dumps(json.loads(bundle.read_bytes()) | {"verificationMaterial": material}).encode()


def _lacking(error: ImportError) -> UnreadableError:
    return UnreadableError(f"--sign: the package model-signing lacks {error.name}; {INSTALL}")


def _config(signer: SigningKey) -> Any:
    """The package's configuration that signs with the key."""
    from model_signing import signing

    config = signing.Config()
    if signer.key == SIGSTORE:
        return config.use_sigstore_signer(use_ambient_credentials=True)
    if signer.key.startswith(PKCS11):
        return config.use_pkcs11_signer(pkcs11_uri=_with_pin(signer))
    password = signer.password if _is_encrypted(signer.key) else None
    # the package hands it to cryptography, which takes bytes
    return config.use_elliptic_key_signer(
        private_key=signer.key, password=password.encode() if password else None
    )


def _with_pin(signer: SigningKey) -> str:
    """The token's URI with the PIN of the environment, where it names no source of its own."""
    if not signer.password or "pin-source" in signer.key:
        return signer.key
    pin = "".join(f"%{byte:02X}" for byte in signer.password.encode())
    return f"{signer.key}{'&' if '?' in signer.key else '?'}pin-value={pin}"


def _manifest_of(files: Sequence[UploadFile]) -> Any:
    """The package's list of the known digests of `files`."""
    digests = {file.name: file.sha256 for file in files}
    stated = [(name, "sha256", digest) for name, digest in sorted(digests.items())]
    kind = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": IGNORED}
    return manifest_of(stated, kind)
