"""The search for secrets against every place and spelling a secret can have, and against what is none.

All secrets are made here from parts, at run time: this file holds none.
"""

import base64
import hashlib
import json
import random
import string
from pathlib import Path

import pytest

from eaglectl.errors import RefusedError
from eaglectl.files.source import FolderSource
from eaglectl.judge.rules import release as scan
from eaglectl.publish import upload as publishing_files
from eaglectl.publish.upload import check_leaks, freeze
from tests.builders import call, drafter_folder, drafter_tensors, write_safetensors
from tests.conftest import FIXTURES
from tests.processor import within

DICE = random.Random(12)
ALNUM = string.ascii_letters + string.digits


def some(count: int, letters: str = ALNUM) -> str:
    return "".join(DICE.choices(letters, k=count))


def token_of_json(**values: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


JWT = ".".join((token_of_json(alg="HS256", typ="JWT"), token_of_json(sub="1234567890"), some(43)))
HEX, UPPER = "0123456789abcdef", string.ascii_uppercase + "234567"
SECRETS = {
    "Hugging Face": "hf" + "_" + some(34, string.ascii_letters),
    "GitHub": "gh" + "p_" + some(36),
    "GitHub, fine-grained": "github" + "_pat_" + some(82),
    "GitLab": "gl" + "pat-" + some(20),
    "GitLab runner": "gl" + "rt-" + some(20),
    "AWS id": "AK" + "IA" + some(16, UPPER),
    "AWS secret, environment": "AWS_SECRET" + "_ACCESS_KEY=" + some(40),
    "AWS secret, ini": "aws_secret" + "_access_key = " + some(38) + "/+",
    "AWS secret, JSON": '"SecretAccess' + 'Key": "' + some(40) + '"',
    "Google": "AI" + "za" + some(35),
    "OpenAI": "s" + "k-" + some(20) + "T3Blbk" + "FJ" + some(20),
    "OpenAI, of a project": "s" + "k-proj-" + some(74) + "T3Blbk" + "FJ" + some(74),
    "Anthropic": "s" + "k-ant-api03-" + some(93) + "AA",
    "OpenRouter": "s" + "k-or-v1-" + some(64, HEX),
    "DeepSeek": "s" + "k-" + some(32, HEX),
    "Slack": "xo" + "xb-" + some(12, string.digits) + "-" + some(12, string.digits) + "-" + some(24),
    "npm": "np" + "m_" + some(36, string.ascii_lowercase + string.digits),
    "PyPI": "py" + "pi-AgEIcHlwaS5vcmc" + some(120),
    "Azure": "Account" + "Key=" + some(86) + "==",
    "Azure, environment": "AZURE_STORAGE" + "_KEY=" + some(86) + "==",
    "a password in a URL": "https://user:" + "secr" + "et@host/x",
    "a password of a proxy": "http://" + "bob:" + some(16) + "@10.0.0.1:3128",
    "a password without a name": "redis://:" + some(20) + "@cache:6379/0",
    "JSON web token": "Author" + "ization: Bea" + "rer " + JWT,
    "W&B": "WANDB_API" + "_KEY=" + some(40, HEX),
    "W&B, YAML": "wandb_api" + "_key: '" + some(40, HEX) + "'",
    "W&B, command": "wandb log" + "in " + some(40, HEX),
    "PEM": "-----BEGIN RSA PRIV" + "ATE KEY-----\n" + some(64),
    "OpenSSH": "-----BEGIN OPENSSH PRIV" + "ATE KEY-----\n" + some(64),
    "PGP": "-----BEGIN PGP PRIV" + "ATE KEY BLOCK-----\n\n" + some(64),
    "PuTTY 2": "PuTTY-User" + "-Key-File-2: ssh-rsa",
    "PuTTY 3": "PuTTY-User" + "-Key-File-3: ssh-ed25519",
    "bearer": "Author" + "ization: Bea" + "rer " + some(30),
    "bearer, curl": "curl -H 'author" + "ization: bea" + "rer " + some(40, HEX) + "'",
}


def found(data: bytes, name: str = "README.md", token: str | None = None) -> list[scan.Secret]:
    return list(scan.scan_file(name, len(data), lambda start, stop: data[start:stop], token))


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_seen_in_every_encoding_and_in_json_and_never_shown(kind: str) -> None:
    text = f"# A drafter é\nexport {SECRETS[kind]}\nand more\n"
    for encoding in ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        assert found(text.encode(encoding)), encoding
    secrets = found(json.dumps({"a": "x", "note": f"see {SECRETS[kind]} here"}).encode(), "config.json")
    assert secrets
    # behind a line break, a quotation mark or another escape of a notebook's cell
    for before in ("\n", "\t", '"', "\u00e9"):
        cell = json.dumps({"source": f"login{before}{SECRETS[kind]}{before}"})
        assert found(cell.encode(), "a.ipynb"), before
    assert all(part not in str(secrets) for part in SECRETS[kind].split() if len(part) > 11)


def test_a_secret_at_the_end_of_a_streamed_file_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing_files, "MAX_KEPT", 4000)
    folder = drafter_folder(tmp_path)
    (folder / "README.md").write_bytes(b"a word and more\n" * 11_250 + SECRETS["GitLab"].encode())
    frozen, sent, _ = freeze(FolderSource(folder))
    assert any(isinstance(file.content, Path) for file in sent if file.name == "README.md")
    with pytest.raises(RefusedError, match=r"README\.md holds a GitLab token"):
        check_leaks(frozen, sent, {}, None)


