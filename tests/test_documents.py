"""Every JSON document has a schema, every schema a document, and a verdict the same words everywhere."""

import ast
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl import verdicts
from eaglectl.conversion.upgrade import Statistics, write_statistics
from eaglectl.publish.card import read_training
from eaglectl.run.job import LoadResult
from schemas import documents
from tests.builders import SGLANG, STATED, VLLM, call, drafter_folder, refusal
from tests.cases import CASES, Case, file_digests
from tests.conftest import FIXTURES
from tests.modules import nodes
from tests.pages import smoke_report
from tools import demo, tour

SCHEMAS = FIXTURES.parent / "schemas"
SCHEMA_ID = re.compile(r"eaglectl/([a-z]+)/(\d+)")
PRODUCERS = FIXTURES / "producers"
NATIVE, IDS = str(PRODUCERS / "vllm/native"), str(PRODUCERS / "modelopt/hf-ids")
DIGEST = "0" * 64
RESOLVED = {
    "class": "Eagle3LlamaForCausalLM",
    "layers": 1,
    "fc_norm": True,
    "norm_output": True,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "fc": [32, 96],
    "own_embed_tokens": True,
    "own_lm_head": True,
}


@cache
def constants() -> list[tuple[str, str]]:
    """Every text in the code, with the name of its file."""
    return [
        (Path(name).name, node.value)
        for name, node in nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def command(*arguments: str) -> Callable[[Path], Any]:
    return lambda _: call(*arguments, "--json").document


def statistics() -> Statistics:
    return Statistics(
        digests=dict.fromkeys(("drafter", "target", "prompts"), DIGEST),
        prompts=(DIGEST[:16],),
        boundaries=(2, 4, 5),
        eps=1e-6,
        tokens=99,
        rms=(0.5, 1.0, 4.0),
        spread=(0.1, 0.1, 0.1),
        sigma=2.0,
        sigmas={},
        is_direction=False,
        engine={"name": "transformers", "device": "cpu", "dtype": "float32"},
    )


def written_statistics(folder: Path) -> Any:
    write_statistics(statistics(), folder / "statistics", force=False)
    return json.loads((folder / "statistics/statistics.json").read_text())


def smoked(_: Path) -> Any:
    report = smoke_report()
    return replace(report, run=replace(report.run, engine="reference")).to_dict()


def diagnosed(_: Path) -> Any:
    """One that ends before anything runs, with a run beside it."""
    diagnosis = eaglectl.diagnose(NATIVE, NATIVE)
    evidence = replace(diagnosis.evidence, reference=smoke_report())
    return replace(diagnosis, evidence=evidence).to_dict()


def planned_upload(folder: Path) -> Any:
    return call("upload", drafter_folder(folder, card=STATED), "org/name", "--dry-run", "--json").document


def verified(folder: Path) -> Any:
    checkpoint = drafter_folder(folder)
    digests = file_digests(checkpoint)
    (checkpoint / "SHA256SUMS").write_text("".join(f"{digests[name]}  {name}\n" for name in digests))
    return call("verify", checkpoint, "--json").document


CHECKED_BELOW = {"convert", "inspect", "provenance"}  # of every fixture
DOCUMENTS: dict[str, Callable[[Path], Any]] = {
    "calibrate": lambda _: replace(statistics(), out="statistics").to_dict(),
    "diagnose": diagnosed,
    "diff": command("diff", NATIVE, IDS),
    "engines": command("engines"),
    "error": command("inspect", "nowhere/at/all"),
    "load": lambda _: LoadResult("0.32.0", ("norm.weight",), RESOLVED).to_dict(),
    "ready": command("ready", NATIVE),
    "rules": command("rules"),
    "smoke": smoked,
    "statistics": written_statistics,
    "training": lambda _: read_training(FIXTURES / "cards/training.json"),
    "upload": planned_upload,
    "validate": command("validate", NATIVE),
    "verify": verified,
}


def test_every_schema_and_every_id_in_the_code_has_a_document_here() -> None:
    ids = {found[1] for _, text in constants() if (found := SCHEMA_ID.fullmatch(text))}
    assert ids == CHECKED_BELOW | set(DOCUMENTS)
    names = set()
    for path in SCHEMAS.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
        names.add(path.name.removesuffix(".schema.json"))
    others = ("published", "eaglectl.toml", "pyproject.toml")
    of_files = {name for name in names if name.startswith("config-") or name in others}
    assert names - of_files == CHECKED_BELOW | set(DOCUMENTS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_keeps_its_schema(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    document = json.loads(json.dumps(DOCUMENTS[name](tmp_path)))
    assert SCHEMA_ID.fullmatch(document["schema"])[1] == name  # type: ignore[index]
    schema(name).validate(document)


@cache
def schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


@pytest.mark.fast(8)
@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_json_and_provenance_keep_their_schemas(case: Case, tmp_path: Path) -> None:
    done = call("inspect", case.folder, "--json", *case.options)
    assert (done.code, done.err) == (0, "")
    schema("inspect").validate(done.document)
    done = call("convert", case.folder, "-o", tmp_path / "out", "--json", *case.options)
    assert done.code == 0
    schema("convert").validate(done.document)
    schema("provenance").validate(json.loads((tmp_path / "out/eaglectl.json").read_text()))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["inspect", "org/name"], 3),
        (["convert", PRODUCERS / "specforge/eagle3.1"], 2),
        (["convert", PRODUCERS / "torchspec/pruned"], 1),
        (["convert", PRODUCERS / "speculators/eagle3.1", "--to", "3"], 1),
        (["inspect", NATIVE, "--engine", "llamacpp==1"], 2),
    ],
)
def test_an_error_is_one_sentence_and_one_document(
    given: list[str | Path], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refusal(code, *given)
    schema("error").validate(call(*given, "--json").document)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fixture", "headline"),
    [
        ("speculators/eagle3.1", "EAGLE-3.1 drafter from speculators\n"),
        ("specforge/gqa-ids", "EAGLE-3 drafter from SpecForge\n"),
        ("vllm/native", "EAGLE-3 drafter in vLLM's layout\n"),
        ("sglang/aux-norm", "EAGLE-3.1 drafter in SGLang's layout\n"),
    ],
)
def test_a_plain_screen_names_who_trained_and_no_engines_layout_as_that(fixture: str, headline: str) -> None:
    done = call("inspect", PRODUCERS / fixture)
    assert done.code == 0 and f"\nDrafter  {headline}" in done.out
    layers = "unknown" if fixture == "specforge/gqa-ids" else "2, 4, 5"
    assert f"\n  layers      trained on {layers} (" in done.out
    assert "\x1b" not in done.out and not any(line.endswith(" ") for line in done.out.splitlines())


