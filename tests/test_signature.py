"""model.sig: signed by `upload --sign`, checked by `verify`; what cannot be looked at never passes."""

import base64
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import eaglectl
from eaglectl import api
from eaglectl.publishing import upload_files
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
    monkeypatch.setattr(upload_files, "MAX_KEPT", 4000)
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
    assert "over 6 files" in checked(call("verify", signed, "--public-key", mine[1], "--json"), 0, "verified")
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
    for name in ("SHA256SUMS", "eaglectl.json", "model.sig", "provenance.intoto.json"):
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
    assert text.code == 3 and "signature not-looked" in text.out and "--public-key" in text.out
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


# passwords


PASSWORD = "a long secret of the test"


@pytest.fixture
def encrypted(tmp_path: Path, mine: tuple[Path, Path]) -> Path:
    """The private key, encrypted as `openssl` does."""
    out = tmp_path / "encrypted.pem"
    command = ["openssl", "pkcs8", "-topk8", "-in", mine[0], "-out", out, "-passout", f"pass:{PASSWORD}"]
    subprocess.run(command, check=True, capture_output=True)
    assert b"ENCRYPTED" in out.read_bytes()
    return out


def dry(folder: Path, *options: str | Path) -> Outcome:
    return call("upload", folder, "org/drafter", "--dry-run", *options)


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Any) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("EAGLECTL_KEY_PASSWORD", raising=False)
    monkeypatch.chdir(tmp_path)
    return drafter_folder(tmp_path, card=STATED)


def downloaded(files: Any, folder: Path) -> Path:
    folder.mkdir()
    for file in files:
        data = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
        (folder / file.name).write_bytes(data)
    return folder


