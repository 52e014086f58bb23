"""model.sig by the key of a certificate: signed by `upload`, verified by the roots in a file."""

import datetime
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eaglectl import api
from tests.builders import STATED, Outcome, call, drafter_folder
from tests.test_signature import downloaded

pytest.importorskip("model_signing.signing", exc_type=ImportError, reason="the sign extra is not installed")
x509 = pytest.importorskip("cryptography.x509")

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
OTHER_USES = (
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "encipher_only",
    "decipher_only",
)


def name_of(common: str) -> Any:
    from cryptography.x509.oid import NameOID

    values = ((NameOID.COMMON_NAME, common), (NameOID.ORGANIZATION_NAME, "Drafts"))
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in values])


class Authority:
    """A root, made by `cryptography`, that issues certificates into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self.folder, self.name = folder, name_of(name)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.root = folder / f"{name}.pem"
        self.certify(self.root, self.name, self.key, is_authority=True)

    def certify(
        self,
        path: Path,
        subject: Any,
        key: Any,
        *,
        is_authority: bool = False,
        can_sign: bool = True,
        days: int = 9,
    ) -> None:
        """Write a certificate that is valid for so many days more."""
        from cryptography.hazmat.primitives import hashes, serialization

        uses = {"digital_signature": can_sign, "key_cert_sign": is_authority, "crl_sign": is_authority}
        usage = x509.KeyUsage(**uses, **dict.fromkeys(OTHER_USES, False))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 20 * DAY)
            .not_valid_after(NOW + days * DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self.key, hashes.SHA256())
        )
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: bytes | None = None, **options: Any) -> tuple[Path, Path]:
        """A private key and its certificate."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        private, certificate = self.folder / f"{name}.key", self.folder / f"{name}.crt"
        kind: Any = serialization.NoEncryption()
        if password:
            kind = serialization.BestAvailableEncryption(password)
        form = serialization.PrivateFormat.PKCS8
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, kind))
        self.certify(certificate, name_of(name), key, **options)
        return private, certificate


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("EAGLECTL_KEY_PASSWORD", raising=False)
    monkeypatch.chdir(tmp_path)
    drafter_folder(tmp_path, card=STATED)
    return Authority(tmp_path, "root")


def dry(*options: str | Path) -> Outcome:
    return call("upload", "drafter", "org/drafter", "--dry-run", *options)


def sign(key: Path, certificate: Path, *more: str | Path) -> Outcome:
    return dry("--sign", key, "--signing-certificate", certificate, *more)


def signed(key: Path, certificate: Path | None = None, chain: Path | None = None) -> Path:
    """What a download of the signed drafter holds."""
    files = [None if path is None else str(path) for path in (certificate, chain)]
    signer = api.SigningKey(str(key), os.environ.get("EAGLECTL_KEY_PASSWORD"), *files)
    done = api.upload("drafter", "org/drafter", api.UploadOptions(dry_run=True, signer=signer))
    return downloaded(done.plan.files, Path("download"))


def judged(folder: Path, chain: Path) -> tuple[int, dict[str, Any]]:
    done = call("verify", folder, "--certificate-chain", chain, "--json")
    return done.code, done.document


def test_a_certificate_under_the_root_verifies_and_names_its_holder(authority: Authority) -> None:
    folder = signed(*authority.issue("release"))
    code, document = judged(folder, authority.root)
    assert code == 0, document
    for part in ("signature", "provenance"):
        assert document[part]["judgement"] == "verified"
        assert document[part]["how"].startswith("by O=Drafts,CN=release, the holder of a certificate under ")
    assert document["signature"]["how"].endswith("over 6 files")
    text = " ".join(call("verify", folder, "--certificate-chain", authority.root).out.split())
    assert "whether the certificate had expired or was revoked when it signed" in text
    assert "signed by O=Drafts,CN=release" in text


def test_model_signing_itself_verifies_it(authority: Authority) -> None:
    from model_signing import verifying

    folder = signed(*authority.issue("release"))
    config = verifying.Config().use_certificate_verifier(certificate_chain=[authority.root])
    config.verify(folder, folder / "model.sig")


def test_certificates_in_between_go_into_the_signature(authority: Authority, tmp_path: Path) -> None:
    middle = Authority(tmp_path, "middle")
    authority.certify(middle.root, middle.name, middle.key, is_authority=True)
    key, certificate = middle.issue("release")
    assert judged(signed(key, certificate, middle.root), authority.root)[0] == 0
    (tmp_path / "download").rename(tmp_path / "with")
    code, document = judged(signed(key, certificate), authority.root)
    assert (code, document["signature"]["judgement"]) == (1, "failed")


@pytest.mark.parametrize("how", ["another root", "the leaf itself", "a changed file"])
def test_what_the_root_does_not_vouch_for_fails(authority: Authority, tmp_path: Path, how: str) -> None:
    key, certificate = authority.issue("release")
    folder = signed(key, certificate)
    roots = {"another root": Authority(tmp_path, "other").root, "the leaf itself": certificate}
    if how == "a changed file":
        (folder / "config.json").write_text("{}")
    code, document = judged(folder, roots.get(how, authority.root))
    assert (code, document["signature"]["judgement"]) == (1, "failed"), document


