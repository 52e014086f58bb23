"""`eaglectl verify`: a folder or a repository against its lists, and what `convert` wrote by its tensors."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from blake3 import blake3

import eaglectl
from eaglectl.api.convert import ConvertOptions
from tests.builders import STATED, call, contents, drafter_folder, read_safetensors
from tests.cards import release
from tests.conftest import FIXTURES
from tests.hub import LoopbackHub, client_hub

WEIGHTS, HASH = "model.safetensors", "0" * 64
ENTRY = f'"config.json": {{"size": 1, "sha256": "{HASH}"}}'
SCHEMA, RECORD = (
    jsonschema.Draft202012Validator(json.loads((FIXTURES.parent / f"schemas/{name}.schema.json").read_text()))
    for name in ("verify", "provenance")
)
Change = Callable[[Path], object]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a download of a published drafter holds."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    drafter = drafter_folder(tmp_path, card=STATED)
    (drafter / "model.sig").write_text("{}")
    return release(drafter, tmp_path / "download")


@pytest.fixture
def hub(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub with the published drafter."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with client_hub(monkeypatch, tmp_path) as running:
        running.add_repo("org/drafter", published)
        yield running


def converted(tmp_path: Path, options: ConvertOptions | None = None) -> Path:
    """A drafter that `convert` wrote."""
    eaglectl.convert(str(drafter_folder(tmp_path, "source")), tmp_path / "out", options or ConvertOptions())
    return tmp_path / "out"


@pytest.fixture(
    params=[ConvertOptions(), ConvertOptions(max_shard_size=1 << 30), ConvertOptions(dtype="F32")],
    ids=["copied as a whole", "written by tensors", "of another dtype"],
)
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return converted(tmp_path, request.param)


def kinds(*arguments: str | Path) -> dict[str, list[str]]:
    """What each file was compared by, where all are equal."""
    done = call("verify", *arguments, "--json")
    assert (done.code, done.document["verdict"]) == (0, "equal"), done
    SCHEMA.validate(done.document)
    return {file["name"]: file["by"] for file in done.document["files"]}


def differing(*arguments: str | Path) -> dict[str, tuple[str, str]]:
    """The judgement of each file that is not as published, and how it differs."""
    done = call("verify", *arguments, "--json")
    assert (done.code, done.document["verdict"]) == (1, "differs"), done
    SCHEMA.validate(done.document)
    files = [file for file in done.document["files"] if file["judgement"] != "same"]
    return {file["name"]: (file["judgement"], file["how"]) for file in files}


def judged(*arguments: str | Path) -> dict[str, str]:
    """The judgement of each file that is not as published."""
    return {name: judgement for name, (judgement, _) in differing(*arguments).items()}


# --- a folder and its lists


def test_what_was_published_is_equal(published: Path) -> None:
    before = contents(published)
    done = call("verify", published, "--json")
    assert (done.code, done.document["lists"]) == (0, ["SHA256SUMS", "eaglectl.json"])
    SCHEMA.validate(done.document)
    assert contents(published) == before
    RECORD.validate(json.loads((published / "eaglectl.json").read_text()))


def flip(path: Path, position: int = -1) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def flipped(name: str, position: int = -1) -> Change:
    return lambda folder: flip(folder / name, position)


def edited(name: str, edit: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def gone(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def added(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"auto_map": {"AutoTokenizer": "x.X"}}')

    return change


def swap_names(data: bytes) -> bytes:
    """Two norms under each other's names: the same bytes at the same places."""
    a, b, free = (b'"layers.0.hidden_norm.weight"', b'"layers.0.input_layernorm.weight"', b'"~"')
    return data.replace(a, free, 1).replace(b, a, 1).replace(free, b, 1)


def fit_one_list(folder: Path) -> None:
    before = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    flip(folder / "config.json")
    after = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    sums = folder / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(before, after))


def list_in_one(folder: Path) -> None:
    (folder / "evil.json").touch()
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{hashlib.sha256().hexdigest()}  evil.json\n")


def link(folder: Path) -> None:
    outside = folder.parent
    for name in ("config.json", "model.sig"):
        (folder / name).symlink_to((folder / name).rename(outside / name))
    (folder / "README.md").rename(folder / "card")
    (folder / "README.md").symlink_to("card")
    (folder / "extra").symlink_to(outside)
    (folder / "nowhere").symlink_to("nowhere")


def pipe(folder: Path) -> None:
    (folder / "README.md").unlink()
    for name in ("README.md", "generation_config.json"):
        os.mkfifo(folder / name)


