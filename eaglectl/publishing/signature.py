"""Who signed a list of files (model.sig), verified by the optional package model-signing.

Files are hashed by eaglectl alone; the package verifies who signed a list of digests.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.checkpoint.files import MIB, read_small_file
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.options import Option, Options
from eaglectl.verdicts import SignatureState

INSTALL = "install eaglectl's sign extra: pip install '.[sign]' in a checkout"
MAX_KEY = MIB
# the statement of the package's releases before 1.0
FIRST_LIST = "https://model_signing/Digests/v0.1"
# the package takes the time at which the certificate begins for the time of the signature
CERTIFICATES_OPEN = "; whether the certificate had expired or was revoked when it signed"


class Signer(Options, frozen=True):
    """Who must have signed: the holder of `public_key` (a file), or of a certificate under a root in
    `certificate_chain` (a file), or `identity` at `provider` (Sigstore).
    """

    public_key: Annotated[
        str | None,
        Option(
            "Who must have signed: the holder of this key.", value="FILE", group="Signature", complete="files"
        ),
    ] = None
    identity: Annotated[
        str | None, Option("Who must have signed, by Sigstore.", value="NAME", group="Signature")
    ] = None
    provider: Annotated[
        str | None, Option("Who knows that identity.", "--identity-provider", value="URL", group="Signature")
    ] = None
    certificate_chain: Annotated[
        str | None,
        Option(
            "Who must have signed: the holder of a certificate under a root in this file.",
            value="FILE",
            group="Signature",
            complete="files",
        ),
    ] = None

    def check(self) -> None:
        """Raise UsageError for options that do not go together, UnreadableError for a missing key."""
        ways = (self.public_key, self.identity or self.provider, self.certificate_chain)
        if sum(way is not None for way in ways) > 1:
            raise UsageError(
                "--public-key, --identity and --certificate-chain say who signed in three ways; give one"
            )
        if bool(self.identity) != bool(self.provider):
            raise UsageError(
                "--identity NAME and --identity-provider URL belong together, like --identity me@example.com"
                " --identity-provider https://github.com/login/oauth"
            )
        if self.public_key is not None:
            check_key("--public-key", self.public_key)
        if self.certificate_chain is not None:
            read_small_file(Path(self.certificate_chain), MAX_KEY, "--certificate-chain")

    @property
    def name(self) -> str:
        """The signer in words; empty where none is given."""
        if self.certificate_chain is not None:
            return f"the holder of a certificate under {self.certificate_chain}"
        return f"the key {self.public_key}" if self.public_key is not None else self.identity or ""

    @property
    def is_by_file(self) -> bool:
        """Whether the signer is known by a file, and not by Sigstore."""
        return self.public_key is not None or self.certificate_chain is not None


class Signature(Struct, frozen=True):
    """The judgement on model.sig, and why; `files`: the signed digests, where it is known who signed them.

    `by`: the signer, where it was verified, and `leaves_open` what its kind does not show.
    """

    judgement: SignatureState
    how: str
    files: Mapping[str, str] | None = None
    by: str = ""
    leaves_open: str = ""


def has_package() -> bool:
    """Whether model-signing is installed."""
    return find_spec("model_signing") is not None


def check_key(option: str, path: str, otherwise: str = "") -> None:
    """Raise UnreadableError for what cannot be a key's file: a pipe or a device may never end."""
    try:
        read_small_file(Path(path), MAX_KEY, option)
    except UnreadableError as error:
        raise UnreadableError(f"{error}; a key is a PEM file of an elliptic curve{otherwise}") from None


def read_signature(path: Path, signer: Signer, *, is_offline: bool) -> Signature:
    """Whether `signer` made the signature, and over which digests; the files themselves are not read."""
    lists: list[Any] = []

    def verify(config: Any) -> None:
        lists.append(_stated_list(path.read_bytes()))
        config.set_hashing_config(hashing_of(lists[0])).verify(path.parent, path)

    judgement = _judged(path, signer, verify, is_offline=is_offline)
    if judgement.judgement != SignatureState.VERIFIED:
        return judgement
    digests = {str(entry.identifier): entry.digest for entry in lists[0].resource_descriptors()}
    if any(digest.algorithm != "sha256" or ":" in name for name, digest in digests.items()):
        return Signature(
            SignatureState.NOT_LOOKED,
            "it is over other digests than SHA-256 of whole files; `model_signing verify` checks those",
        )
    return replace(judgement, files={name: digest.digest_hex for name, digest in digests.items()})