def test_a_signature_by_a_plain_key_has_no_certificate(authority: Authority) -> None:
    code, document = judged(signed(authority.issue("release")[0]), authority.root)
    assert (code, document["signature"]["judgement"]) == (1, "failed")


def test_a_policy_names_the_roots(authority: Authority) -> None:
    folder = signed(*authority.issue("release"))
    policy = Path("eaglectl.toml")
    policy.write_text('[verify]\nrequire-signature = true\ncertificate-chain = "root.pem"\n')
    assert call("verify", folder).code == 0
    (folder / "model.sig").unlink()
    assert call("verify", folder).code == 1
    policy.write_text('[verify]\npublic-key = "a"\ncertificate-chain = "root.pem"\n')
    assert call("verify", folder).code == 2


@pytest.mark.parametrize("content", ["", "-----BEGIN"])
def test_a_file_without_certificates_is_no_failed_signature(authority: Authority, content: str) -> None:
    Path("empty.pem").write_text(content)
    code, document = judged(signed(*authority.issue("release")), Path("empty.pem"))
    assert code == 3 and "holds no certificates in PEM" in document["signature"]["how"]
    assert call("verify", "download", "--certificate-chain", "nowhere.pem").code == 3


def test_a_certificate_that_could_not_be_verified_is_refused(authority: Authority) -> None:
    key, certificate = authority.issue("release")
    other, _ = authority.issue("other")
    Path("no.crt").write_text("no certificate")
    for code, says, done in (
        (3, "must be of its public key", sign(other, certificate)),
        (3, "and not now", sign(*authority.issue("expired", days=-1))),
        (3, "is not for signatures", sign(*authority.issue("useless", can_sign=False))),
        (3, "no certificate in PEM", sign(key, Path("no.crt"))),
        (3, "no.pem", sign(key, certificate, "--certificate-chain", "no.pem")),
        (2, "the key is encrypted", sign(*authority.issue("closed", b"secret"))),
        (2, "makes its own certificates", sign(Path("sigstore"), certificate)),
        (2, "go with --sign", dry("--signing-certificate", certificate)),
        (2, "goes with --signing-certificate", dry("--sign", key, "--certificate-chain", authority.root)),
    ):
        assert (done.code, says in " ".join(done.err.split())) == (code, True), done


def test_an_encrypted_key_signs_beside_its_certificate(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = authority.issue("closed", b"opensesame")
    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", "wrong")
    done = sign(key, certificate)
    assert done.code == 3 and "the password does not open it" in done.err and "wrong" not in done.err
    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", "opensesame")
    other = sign(key, authority.issue("other")[1])
    assert other.code == 3 and "other.crt must be of its public key" in other.err
    done = sign(key, certificate)
    assert done.code == 0 and "opensesame" not in done.out + done.err
    signer = api.SigningKey(str(key), "opensesame", str(certificate))
    plan = api.upload("drafter", "org/drafter", api.UploadOptions(dry_run=True, signer=signer)).plan
    code, document = judged(downloaded(plan.files, Path("download")), authority.root)
    assert code == 0 and document["signature"]["judgement"] == "verified"


MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so")
PIN = "4321"


@pytest.fixture
def token(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """The URI of a key in a token of SoftHSM, and the certificate of its public key."""
    pytest.importorskip("PyKCS11", reason="the package PyKCS11 is not installed")
    module = next((path for path in MODULES if Path(path).exists()), None)
    if module is None or shutil.which("softhsm2-util") is None:
        pytest.skip("SoftHSM (softhsm2) is not installed")
    store, settings = authority.folder / "tokens", authority.folder / "softhsm2.conf"
    store.mkdir()
    settings.write_text(f"directories.tokendir = {store}\nobjectstore.backend = file\nlog.level = ERROR\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(settings))
    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", PIN)
    key, certificate = authority.issue("held")
    utility = ["softhsm2-util", "--token", "release"]
    for arguments in (
        ["--init-token", "--free", "--label", "release", "--so-pin", PIN, "--pin", PIN],
        ["--import", str(key), "--label", "signer", "--id", "01", "--pin", PIN],
    ):
        subprocess.run([*utility, *arguments], check=True, capture_output=True)
    key.unlink()
    return f"pkcs11:token=release;object=signer?module-path={module}", certificate


def test_a_token_signs_beside_its_certificate(authority: Authority, token: tuple[str, Path]) -> None:
    uri, certificate = token
    folder = signed(Path(uri), certificate)
    code, document = judged(folder, authority.root)
    assert code == 0 and document["signature"]["how"].startswith("by O=Drafts,CN=held, the holder of")


def test_a_token_with_the_certificate_of_another_key_is_refused(
    authority: Authority, token: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, certificate = token
    other = authority.issue("other")[1]
    done = dry("--sign", uri, "--signing-certificate", other)
    assert done.code == 3 and "must be of its public key" in done.err and PIN not in done.err
    monkeypatch.setenv("EAGLECTL_KEY_PASSWORD", "0000")
    done = dry("--sign", uri, "--signing-certificate", certificate)
    assert done.code == 3 and "is the token there, and the PIN right?" in done.err and "0000" not in done.err


def test_ways_to_say_who_signed_exclude_each_other(authority: Authority) -> None:
    signed(*authority.issue("release"))
    both = ("--certificate-chain", authority.root, "--public-key", authority.root)
    assert call("verify", "download", *both).code == 2