ADDED = [
    "more.safetensors", "adapter_config.json", "MODEL.SAFETENSORS", "Modeling.PY", ".env", "model/.metadata",
    "original/consolidated.00.pth", ".cache/huggingface/modeling.py", ".cache/x", ".git/config",
    ".cache/huggingface/download/modeling.py", "sub/.gitattributes", "sub/model.sig", "sub/SHA256SUMS",
    "a\nb.json",
]  # fmt: skip
LINKED = {"config.json": "differs", "README.md": "differs"}
LINKED |= dict.fromkeys(("card", "extra", "model.sig", "nowhere"), "unlisted")
# a change, what differs by it, and a word of how
DOWNLOADS: dict[str, tuple[Change, dict[str, str], str]] = {
    "weights": (flipped(WEIGHTS), {WEIGHTS: "differs"}, "SHA-256"),
    "config": (flipped("config.json"), {"config.json": "differs"}, "SHA-256"),
    "cut weights": (edited(WEIGHTS, lambda data: data[:-9]), {WEIGHTS: "differs"}, "SHA-256"),
    "no config": (gone("config.json"), {"config.json": "missing"}, "listed and missing"),
    "one list made to fit": (fit_one_list, {"config.json": "differs"}, ""),
    "a file of one list": (list_in_one, {"evil.json": "unlisted"}, ""),
    "links": (link, LINKED, ""),
    "pipes": (pipe, {"generation_config.json": "unlisted", "README.md": "differs"}, ""),
    **{name: (added(name), {name: "unlisted"}, "not in SHA256SUMS") for name in ADDED},
}
CONVERTED: dict[str, tuple[Change, dict[str, str], str]] = {
    "another dtype": (
        edited(WEIGHTS, lambda data: data.replace(b'"BF16"', b' "F16"', 1)),
        {WEIGHTS: "differs"},
        "another header",
    ),
    "swapped names": (edited(WEIGHTS, swap_names), {WEIGHTS: "differs"}, "hidden_norm"),
    "a broken header": (flipped(WEIGHTS, 8), {WEIGHTS: "differs"}, "has an unreadable header"),
    "a byte more": (edited(WEIGHTS, lambda data: data + b"\0"), {WEIGHTS: "differs"}, "bytes"),
    "the card": (flipped("README.md", 0), {"README.md": "differs"}, "SHA-256"),
    "no config": (gone("config.json"), {"config.json": "missing"}, "listed and missing"),
    "code": (added("modeling.py"), {"modeling.py": "unlisted"}, "not in eaglectl.json"),
}


def assert_differs(folder: Path, case: tuple[Change, dict[str, str], str]) -> None:
    change, judgements, says = case
    change(folder)
    found = differing(folder)
    assert {name: judgement for name, (judgement, _) in found.items()} == judgements
    assert all(says in how for _, how in found.values())
    shown = call("verify", folder).out
    assert all(name.partition("\n")[0] in shown for name in judgements)


@pytest.mark.fast(14)
@pytest.mark.parametrize("case", DOWNLOADS)
def test_each_difference_of_a_download_is_named(published: Path, case: str) -> None:
    assert_differs(published, DOWNLOADS[case])


@pytest.mark.parametrize("case", CONVERTED)
def test_each_change_of_what_convert_wrote_is_named(tmp_path: Path, case: str) -> None:
    assert_differs(converted(tmp_path), CONVERTED[case])


@pytest.mark.parametrize("name", ["SHA256SUMS", "eaglectl.json"])
def test_one_list_is_enough(published: Path, name: str) -> None:
    (published / name).unlink()
    if name == "eaglectl.json":
        lines = (published / "SHA256SUMS").read_text().splitlines(keepends=True)
        (published / "SHA256SUMS").write_text("".join(line for line in lines if name not in line))
    assert call("verify", published).code == 0


def test_what_the_hubs_client_keeps_is_no_difference(published: Path) -> None:
    names = [".cache/huggingface/download/config.json.metadata", ".gitattributes"]
    (published / names[0]).parent.mkdir(parents=True)
    for name in names:
        (published / name).write_text("0" * 40)
    done = call("verify", published, "--json")
    assert (done.code, done.document["others"]) == (0, names)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SHA256SUMS", "hello"),
        ("SHA256SUMS", ""),
        ("eaglectl.json", "{"),
        ("eaglectl.json", '{"published": {"files": 3}}'),
        ("eaglectl.json", '{"published": {"files": {}}}'),
        ("eaglectl.json", '{"published": {"files": {"config.json": {"size": "3"}}}}'),
        ("eaglectl.json", f'{{"published": {{"files": {{{ENTRY}, {ENTRY}}}}}}}'),
    ],
)
def test_a_broken_list_is_no_pass(published: Path, name: str, text: str) -> None:
    (published / name).write_text(text)
    done = call("verify", published)
    assert done.code == 3 and name in done.err


def test_without_a_list_nothing_is_compared(tmp_path: Path) -> None:
    done = call("verify", drafter_folder(tmp_path))
    assert done.code == 3 and "nothing to compare with" in done.err
    assert call("verify", "nowhere").code == 3