def test_an_encrypted_key_signs_with_the_password_of_the_environment(
    plain: Path, encrypted: Path, mine: tuple[Path, Path], package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", PASSWORD)
    done = api.upload(str(plain), "org/drafter", api.UploadOptions(dry_run=True, signer=str(encrypted)))
    folder = downloaded(done.plan.files, plain.parent / "download")
    package.Config().use_elliptic_key_verifier(public_key=mine[1]).verify(folder, folder / "model.sig")
    checked(call("verify", folder, "--public-key", mine[1], "--json"), 0, "verified")
    assert PASSWORD not in repr(api.SigningKey(str(encrypted), PASSWORD))


def test_a_password_is_asked_for_at_a_terminal_only(
    plain: Path, encrypted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = dry(plain, "--sign", encrypted)
    assert done.code == 2 and "EAGLECTL_KEY_PASSWORD" in done.err
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return PASSWORD

    monkeypatch.setattr("eaglectl.cli.upload.secret_prompt", lambda: answer)
    done = dry(plain, "--sign", encrypted)
    assert done.code == 0 and "model.sig" in done.out, done.err
    assert asked == [f"password of {encrypted}: "] and PASSWORD not in done.out + done.err


def test_a_wrong_password_is_told_before_anything_is_read(
    plain: Path, encrypted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", "another secret")
    done = dry(plain, "--sign", encrypted)
    assert done.code == 3 and "the password does not open it" in done.err
    assert "validating" not in done.err and "another secret" not in done.out + done.err


def test_a_password_for_a_key_without_one_is_not_used(
    plain: Path, mine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", PASSWORD)
    assert dry(plain, "--sign", mine[0]).code == 0


@pytest.mark.parametrize("kind", [["ecparam", "-name", "secp256k1", "-genkey"], ["genrsa", "2048"]])
def test_a_key_of_another_kind_is_told(plain: Path, kind: list[str]) -> None:
    key = plain.parent / "other.pem"
    key.write_bytes(subprocess.run(["openssl", *kind], check=True, capture_output=True).stdout)
    done = dry(plain, "--sign", key)
    assert done.code == 3 and "P-256" in done.err and "validating" not in done.err


def test_the_pin_of_a_token_is_no_argument(plain: Path) -> None:
    done = dry(plain, "--sign", "pkcs11:token=t;object=k?pin-value=1234")
    assert done.code == 2 and "EAGLECTL_KEY_PASSWORD" in done.err and "1234" not in done.err


def test_a_token_needs_its_package(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglectl.publishing.signing.find_spec", lambda name: None)
    done = dry(plain, "--sign", "pkcs11:token=t;object=k")
    assert done.code == 3 and "model-signing[pkcs11]" in done.err


def test_the_pin_reaches_the_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from eaglectl.publishing.signing import SigningKey, _with_pin

    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", "1&2")
    uri = "pkcs11:token=t;object=k"
    assert _with_pin(SigningKey.read(uri)) == f"{uri}?pin-value=%31%26%32"
    more = f"{uri}?module-path=/usr/lib/p11.so"
    assert _with_pin(SigningKey.read(more)) == f"{more}&pin-value=%31%26%32"
    source = f"{uri}?pin-source=file:/run/pin"
    assert _with_pin(SigningKey.read(source)) == source


# provenance


GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "acme/drafters",
    "GITHUB_WORKFLOW_REF": "acme/drafters/.github/workflows/publish.yml@refs/tags/v1",
    "GITHUB_RUN_ID": "77",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_REF": "refs/tags/v1",
    "GITHUB_SHA": "c" * 40,
}
GITHUB_SAYS = (
    "https://github.com/acme/drafters/.github/workflows/publish.yml@refs/tags/v1",
    "https://github.com/acme/drafters/actions/runs/77/attempts/2",
    {"uri": "git+https://github.com/acme/drafters@refs/tags/v1", "digest": {"gitCommit": "c" * 40}},
)
GITLAB = {
    "GITLAB_CI": "true",
    "CI_PROJECT_URL": "https://gitlab.com/acme/drafters",
    "CI_RUNNER_ID": "12",
    "CI_JOB_URL": "https://gitlab.com/acme/drafters/-/jobs/5",
    "CI_COMMIT_REF_NAME": "main",
    "CI_COMMIT_SHA": "d" * 40,
}
GITLAB_SAYS = (
    "https://gitlab.com/acme/drafters/-/runners/12",
    "https://gitlab.com/acme/drafters/-/jobs/5",
    {"uri": "git+https://gitlab.com/acme/drafters@main", "digest": {"gitCommit": "d" * 40}},
)


@pytest.fixture
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the CI that runs the tests."""
    for name in ("GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)


def statement_of(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "provenance.intoto.json").read_text())
    assert isinstance(found, dict)
    return found


def of_tensors(folder: Path) -> str:
    """SHA-256 of the lines of `sha256sum` over the header and each tensor's bytes."""
    from safetensors import deserialize

    data = (folder / "model.safetensors").read_bytes()
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    parts = [("", header), *((name, bytes(tensor["data"])) for name, tensor in sorted(deserialize(data)))]
    lines = [f"{hashlib.sha256(part).hexdigest()}  {name}\n" for name, part in parts]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(
    ("environment", "says"), [(GITHUB, GITHUB_SAYS), (GITLAB, GITLAB_SAYS)], ids=["github", "gitlab"]
)
def test_provenance_says_who_built_from_what(
    no_ci: None,
    plain: Path,
    monkeypatch: pytest.MonkeyPatch,
    mine: tuple[Path, Path],
    environment: dict[str, str],
    says: tuple[str, str, dict[str, Any]],
) -> None:
    builder, run, commit = says
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert call("convert", plain, "-o", plain.parent / "out").code == 0
    options = api.UploadOptions(dry_run=True, signer=str(mine[0]))
    files = api.upload(str(plain.parent / "out"), "org/drafter", options).plan.files
    folder = downloaded(files, plain.parent / "download")
    statement = statement_of(folder)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]} == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("README.md", "SHA256SUMS", "config.json", "eaglectl.json", "model.safetensors")
    }
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"repository": "https://huggingface.co/org/drafter"}
    source = {"name": "drafter/model.safetensors", "digest": {"sha256TensorDigests": of_tensors(plain)}}
    assert definition["resolvedDependencies"][0] == source
    assert definition["resolvedDependencies"][-1] == commit
    details = statement["predicate"]["runDetails"]
    assert details["builder"] == {"id": builder, "version": {"eaglectl": eaglectl.__version__}}
    assert details["metadata"] == {"invocationId": run}
    done = call("verify", folder, "--public-key", mine[1], "--json")
    checked(done, 0, "verified")
    provenance = done.document["provenance"]
    assert provenance["judgement"] == "verified" and builder in provenance["how"] and run in provenance["how"]


def test_provenance_outside_of_ci_names_no_machine(
    no_ci: None, signed: Path, mine: tuple[Path, Path]
) -> None:
    details = statement_of(signed)["predicate"]["runDetails"]
    assert details["builder"]["id"] == "urn:eaglectl:no-ci" and "invocationId" not in details["metadata"]
    text = call("verify", signed, "--public-key", mine[1])
    assert "provenance verified" in text.out and "outside of CI" in text.out
    shown = " ".join(text.out.split())
    assert "by provenance.intoto.json proved: the same signer states" in shown
    assert "not: that the statement is true" in shown
    assert "by model.sig proved: the files are those that were signed by the key" in shown


def signed_again(folder: Path, key: Path) -> None:
    """Signed by model-signing itself, as the files are now."""
    from model_signing import signing

    (folder / "model.sig").unlink()
    config = signing.Config().use_elliptic_key_signer(private_key=key)
    config.sign(folder, folder.parent / "new.sig")
    (folder.parent / "new.sig").rename(folder / "model.sig")