def _judged(path: Path, signer: Signer, verify: Callable[[Any], None], *, is_offline: bool) -> Signature:
    """The judgement on a bundle; `verify` gets the package's verifier of the signer, and raises."""
    if reason := _reason_not_looked(signer, is_offline=is_offline):
        return Signature(SignatureState.NOT_LOOKED, reason)
    try:
        verifier = _verifier(signer)
    except ImportError as error:
        return Signature(
            SignatureState.NOT_LOOKED, f"the package model-signing lacks {error.name}; {INSTALL}"
        )
    except Exception as error:  # of many packages
        what = "Sigstore's list of trust could not be fetched"
        if signer.public_key is not None:
            what = f"{signer.public_key} is no public key of an elliptic curve in PEM"
        elif signer.certificate_chain is not None:
            what = f"{signer.certificate_chain} holds no certificates in PEM"
        return Signature(SignatureState.NOT_LOOKED, f"{what} ({type(error).__name__})")
    try:
        verify(verifier)
    except OSError as error:
        return Signature(SignatureState.NOT_LOOKED, f"{path.name} cannot be read: {error.strerror}")
    except Exception as error:
        return Signature(
            SignatureState.FAILED, f"it is not by {signer.name}, or it is broken ({type(error).__name__})"
        )
    by = signer.name if signer.certificate_chain is None else f"{_subject(path)}, {signer.name}"
    open_ = "" if signer.certificate_chain is None else CERTIFICATES_OPEN
    return Signature(SignatureState.VERIFIED, f"by {by}", by=by, leaves_open=open_)


def _subject(bundle: Path) -> str:
    """Whom the signing certificate of a verified bundle names."""
    from cryptography import x509

    material = json.loads(bundle.read_bytes())["verificationMaterial"]
    raw = material["x509CertificateChain"]["certificates"][0]["rawBytes"]
    return x509.load_der_x509_certificate(b64decode(raw)).subject.rfc4514_string()


def _reason_not_looked(signer: Signer, *, is_offline: bool) -> str:
    """Why the signature cannot be verified; empty where it can."""
    if not has_package():
        return f"the package model-signing is not installed; {INSTALL}"
    if not signer.name:
        return (
            "anybody can sign: say who must have, with --public-key FILE, --certificate-chain FILE, or with"
            " --identity NAME and --identity-provider URL"
        )
    if is_offline and not signer.is_by_file:
        return "Sigstore's list of trust comes from the network, and this call is offline"
    return ""


def _stated_list(bundle: bytes) -> Any:
    """The package's value of the list of digests that a bundle states, which it then verifies.

    Raises KeyError, TypeError or ValueError for a bundle without one.
    """
    statement = json.loads(b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))
    if statement["predicateType"] == FIRST_LIST:
        stated = [(entry["name"], "sha256", entry["digest"]["sha256"]) for entry in statement["subject"]]
        return manifest_of(stated, {"method": "files", "hash_type": "sha256", "allow_symlinks": False})
    predicate = statement["predicate"]
    stated = [(entry["name"], entry["algorithm"], entry["digest"]) for entry in predicate["resources"]]
    return manifest_of(stated, predicate["serialization"])


def manifest_of(digests: Iterable[tuple[str, str, str]], serialisation: Mapping[str, Any]) -> Any:
    """The package's list of names with the algorithm and the digest in hex of each."""
    from model_signing import manifest

    kind = manifest.SerializationType.from_args(serialisation)
    # the type is that of a public attribute, and its own module is not public
    digest_type = get_type_hints(manifest.ManifestItem)["digest"]
    items = [
        kind.new_item(name, digest_type(algorithm, bytes.fromhex(digest)))
        for name, algorithm, digest in digests
    ]
    return manifest.Manifest("files", items, kind)


def _verifier(signer: Signer) -> Any:
    from model_signing import verifying

    config = verifying.Config()
    if signer.public_key is not None:
        return config.use_elliptic_key_verifier(public_key=signer.public_key)
    if signer.certificate_chain is not None:
        return config.use_certificate_verifier(certificate_chain=[signer.certificate_chain])
    return config.use_sigstore_verifier(identity=signer.identity or "", oidc_issuer=signer.provider or "")


def hashing_of(result: Any) -> Any:
    """A hashing configuration of the package that returns `result` and hashes nothing."""
    from model_signing import hashing

    class KnownManifest(hashing.Config):  # type: ignore[misc]
        def hash(self, model_path: Any, *, files_to_hash: Any = None) -> Any:
            return result

    return KnownManifest()