def test_a_listed_name_that_leaves_the_folder_is_not_read(published: Path) -> None:
    (published / "SHA256SUMS").write_text(f"{'0' * 64}  ../drafter/config.json\n")
    assert differing(published)["../drafter/config.json"][0] == "missing"


# --- what convert wrote


def test_what_convert_wrote_is_equal(out: Path) -> None:
    assert kinds(out) == {"README.md": ["sha256"], "config.json": ["sha256"], WEIGHTS: ["tensors"]}
    record = json.loads((out / "eaglectl.json").read_text())
    RECORD.validate(record)
    for side, folder in (("source", out.parent / "source"), ("output", out)):
        tensors = read_safetensors(folder / WEIGHTS)
        stated = record[side]["files"][WEIGHTS]["tensors"]
        assert stated == {name: blake3(data).hexdigest() for name, (_, _, data) in tensors.items()}
    assert "compared: SHA-256, the digests of the header and of each tensor\n" in call("verify", out).out


def test_shards_and_their_index_are_covered(tmp_path: Path) -> None:
    options = ConvertOptions(max_shard_size=20_000)
    eaglectl.convert(str(FIXTURES / "producers/vllm/native"), tmp_path / "out", options)
    by = kinds(tmp_path / "out")
    assert by["model.safetensors.index.json"] == ["sha256"]
    assert sum(digests == ["tensors"] for digests in by.values()) > 1


@pytest.mark.parametrize("name", ["fc.weight", "d2t"])
def test_the_tensor_that_differs_is_named(out: Path, name: str) -> None:
    data = (out / WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    flip(out / WEIGHTS, start + json.loads(data[8:start])[name]["data_offsets"][1] - 1)
    document = call("verify", out, "--json").document
    assert [file["tensors"] for file in document["files"] if file["name"] == WEIGHTS] == [[name]]
    assert f"{WEIGHTS} has other bytes than in eaglectl.json, in {name}" in call("verify", out).out


def test_a_linked_file_has_no_digest_and_is_no_pass(tmp_path: Path) -> None:
    linked, folder = tmp_path / "linked", converted(tmp_path)
    eaglectl.convert(str(folder), linked, ConvertOptions(link=True))
    assert (linked / WEIGHTS).samefile(folder / WEIGHTS)
    done = call("verify", linked, "--json")
    assert (done.code, done.document["verdict"]) == (3, "could-not-look")
    SCHEMA.validate(done.document)
    judged = {file["name"]: file["judgement"] for file in done.document["files"]}
    assert judged == {"README.md": "same", "config.json": "same", WEIGHTS: "not-looked"}
    assert "linked by `convert --link`, which reads no data" in call("verify", linked).out
    flip(linked / "config.json", 5)
    assert call("verify", linked).code == 1


def test_a_record_from_before_blake3_is_verified_by_its_sha256(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    record = json.loads((folder / "eaglectl.json").read_text())
    file, data = record["output"]["files"][WEIGHTS], (folder / WEIGHTS).read_bytes()
    del file["digest"]
    file["header"] = hashlib.sha256(data[: 8 + int.from_bytes(data[:8], "little")]).hexdigest()
    tensors = read_safetensors(folder / WEIGHTS)
    file["tensors"] = {name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in tensors.items()}
    RECORD.validate(record)
    (folder / "eaglectl.json").write_text(json.dumps(record))
    assert call("verify", folder).code == 0
    flip(folder / WEIGHTS)
    assert call("verify", folder).code == 1
    file["digest"] = "md5"
    (folder / "eaglectl.json").write_text(json.dumps(record))
    done = call("verify", folder)
    assert done.code == 3 and "eaglectl.json cannot be used" in done.err


# --- a repository, without its weights, and a folder against a repository's listing


def test_a_repository_is_verified_without_its_weights(hub: LoopbackHub) -> None:
    by = kinds("org/drafter")
    assert by[WEIGHTS] == ["lfs-sha256"] and by["config.json"] == ["sha256"]
    assert not [request for request in hub.requests if request.path.endswith(WEIGHTS)]
    assert not [request for request in hub.requests if request.is_elsewhere]
    assert "compared: SHA-256, the SHA-256 that the Hub lists\n" in call("verify", "org/drafter").out


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "eaglectl.json", "code/modeling.py"])
def test_a_file_that_was_replaced_on_the_hub_or_added_is_named(hub: LoopbackHub, name: str) -> None:
    blob = hub.repos["org/drafter"].files().get(name)
    hub.repos["org/drafter"].commit({name: bytes(blob.data if blob else b"") + b"\n"})  # type: ignore[arg-type]
    assert judged("org/drafter") == {name: "differs" if blob else "unlisted"}