def provenance_of(folder: Path, public: Path, code: int, judgement: str) -> str:
    """How the provenance was judged, where the signature was verified."""
    done = call("verify", folder, "--public-key", public, "--json")
    assert done.code == code and done.document["signature"]["judgement"] == "verified"
    assert done.document["provenance"]["judgement"] == judgement
    return str(done.document["provenance"]["how"])


def test_a_changed_statement_fails(signed: Path, mine: tuple[Path, Path]) -> None:
    path = signed / "provenance.intoto.json"
    path.write_text(path.read_text().replace("org/drafter", "org/another"))
    done = call("verify", signed, "--public-key", mine[1], "--json")
    assert done.code == 1
    assert done.document["provenance"]["judgement"] == "failed"
    assert "not over this provenance.intoto.json" in done.document["provenance"]["how"]
    assert "provenance.intoto.json is another file" in done.document["signature"]["how"]


def test_a_statement_about_other_files_fails(signed: Path, mine: tuple[Path, Path]) -> None:
    rewritten(signed, "README.md", b"# other\n")
    signed_again(signed, mine[0])
    assert "README.md is another file" in provenance_of(signed, mine[1], 1, "failed")


def test_a_statement_by_another_key_fails(signed: Path, tmp_path: Path) -> None:
    done = call("verify", signed, "--public-key", keys(tmp_path, "other")[1], "--json")
    assert done.code == 1 and done.document["provenance"]["judgement"] == "failed"
    assert done.document["provenance"]["how"].startswith("it is not by the key ")
    assert [part["name"] for part in done.document["evidence"]] == ["SHA256SUMS and eaglectl.json"]


def test_a_statement_that_was_added_after_the_signature_fails(signed: Path, mine: tuple[Path, Path]) -> None:
    path = signed / "provenance.intoto.json"
    statement = path.read_bytes()
    path.unlink()
    signed_again(signed, mine[0])
    path.write_bytes(statement)
    done = call("verify", signed, "--public-key", mine[1], "--json")
    assert done.code == 1 and done.document["provenance"]["judgement"] == "failed"
    assert "not over this provenance.intoto.json" in done.document["provenance"]["how"]


def test_a_statement_whose_signer_is_not_named_proves_nothing(signed: Path) -> None:
    done = call("verify", signed, "--json")
    assert done.code == 3 and done.document["provenance"]["judgement"] == "not-looked"
    assert done.document["provenance"]["how"].startswith("anybody can sign: say who must have")


OTHERS = {
    "a signature over files": lambda folder: (folder / "model.sig").read_bytes(),
    "no JSON": lambda folder: b"{",
    "a list": lambda folder: b"[]",
    "deep": lambda folder: b"[" * 100_000,
    "another statement": lambda folder: json.dumps(
        {**statement_of(folder), "predicateType": "https://spdx.dev/Document"}
    ).encode(),
    "no statement": lambda folder: json.dumps({**statement_of(folder), "_type": "other"}).encode(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_signed_and_is_no_provenance_is_told(
    signed: Path, mine: tuple[Path, Path], name: str
) -> None:
    (signed / "provenance.intoto.json").write_bytes(OTHERS[name](signed))
    signed_again(signed, mine[0])
    assert "no SLSA provenance" in provenance_of(signed, mine[1], 3, "not-looked")


# the package


def test_nothing_private_of_the_package_is_used() -> None:
    sources = (FIXTURES.parent / "eaglectl/publishing").glob("*.py")
    private = re.compile(
        r"model_signing[\w.]*\._|from model_signing\S* import _|config\._\w+|verifier\._|signer\._\w"
    )
    uses = {path.name: private.findall(path.read_text()) for path in sources}
    assert {name: found for name, found in uses.items() if found} == {}
    assert private.findall("config._signer.sign(x)\nfrom model_signing._hashing import hashing") != []


def test_a_list_that_the_package_does_not_verify_is_not_taken(
    signed: Path, mine: tuple[Path, Path], package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model_signing import manifest

    seen: list[Any] = []
    real = manifest.Manifest.__eq__

    def compare(self: Any, other: Any) -> bool:
        seen.append((self, other))
        return bool(real(self, other))

    monkeypatch.setattr(manifest.Manifest, "__eq__", compare)
    checked(call("verify", signed, "--public-key", mine[1], "--json"), 0, "verified")
    ((stated, verified),) = seen
    assert {type(stated), type(verified)} == {manifest.Manifest} and stated is not verified
    monkeypatch.setattr(manifest.Manifest, "__eq__", lambda self, other: False)
    checked(call("verify", signed, "--public-key", mine[1], "--json"), 1, "failed")