@pytest.mark.parametrize(
    ("rule", "text"), [("EGL115", SECRETS["JSON web token"]), ("EGL905", "/home/alice/run")]
)
def test_validate_reads_beyond_the_first_megabyte(tmp_path: Path, rule: str, text: str) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "README.md").write_bytes(b"a word\n" * 200_000 + text.encode())
    done = call("validate", folder, "--select", rule, "--fail-on", "warning")
    assert done.code == 1 and rule in done.out
    if rule == "EGL115":
        assert "line 200001" in done.out and text[:12] not in done.out + done.err


def test_every_file_is_searched(tmp_path: Path) -> None:
    folder, names = drafter_folder(tmp_path), ("NOTICE", "preview.jpg", ".env", "tokenizer.model")
    for name in names:
        (folder / name).write_bytes(b"\xff\xd8\0" + SECRETS["GitHub"].encode())
    done = call("-v", "validate", folder, "--select", "EGL115")
    assert done.code == 1 and all(f"{name} holds a GitHub token" in done.out for name in names)


@pytest.mark.parametrize("place", ["value", "key", "tensor"])
def test_the_header_of_weights_is_searched(tmp_path: Path, place: str) -> None:
    folder, secret = drafter_folder(tmp_path), SECRETS["GitHub"]
    tensors = drafter_tensors(**({secret: drafter_tensors()["norm.weight"]} if place == "tensor" else {}))
    metadata = {"value": {"a": secret}, "key": {secret: "a"}, "tensor": {}}[place]
    write_safetensors(folder / "model.safetensors", tensors, metadata)
    write_safetensors(folder / "stray.safetensors", tensors, metadata)
    done = call("validate", folder, "--select", "EGL115", "--json")
    assert done.code == 1 and "model.safetensors holds" in done.out and "stray.safetensors holds" in done.out


def test_the_data_of_weights_is_no_text(tmp_path: Path) -> None:
    data = (2).to_bytes(8, "little") + b"{}" + SECRETS["GitHub"].encode()
    assert found(data, "model.safetensors") == [] and found(data, "model.bin") != []


def test_an_unreadable_file_hides_no_secret_of_another(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "LICENSE").symlink_to("/etc/hostname")
    (folder / "README.md").write_text(SECRETS["GitLab"])
    assert "README.md holds" in call("validate", folder, "--select", "EGL115").out
    (folder / "README.md").write_text("words")
    assert "could not look" in call("validate", folder, "--select", "EGL115").out