def test_a_converted_repository_has_digests_of_its_tensors_alone(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo("org/converted", converted(tmp_path))
    done = call("verify", "org/converted")
    assert done.code == 3 and "only digests of its tensors: download the" in done.out


def test_a_folder_is_verified_against_the_listing(hub: LoopbackHub, published: Path) -> None:
    by = kinds(published, "--against", "org/drafter")
    assert by[WEIGHTS] == ["sha256", "lfs-sha256"] and by["config.json"] == ["sha256", "git-id"]
    assert by["SHA256SUMS"] == ["git-id"]
    (only,) = {request.path.rpartition("/")[2] for request in hub.requests}
    assert only == "main"
    lists = call("verify", published, "--against", "org/drafter", "--json").document["lists"]
    commit = hub.repos["org/drafter"].head()
    assert lists == ["SHA256SUMS", "eaglectl.json", f"org/drafter@{commit[:12]}"]


def test_each_difference_from_the_listing_is_named(hub: LoopbackHub, tmp_path: Path) -> None:
    """A folder without lists of its own: the Hub's alone says what must be there."""
    folder = drafter_folder(tmp_path / "other", card=STATED)
    hub.add_repo("org/plain", folder)
    assert call("verify", folder, "--against", "org/plain").code == 0
    flip(folder / WEIGHTS)
    flip(folder / "config.json", 5)
    (folder / "added.txt").touch()
    found = differing(folder, "--against", "org/plain")
    assert {name: judgement for name, (judgement, _) in found.items()} == {
        WEIGHTS: "differs",
        "config.json": "differs",
        "added.txt": "unlisted",
    }
    assert "SHA-256" in found[WEIGHTS][1] and "git id" in found["config.json"][1]
    (folder / "config.json").unlink()
    assert differing(folder, "--against", "org/plain")["config.json"][0] == "missing"


def test_what_contradicts_itself_is_told(hub: LoopbackHub, published: Path) -> None:
    verify = partial(call, "verify")
    assert verify("org/drafter", "--against", "org/drafter").code == 2
    assert verify(published, "--against", str(published)).code == 2
    assert verify(published, "--against", "org/nothing").code == 3
    assert call("--offline", "verify", published, "--against", "org/drafter").code == 3
    assert call("--offline", "verify", "org/drafter").code == 3


# --- against whoever can change a download: what was added, linked, listed twice or stripped


def test_a_name_that_is_no_text_is_a_difference(published: Path) -> None:
    (published / os.fsdecode(b"\xff.json")).write_text("{}")
    assert [call("verify", published, *more).code for more in ((), ("--json",))] == [1, 1]


def test_a_signature_is_not_looked_into_and_the_report_says_so(published: Path) -> None:
    done = call("verify", published)
    assert done.code == 0 and "model.sig was not checked: `model_signing verify`" in done.out
    (published / "model.sig").unlink()
    assert call("verify", published).code == 0 and "model.sig" not in call("verify", published).out


@pytest.mark.parametrize(("prefix", "is_first"), [("", True), ("", False), ("./", True)])
def test_two_digests_of_one_name_are_a_difference(published: Path, prefix: str, is_first: bool) -> None:
    sums = published / "SHA256SUMS"
    sums.write_text(sums.read_text() * 2)  # one digest, stated twice
    assert call("verify", published).code == 0
    other = f"{HASH}  {prefix}config.json\n"
    sums.write_text(other + sums.read_text() if is_first else sums.read_text() + other)
    assert judged(published) == {"config.json": "differs"}
    assert f"{HASH[:12]}..." in call("verify", published).out
    done = call("validate", published, "--select", "EGL904", "--json")
    assert done.code == 1 and "2 digests for config.json" in done.out


def test_a_record_is_required_by_an_option_or_by_a_policy_outside_of_the_download(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model.sig", "SHA256SUMS"):
        (published / name).unlink()
    assert call("verify", published, "--require-record").code == 0
    (published / "eaglectl.json").unlink()
    assert call("verify", published).code == 3
    assert judged(published, "--require-record")["eaglectl.json"] == "missing"
    for folder, is_required in ((published.parent, "true"), (published, "false")):
        (folder / "eaglectl.toml").write_text(f"[verify]\nrequire-record = {is_required}\n")
    assert judged(published)["eaglectl.json"] == "missing"
    monkeypatch.chdir(published)
    assert judged(".")["eaglectl.json"] == "missing"
    (published.parent / "eaglectl.toml").write_text("[verify]\nrequire-signature = true\n")
    done = call("verify", published)
    assert done.code == 2 and "require-signature" in done.err and "`$.verify" in done.err


def test_hundreds_of_added_files_are_counted(published: Path) -> None:
    (published / "sub").mkdir()
    for number in range(300):
        (published / f"sub/{number}").touch()
    out = call("verify", published).out
    assert "and 260 more" in out and len(out) < 10_000