def test_a_folder_of_checkpoints_lists_drafters_and_names_others_apart() -> None:
    done = call("inspect", FIXTURES / "tiny")
    *drafters, others = done.out.splitlines()
    assert done.code == 3 and others == "not drafters: target"
    assert [Path(line.split()[0]).name for line in drafters] == ["eagle3.1", "eagle3"]
    assert done.err.endswith(f"the newest in it: `eaglectl inspect {FIXTURES / 'tiny/eagle3.1'}`\n")


def test_a_conversion_is_named_after_its_source_and_holds_no_path_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("convert", PRODUCERS / "eagle/safetensors", "--dry-run")
    assert "midlayer.mlp.up_proj.weight" in done.out and "layers.0.mlp.up_proj.weight" in done.out
    assert done.code == 0 and list(tmp_path.iterdir()) == []
    assert call("convert", PRODUCERS / "speculators/eagle3.1").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["eagle3.1-eagle3.1"]
    before = file_digests(tmp_path / "eagle3.1-eagle3.1")
    assert call("convert", PRODUCERS / "speculators/eagle3.1").code == 2
    assert file_digests(tmp_path / "eagle3.1-eagle3.1") == before
    for path in (tmp_path / "eagle3.1-eagle3.1").iterdir():
        content = path.read_bytes()
        assert str(tmp_path).encode() not in content and str(FIXTURES).encode() not in content


@pytest.mark.slow  # `make demo` itself is a step of .ci/run
def test_the_demo_shows_a_fault_both_lengths_the_repair_and_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLECTL_REAL", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    assert demo.main() == 0
    out = re.sub(r"\x1b\[[\d;]*m", "", capfd.readouterr().out)
    shown = [part.partition("\n")[2] for part in out.split("$ eaglectl ")[1:]]
    # README.md begins with the first line of each answer but the last
    readme = (
        (FIXTURES.parent / "README.md").read_text().split("```text\n")[1].partition("```")[0].splitlines()
    )
    assert readme[::2] == re.findall(r"^\$ eaglectl .*", out, re.M)[:4]
    assert [re.sub(r"[\d.]+", "#", line) for line in readme[1::2]] == [
        re.sub(r"[\d.]+", "#", answer.splitlines()[0]) for answer in shown[:4]
    ]
    assert len(shown) == 5 and all(len(answer.splitlines()) < 24 for answer in shown)
    assert "EGL1036" in shown[0] and "as stored 2." in shown[1] and ", converted 2." in shown[1]
    assert "served" in shown[2] and "no errors" in shown[3] and "EGL1036" not in shown[3]
    assert shown[4].startswith(f"done: wrote tiny-3.1; vLLM {VLLM} and SGLang {SGLANG} run it as trained")


