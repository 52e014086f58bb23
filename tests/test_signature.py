"""model.sig: signed by `upload --sign`, checked by `verify`; what cannot be looked at never passes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from eaglectl import api
from eaglectl.publishing import files
from tests.builders import STATED, Outcome, call, drafter_folder
from tests.conftest import FIXTURES

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/verify.schema.json").read_text())
)


@pytest.fixture
def package() -> Any:
    return pytest.importorskip(
        "model_signing.verifying",
        exc_type=ImportError,
        reason="the sign extra (model-signing) is not installed",
    )


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A private and a public key, as `openssl` makes them."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    curve = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(private)]
    for arguments in (curve, ["ec", "-in", str(private), "-pubout", "-out", str(public)]):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    return private, public


@pytest.fixture
def mine(tmp_path: Path) -> tuple[Path, Path]:
    return keys(tmp_path, "mine")


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: tuple[Path, Path], package: Any) -> Path:
    """What a download of a signed drafter holds; its weights were too large to be kept in memory."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "MAX_KEPT", 4000)
    done = api.upload(
        str(drafter_folder(tmp_path, card=STATED)),
        "org/drafter",
        api.UploadOptions(dry_run=True, signer=str(mine[0])),
    )
    folder = tmp_path / "download"
    folder.mkdir()
    for file in done.plan.files:
        data = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
        (folder / file.name).write_bytes(data)
    assert any(isinstance(file.content, Path) for file in done.plan.files)
    return folder


@pytest.fixture
def unsigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A download with a model.sig that nobody can look at here."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "download"
    folder.mkdir()
    for file in api.upload(
        str(drafter_folder(tmp_path, card=STATED)), "org/drafter", api.UploadOptions(dry_run=True)
    ).plan.files:
        assert isinstance(file.content, bytes)
        (folder / file.name).write_bytes(file.content)
    (folder / "model.sig").write_text("{}")
    return folder


def checked(done: Outcome, code: int, judgement: str | None) -> str:
    """How the signature was judged, in a document that keeps its schema."""
    assert done.code == code, done
    SCHEMA.validate(done.document)
    found = done.document["signature"]
    assert (found and found["judgement"]) == judgement, done.document
    verdict = {0: "equal", 1: "differs", 3: "could-not-look"}[code]
    assert done.document["verdict"] == verdict
    return str(found["how"]) if found else ""


def test_the_right_key_verifies(signed: Path, mine: tuple[Path, Path]) -> None:
    assert "over 5 files" in checked(call("verify", signed, "--public-key", mine[1], "--json"), 0, "verified")
    text = call("verify", signed, "--public-key", mine[1])
    assert "signature verified" in text.out and "equal" in text.out


def test_model_signing_itself_verifies_it(signed: Path, mine: tuple[Path, Path], package: Any) -> None:
    kept = signed / ".cache/huggingface/download/x.metadata"
    kept.parent.mkdir(parents=True)
    kept.write_text("what a download keeps")
    package.Config().use_elliptic_key_verifier(public_key=mine[1]).verify(signed, signed / "model.sig")


def test_what_model_signing_itself_signed_is_verified(
    signed: Path, mine: tuple[Path, Path], package: Any, tmp_path: Path
) -> None:
    from model_signing import hashing, signing

    (signed / "model.sig").unlink()
    config = signing.Config().use_elliptic_key_signer(private_key=mine[0])
    config.sign(signed, tmp_path / "out.sig")
    (signed / "model.sig").write_bytes((tmp_path / "out.sig").read_bytes())
    checked(call("verify", signed, "--public-key", mine[1], "--json"), 0, "verified")
    for name in ("SHA256SUMS", "eaglectl.json", "model.sig"):
        (signed / name).unlink()
    config.sign(signed, tmp_path / "out.sig")
    (signed / "model.sig").write_bytes((tmp_path / "out.sig").read_bytes())
    checked(call("verify", signed, "--public-key", mine[1], "--json"), 0, "verified")
    assert call("verify", signed).code == 3
    shards = hashing.Config().use_shard_serialization()
    signing.Config().use_elliptic_key_signer(private_key=mine[0]).set_hashing_config(shards).sign(
        signed, tmp_path / "shards.sig"
    )
    (signed / "model.sig").write_bytes((tmp_path / "shards.sig").read_bytes())
    done = call("verify", signed, "--public-key", mine[1])
    assert done.code == 3 and "model_signing verify" in done.err


def test_another_key_fails(signed: Path, tmp_path: Path) -> None:
    assert "it is not by" in checked(
        call("verify", signed, "--public-key", keys(tmp_path, "other")[1], "--json"), 1, "failed"
    )


def test_a_signature_without_a_name_is_not_looked_at(signed: Path) -> None:
    assert "anybody can sign" in checked(call("verify", signed, "--json"), 3, "not-looked")
    text = call("verify", signed)
    assert text.code == 3 and "could not look at the signature" in text.out and "--public-key" in text.out
    checked(call("verify", signed, "--no-signature", "--json"), 0, None)


