"""A signature over the files that are published (model.sig), made and checked by the optional package model-signing.

Files are hashed by eaglectl alone; the package signs a list of digests, and says which list a key or an identity has signed.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from eaglectl.errors import Unreadable, Usage
from eaglectl.publishing.plan import SIGNATURE, File

SIGSTORE = "sigstore"
INSTALL = "install eaglectl's sign extra: pip install '.[sign]' in a checkout"
# what lies beside a download and was not sent, for `model_signing verify`
BESIDE = (SIGNATURE, ".cache", ".git", ".gitattributes", ".github", ".gitignore")
Judgement = Literal["verified", "failed", "missing", "not-looked"]


@dataclass(frozen=True, slots=True)
class Signer:
    """Who must have signed: whoever holds the private key of `public_key` (a file), or `identity` as `provider` knows it (Sigstore)."""

    public_key: str | None = None
    identity: str | None = None
    provider: str | None = None

    def check(self) -> None:
        """Raise Usage for options that contradict each other or lack one another, Unreadable for a key that is not there."""
        if self.public_key is not None and (self.identity or self.provider):
            raise Usage("--public-key and --identity are two ways to say who signed; give one of them")
        if bool(self.identity) != bool(self.provider):
            raise Usage(
                "--identity NAME and --identity-provider URL belong together, like --identity me@example.com --identity-provider"
                " https://github.com/login/oauth"
            )
        if self.public_key is not None and not Path(self.public_key).is_file():
            raise Unreadable(f"--public-key {self.public_key}: no such file; give a public key (PEM, elliptic curve)")

    @property
    def said(self) -> str:
        """Who, in words; empty where nobody is named."""
        return f"the key {self.public_key}" if self.public_key is not None else self.identity or ""


@dataclass(frozen=True, slots=True)
class Signature:
    """What became of model.sig, and why. `files` are the digests that were signed, where it is known who signed them."""

    judgement: Judgement
    how: str
    files: Mapping[str, str] | None = None


def check_signer(signer: str | None) -> None:
    """Raise Unreadable where there is nothing to sign with. `signer` is the file of a private key, or "sigstore"."""
    if signer is None:
        return
    if find_spec("model_signing") is None:
        raise Unreadable(f"--sign needs the package model-signing, which is not installed; {INSTALL}")
    if signer != SIGSTORE and not Path(signer).is_file():
        raise Unreadable(
            f"--sign {signer}: no such file; give a private key (PEM, elliptic curve), or the word {SIGSTORE}"
        )


def sign(files: Sequence[File], signer: str) -> bytes:
    """A signature over `files` as `model_signing verify` checks it in a download of them. Raises Unreadable."""
    try:
        from model_signing import signing
    except ImportError as error:
        raise Unreadable(f"--sign: the package model-signing lacks {error.name}; {INSTALL}") from None

    with tempfile.TemporaryDirectory(prefix="eaglectl-") as name:
        out = Path(name) / SIGNATURE
        try:
            config = signing.Config().set_hashing_config(_known({file.name: file.sha256 for file in files}))
            chosen = config.use_sigstore_signer(use_ambient_credentials=True) if signer == SIGSTORE else config.use_elliptic_key_signer(private_key=signer)  # fmt: skip
            chosen.sign(name, out)
            return out.read_bytes()
        except Exception as error:  # of many packages; a key's text may be in it
            raise Unreadable(
                f"--sign {signer}: the files could not be signed ({type(error).__name__}); nothing was sent"
            ) from None


def read_signature(path: Path, signer: Signer, *, is_offline: bool) -> Signature:
    """Whether `signer` made the signature, and over which digests; the files are not looked at here."""
    if find_spec("model_signing") is None:
        return Signature("not-looked", f"the package model-signing is not installed; {INSTALL}")
    if not signer.said:
        return Signature(
            "not-looked",
            "anybody can sign: say who must have, with --public-key FILE, or with --identity NAME and --identity-provider URL",
        )
    if is_offline and signer.public_key is None:
        return Signature("not-looked", "Sigstore's list of trust comes from the network, and this call is offline")
    seen = _Seen()
    try:
        verifier = _verifier(signer).set_hashing_config(_hashing(seen))
    except ImportError as error:
        return Signature("not-looked", f"the package model-signing lacks {error.name}; {INSTALL}")
    except Exception as error:  # of many packages
        what = f"{signer.public_key} is no public key of an elliptic curve in PEM" if signer.public_key is not None else "Sigstore's list of trust could not be fetched"  # fmt: skip
        return Signature("not-looked", f"{what} ({type(error).__name__})")
    try:
        verifier.verify(path.parent, path)
    except OSError as error:
        return Signature("not-looked", f"{path.name} cannot be read: {error.strerror}")
    except Exception as error:
        return Signature("failed", f"it is not by {signer.said}, or it is broken ({type(error).__name__})")
    if any(kind != "sha256" for kind in seen.kinds) or any(":" in name for name in seen.files):
        return Signature("not-looked", "it is over other digests than SHA-256 of whole files; `model_signing verify` checks those")  # fmt: skip
    return Signature("verified", f"by {signer.said}", seen.files)


class _Seen:
    """The list that was signed: the package compares with it what it takes for the files' own."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.kinds: set[str] = set()

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, signed: Any) -> bool:
        for one in signed.resource_descriptors():
            self.files[str(one.identifier)] = one.digest.digest_hex
            self.kinds.add(one.digest.algorithm)
        return True


def _verifier(signer: Signer) -> Any:
    from model_signing import verifying

    config = verifying.Config()
    if signer.public_key is not None:
        return config.use_elliptic_key_verifier(public_key=signer.public_key)
    return config.use_sigstore_verifier(identity=signer.identity or "", oidc_issuer=signer.provider or "")


def _known(digests: Mapping[str, str]) -> Any:
    """A way to hash, for the package, that gives digests which are known."""
    from model_signing import manifest
    from model_signing._hashing.hashing import Digest

    kind = manifest.SerializationType.from_args({"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": BESIDE})  # fmt: skip
    items = [kind.new_item(name, Digest("sha256", bytes.fromhex(found))) for name, found in sorted(digests.items())]
    return _hashing(manifest.Manifest("files", items, kind))


def _hashing(result: Any) -> Any:
    from model_signing import hashing

    class Known(hashing.Config):  # type: ignore[misc]
        def hash(self, model_path: Any, *, files_to_hash: Any = None) -> Any:
            return result

    return Known()