def test_the_token_in_use_is_a_secret_of_any_shape() -> None:
    assert [kind for kind, _ in found(b"it is blue-horse-9", token="blue-horse-9")] == [
        "the token that this call uses"
    ]


PROSE = [
    "tags: sk-learning-rate-schedule-with-cosine-annealing-and-warmup-2024-steps",
    "clone git@github.com:org/drafter.git or https://github.com/org/drafter@v1.0",
    "use https://<user>:<password>@host, https://${USER}:${TOKEN}@host or https://***:***@host",
    "hf_hub_download(repo_id='org/drafter', token=os.environ['HF_TOKEN'])",
    "export HF_TOKEN=hf_... and AWS_SECRET_ACCESS_KEY=<your key> and WANDB_API_KEY=$KEY",
    "a public key: -----BEGIN PUBLIC KEY-----",
    "AWS_ACCESS_KEY commit 0123456789abcdef0123456789abcdef01234567",
    "wandb_run_commit: 0123456789abcdef0123456789abcdef01234567",
    "Authorization: Bearer $HF_TOKEN, Authorization: Bearer YOUR_OPENAI_API_KEY_GOES_HERE",
    "pypi-AgEIcHlwaS5vcmc and npm_config_registry begin no token; azure_key = <your key>",
    "secret sauce: internationalisation/of/very_long_words_in_paths_of_forty",
]


def test_prose_is_no_secret() -> None:
    assert [text for text in PROSE if found(text.encode())] == []


def vocabulary() -> dict[str, int]:
    """Words, their parts, and random tokens of every sort, as a tokenizer has them."""
    parts = ["sk-", "ey", "hf_", "AKIA", "wandb", "secret", "://", "@", "xox", "glpat-", "api_key", "aws"]
    signs = ALNUM + "+/_-.:=@"
    tokens: dict[str, int] = {}
    while len(tokens) < 30_000:
        word = DICE.choice(parts) if DICE.random() < 0.2 else ""
        tokens[("Ġ" if DICE.random() < 0.3 else "") + word + some(DICE.randint(1, 12), signs)] = len(tokens)
    return tokens


def test_a_vocabulary_is_no_secret() -> None:
    tokens = vocabulary()
    words = list(tokens)
    merges = [f"{DICE.choice(words)} {DICE.choice(words)}" for _ in range(40_000)]
    document = {"model": {"type": "BPE", "vocab": tokens, "merges": merges}}
    data = json.dumps(document, ensure_ascii=False).encode()
    assert len(data) > 1_000_000 and found(data, "tokenizer.json") == []
    assert found("\n".join(merges).encode(), "merges.txt") == []
    ranks = "\n".join(f"{base64.b64encode(word.encode()).decode()} {rank}" for rank, word in enumerate(words))
    assert found(ranks.encode(), "tiktoken.model") == []


def test_hashes_and_base64_are_no_secret() -> None:
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(2000)]
    sums = "".join(f"{digest}  file-{digest[:3]}\n" for digest in digests)
    for data in (sums.encode(), base64.b64encode(DICE.randbytes(1 << 18)), DICE.randbytes(1 << 18)):
        assert found(data, "merges") == []


def test_every_pattern_is_looked_for_and_the_documents_give_their_number() -> None:
    assert all(keyword == keyword.lower() for rule in scan.SECRETS for keyword in rule.keywords)
    for page, words in (("SECURITY.md", "kinds of credentials"), ("docs/rules.md", "patterns of secrets")):
        assert f"{len(scan.SECRETS)} {words}" in (FIXTURES.parent / page).read_text()


@pytest.mark.parametrize("shape", ["", "-", " = "])
def test_no_rule_needs_the_square_of_a_files_length(shape: str) -> None:
    """A rule of quadratic time takes minutes here, a linear one milliseconds."""
    for rule in scan.SECRETS:
        data = (rule.keywords[0] + shape.encode()) * (8000 // len(rule.keywords[0]))
        with within(50):
            list(scan._spans(data, data.lower(), rule))