def rewritten(folder: Path, name: str, data: bytes) -> None:
    """Another file, with lists that were made to fit: only the signature knows."""
    from hashlib import sha256

    path = folder / name
    before = sha256(path.read_bytes()).hexdigest()
    path.write_bytes(data)
    for name in ("eaglectl.json", "SHA256SUMS"):
        record = sha256((folder / "eaglectl.json").read_bytes()).hexdigest()
        text = (folder / name).read_text().replace(before, sha256(data).hexdigest())
        (folder / name).write_text(text)
        fresh = sha256((folder / "eaglectl.json").read_bytes()).hexdigest()
        sums = folder / "SHA256SUMS"
        sums.write_text(sums.read_text().replace(record, fresh))


def add_weights(folder: Path) -> None:
    (folder / "model-2.safetensors").write_bytes(b"x")


def lose(folder: Path) -> None:
    for name in ("SHA256SUMS", "eaglectl.json", "config.json"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda folder: rewritten(
                folder, "model.safetensors", (folder / "model.safetensors").read_bytes()[:-1] + b"!"
            ),
            "model.safetensors is another file",
        ),
        (lambda folder: rewritten(folder, "README.md", b"# other\n"), "README.md is another file"),
        (add_weights, "model-2.safetensors was not signed"),
        (lose, "config.json is not there"),
        (lambda folder: (folder / "model.sig").write_text("{}"), "it is broken"),
        (lambda folder: (folder / "model.sig").write_bytes(b"\xff\xfe"), "it is broken"),
        (lambda folder: (folder / "model.sig").unlink(), "there is no model.sig"),
    ],
    ids=["weights", "card", "more weights", "lost", "no bundle", "no text", "no signature"],
)
def test_what_was_not_signed_fails(
    signed: Path, mine: tuple[Path, Path], change: Callable[[Path], object], says: str
) -> None:
    change(signed)
    judgement = "missing" if says.startswith("there is no") else "failed"
    assert says in checked(call("verify", signed, "--public-key", mine[1], "--json"), 1, judgement)


def test_a_signature_that_was_changed_fails(signed: Path, mine: tuple[Path, Path]) -> None:
    import base64

    bundle = json.loads((signed / "model.sig").read_text())
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"]).replace(b"README.md", b"README.MD")
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    (signed / "model.sig").write_text(json.dumps(bundle))
    assert "it is not by" in checked(call("verify", signed, "--public-key", mine[1], "--json"), 1, "failed")


def test_files_of_the_hubs_client_need_no_signature(signed: Path, mine: tuple[Path, Path]) -> None:
    (signed / ".gitattributes").write_text("*.safetensors filter=lfs")
    checked(call("verify", signed, "--public-key", mine[1], "--json"), 0, "verified")


def test_a_snapshot_of_links_is_verified(signed: Path, mine: tuple[Path, Path], tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--org--drafter/blobs", tmp_path / "models--org--drafter/snapshots/abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in signed.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(blobs / path.name)
    checked(call("verify", snapshot, "--public-key", mine[1], "--json"), 0, "verified")


def test_a_key_that_is_none_is_no_verdict(signed: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    assert "is no public key" in checked(
        call("verify", signed, "--public-key", tmp_path / "key", "--json"), 3, "not-looked"
    )
    assert call("verify", signed, "--public-key", tmp_path / "nowhere").code == 3


def test_an_identity_cannot_be_looked_up_offline(signed: Path) -> None:
    named = ("--identity", "me@example.com", "--identity-provider", "https://example.com")
    assert "offline" in checked(call("verify", signed, *named, "--json"), 3, "not-looked")


def test_a_network_that_is_closed_is_no_failed_signature(
    signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    named = ("--identity", "me@example.com", "--identity-provider", "https://example.com")
    assert "list of trust" in checked(call("verify", signed, *named, "--json"), 3, "not-looked")


def test_a_file_that_differs_outweighs_what_was_not_looked_at(unsigned: Path) -> None:
    (unsigned / "README.md").write_text("other")
    checked(call("verify", unsigned, "--json"), 1, "not-looked")


def test_without_the_package_nothing_passes(
    unsigned: Path, monkeypatch: pytest.MonkeyPatch, mine: tuple[Path, Path]
) -> None:
    monkeypatch.setattr("eaglectl.publishing.signature.find_spec", lambda name: None)
    for more in ([], ["--public-key", mine[1]]):
        how = checked(call("verify", unsigned, *more, "--json"), 3, "not-looked")
        assert "pip install '.[sign]'" in how and "checkout" in how
    (unsigned / "SHA256SUMS").unlink()
    (unsigned / "eaglectl.json").unlink()
    done = call("verify", unsigned, "--public-key", mine[1])
    assert (
        done.code == 3
        and "nothing to compare with" in done.err
        and "model-signing is not installed" in done.err
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--public-key", "key", "--identity", "a", "--identity-provider", "b"),
        ("--identity", "a"),
        ("--identity-provider", "b"),
        ("--no-signature", "--identity", "a", "--identity-provider", "b"),
    ],
)
def test_options_that_contradict_each_other_are_usage(unsigned: Path, options: tuple[str, ...]) -> None:
    assert call("verify", unsigned, *options).code == 2