def test_what_is_stated_of_a_key_is_in_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set[str]()

    class Asked(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.add(key)
            return super().get(key, default)

    for name in ("TYPES", "DESCRIPTIONS"):
        monkeypatch.setattr(documents, name, Asked(getattr(documents, name)))
    for name in documents.DOCUMENTS:
        documents.document_schema(name)
    assert {*documents.TYPES, *documents.DESCRIPTIONS} - asked == set()


@pytest.mark.slow
def test_the_tour_runs_on_the_tiny_pair_where_there_is_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLECTL_REAL", str(tmp_path))
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.chdir(Path.cwd())  # where the test ends
    assert tour.main() == 0
    out = capsys.readouterr().out
    assert out.count("exit code") == 10 and "acceptance length" in out
    assert out.startswith("without the real pair: `pip download")


# one wording of each verdict: in the terminal, in documents, in their schemas, in Python

ENUMS = [
    item
    for item in vars(verdicts).values()
    if isinstance(item, type)
    and item.__module__ == verdicts.__name__
    and item is not verdicts.FirstWord  # of the terminal alone
]
WORDS = {member for enum in ENUMS for member in enum}


def listed(part: Any) -> Iterator[set[str]]:
    """The closed lists of values in a schema."""
    if isinstance(part, dict):
        if isinstance(part.get("enum"), list):
            yield {value for value in part["enum"] if value is not None}
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        yield from listed(inner)


def test_schemas_list_all_members_of_enums_that_eaglectl_has() -> None:
    schemas = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    lists = [(name, values) for name, schema in schemas.items() for values in listed(schema)]
    assert [enum for enum in ENUMS if (set(enum) not in [values for _, values in lists])] == []
    # of verdicts only `validate` skips
    known = [set(enum) - skipped for enum in ENUMS for skipped in (set(), {"skipped"})]
    verdict_lists = [(name, values) for name, values in lists if len(values & WORDS) * 2 > len(values)]
    assert [entry for entry in verdict_lists if entry[1] not in known] == []
    assert [getattr(eaglectl, enum.__name__) for enum in ENUMS] == ENUMS


# words that are a verdict wherever they stand alone
DISTINCT = {"could-not-look", "same-headers", "not-looked", "nothing-to-do", "slightly better"}


def test_no_module_spells_a_verdict_itself() -> None:
    spelled = {(name, text) for name, text in constants() if text in DISTINCT}
    assert {name for name, _ in spelled} == {"verdicts.py"}, spelled


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return drafter_folder(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("inspect", IDS, "--engine", "vllm==0.22.0"), ("engines", 0, "outcome")),
        (("validate", IDS, "--engine", "vllm==0.22.0"), ("verdict",)),
        (("validate", IDS, "--engine", "vllm==0.22.0"), ("releases", 0, "verdict")),
        (("validate", "gone"), ("verdict",)),
        (("diff", NATIVE, NATIVE), ("verdict",)),
        (("diff", NATIVE, NATIVE, "--headers-only"), ("verdict",)),
        (("diff", NATIVE, IDS), ("verdict",)),
    ],
)
def test_the_terminal_prints_what_the_document_says(
    folder: Path, arguments: tuple[str, ...], keys: tuple[str | int, ...]
) -> None:
    document = call(*arguments, "--json").document
    for key in keys:
        document = document[key]
    assert isinstance(document, str)
    text = call(*arguments, "-v").out
    assert document in text or text.startswith(f"{verdicts.first_word(document)}: ")


def test_verify_prints_what_its_document_says(folder: Path) -> None:
    assert call("convert", folder, "-o", "out").code == 0
    for verdict, shown in (("equal", ""), ("differs", "  unlisted  extra.txt")):
        document, text = call("verify", "out", "--json").document, call("verify", "out").out
        assert document["verdict"] == verdict and text.startswith(f"{verdicts.first_word(verdict)}: ")
        assert shown in text
        Path("out/extra.txt").write_text("x")
