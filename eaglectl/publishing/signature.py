"""A signature over the files that are published (model.sig), by the optional package model-signing."""

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from eaglectl.errors import Unreadable
from eaglectl.publishing.plan import SIGNATURE, File

SIGSTORE = "sigstore"


def check_signer(signer: str | None) -> None:
    """Raise Unreadable where there is nothing to sign with. `signer` is the file of a private key, or "sigstore"."""
    if signer is None:
        return
    if find_spec("model_signing") is None:
        raise Unreadable(
            "--sign needs the package model-signing, which is not installed; run `pip install 'eaglectl[sign]'`"
        )
    if signer != SIGSTORE and not Path(signer).is_file():
        raise Unreadable(
            f"--sign {signer}: no such file; give a private key (PEM, elliptic curve), or the word {SIGSTORE}"
        )


def sign(files: Sequence[File], signer: str) -> bytes:
    """A signature over `files` as `model_signing verify` checks it in a download of them. Raises Unreadable."""
    try:
        from model_signing import hashing, signing
    except ImportError as error:
        raise Unreadable(
            f"--sign: the package model-signing lacks {error.name}; run `pip install 'eaglectl[sign]'` again"
        ) from None

    with tempfile.TemporaryDirectory(prefix="eaglectl-") as name:
        folder, out = Path(name) / "files", Path(name) / SIGNATURE
        folder.mkdir()
        for file in files:
            place = folder / file.name
            place.parent.mkdir(exist_ok=True)
            if isinstance(file.content, bytes):
                place.write_bytes(file.content)
            else:
                place.symlink_to(file.content.resolve())
        ignored = [folder / SIGNATURE, folder / ".gitattributes", folder / ".cache"]
        hashed = hashing.Config().use_file_serialization(allow_symlinks=True).set_ignored_paths(paths=ignored)
        config = signing.Config().set_hashing_config(hashed)
        try:
            chosen = config.use_sigstore_signer(use_ambient_credentials=True) if signer == SIGSTORE else config.use_elliptic_key_signer(private_key=signer)  # fmt: skip
            chosen.sign(folder, out)
            return out.read_bytes()
        except Exception as error:  # of many packages; a key's text may be in it
            raise Unreadable(
                f"--sign {signer}: the files could not be signed ({type(error).__name__}); nothing was sent"
            ) from None
