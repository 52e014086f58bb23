"""A signature over published files (model.sig), made and verified by the optional package model-signing.

Files are hashed by eaglectl alone; the package signs a list of digests, and verifies who signed a list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from eaglectl.checkpoint.files import MIB, read_small_file
from eaglectl.checkpoint.layout import SIGNATURE
from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.publishing.files import UploadFile

SIGSTORE = "sigstore"
INSTALL = "install eaglectl's sign extra: pip install '.[sign]' in a checkout"
# what a download has beside the files that were sent; `model_signing verify` ignores git's files by itself
IGNORED = (SIGNATURE, ".cache/huggingface", ".git", ".gitattributes", ".github", ".gitignore")
MAX_KEY = MIB
Judgement = Literal["verified", "failed", "missing", "not-looked"]


@dataclass(frozen=True, slots=True)
class Signer:
    """Who must have signed: the holder of `public_key` (a file), or `identity` at `provider` (Sigstore)."""

    public_key: str | None = None
    identity: str | None = None
    provider: str | None = None

    def check(self) -> None:
        """Raise UsageError for options that do not go together, UnreadableError for a missing key."""
        if self.public_key is not None and (self.identity or self.provider):
            raise UsageError("--public-key and --identity are two ways to say who signed; give one of them")
        if bool(self.identity) != bool(self.provider):
            raise UsageError(
                "--identity NAME and --identity-provider URL belong together, like --identity me@example.com"
                " --identity-provider https://github.com/login/oauth"
            )
        if self.public_key is not None:
            _check_key("--public-key", self.public_key)

    @property
    def name(self) -> str:
        """The signer in words; empty where none is given."""
        return f"the key {self.public_key}" if self.public_key is not None else self.identity or ""


@dataclass(frozen=True, slots=True)
class Signature:
    """The judgement on model.sig, and why; `files`: the signed digests, where it is known who signed them."""

    judgement: Judgement
    how: str
    files: Mapping[str, str] | None = None


def check_signer(signer: str | None) -> None:
    """Raise UnreadableError where signing is impossible; `signer` is a private key's file, or "sigstore"."""
    if signer is None:
        return
    if find_spec("model_signing") is None:
        raise UnreadableError(f"--sign needs the package model-signing, which is not installed; {INSTALL}")
    if signer != SIGSTORE:
        _check_key("--sign", signer, f", or the word {SIGSTORE}")


def _check_key(option: str, path: str, otherwise: str = "") -> None:
    """Raise UnreadableError for what cannot be a key's file: a pipe or a device may never end."""
    try:
        read_small_file(Path(path), MAX_KEY, option)
    except UnreadableError as error:
        raise UnreadableError(f"{error}; a key is a PEM file of an elliptic curve{otherwise}") from None


def sign(files: Sequence[UploadFile], signer: str) -> bytes:
    """A signature over `files`, as `model_signing verify` checks it in a download. Raises UnreadableError."""
    try:
        from model_signing import signing
    except ImportError as error:
        raise UnreadableError(f"--sign: the package model-signing lacks {error.name}; {INSTALL}") from None

    with scratch_folder() as folder:
        out = folder / SIGNATURE
        try:
            config = signing.Config().set_hashing_config(_manifest_of(files))
            if signer == SIGSTORE:
                config = config.use_sigstore_signer(use_ambient_credentials=True)
            else:
                config = config.use_elliptic_key_signer(private_key=signer)
            config.sign(folder, out)
            return out.read_bytes()
        except Exception as error:  # of many packages; its text may hold the key
            raise UnreadableError(
                f"--sign {signer}: the files could not be signed ({type(error).__name__}); nothing was sent"
            ) from None


def read_signature(path: Path, signer: Signer, *, is_offline: bool) -> Signature:
    """Whether `signer` made the signature, and over which digests; the files themselves are not read."""
    if reason := _reason_not_looked(signer, is_offline=is_offline):
        return Signature("not-looked", reason)
    manifest = _SignedManifest()
    try:
        verifier = _verifier(signer).set_hashing_config(_hashing(manifest))
    except ImportError as error:
        return Signature("not-looked", f"the package model-signing lacks {error.name}; {INSTALL}")
    except Exception as error:  # of many packages
        what = "Sigstore's list of trust could not be fetched"
        if signer.public_key is not None:
            what = f"{signer.public_key} is no public key of an elliptic curve in PEM"
        return Signature("not-looked", f"{what} ({type(error).__name__})")
    try:
        verifier.verify(path.parent, path)
    except OSError as error:
        return Signature("not-looked", f"{path.name} cannot be read: {error.strerror}")
    except Exception as error:
        return Signature("failed", f"it is not by {signer.name}, or it is broken ({type(error).__name__})")
    if manifest.is_of_other_digests:
        return Signature(
            "not-looked",
            "it is over other digests than SHA-256 of whole files; `model_signing verify` checks those",
        )
    return Signature("verified", f"by {signer.name}", manifest.files)


def _reason_not_looked(signer: Signer, *, is_offline: bool) -> str:
    """Why the signature cannot be verified; empty where it can."""
    if find_spec("model_signing") is None:
        return f"the package model-signing is not installed; {INSTALL}"
    if not signer.name:
        return (
            "anybody can sign: say who must have, with --public-key FILE, or with --identity NAME and"
            " --identity-provider URL"
        )
    if is_offline and signer.public_key is None:
        return "Sigstore's list of trust comes from the network, and this call is offline"
    return ""


class _SignedManifest:
    """The signed digests, copied from the list that the package compares with this object."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.kinds: set[str] = set()

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, signed: Any) -> bool:
        for resource in signed.resource_descriptors():
            self.files[str(resource.identifier)] = resource.digest.digest_hex
            self.kinds.add(resource.digest.algorithm)
        return True

    @property
    def is_of_other_digests(self) -> bool:
        """Whether a digest is not SHA-256, or of a part of a file."""
        return any(kind != "sha256" for kind in self.kinds) or any(":" in name for name in self.files)


def _verifier(signer: Signer) -> Any:
    from model_signing import verifying

    config = verifying.Config()
    if signer.public_key is not None:
        return config.use_elliptic_key_verifier(public_key=signer.public_key)
    return config.use_sigstore_verifier(identity=signer.identity or "", oidc_issuer=signer.provider or "")


def _manifest_of(files: Sequence[UploadFile]) -> Any:
    """A hashing configuration of the package that returns the known digests of `files`."""
    from model_signing import manifest
    from model_signing._hashing.hashing import Digest

    kind = manifest.SerializationType.from_args(
        {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": IGNORED}
    )
    digests = {file.name: file.sha256 for file in files}
    items = [
        kind.new_item(name, Digest("sha256", bytes.fromhex(sha256)))
        for name, sha256 in sorted(digests.items())
    ]
    return _hashing(manifest.Manifest("files", items, kind))


def _hashing(result: Any) -> Any:
    from model_signing import hashing

    class KnownManifest(hashing.Config):  # type: ignore[misc]
        def hash(self, model_path: Any, *, files_to_hash: Any = None) -> Any:
            return result

    return KnownManifest()
