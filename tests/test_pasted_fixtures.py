"""Every command that is printed for any fixture runs as it is pasted."""

import json
import re
import shlex
import tempfile
from itertools import product
from pathlib import Path

import pytest

import eaglectl
from eaglectl.api.diagnose import Looks
from eaglectl.target.choice import as_target
from tests.builders import ABSENT, Outcome, call, changed, drafter_folder
from tests.cases import STATED, Case
from tests.conftest import FIXTURES
from tests.hub import publishing_hub
from tests.printed import commands_in, fault

TARGET = FIXTURES / "target"
FOLDERS = sorted(path.parent for path in (FIXTURES / "producers").glob("*/*/config.json"))
CASES = [
    (folder, verb, target) for folder in FOLDERS for verb in ("inspect", "validate") for target in (0, 1)
]
# pairs and drafters beside the producers', each with a target
OTHERS = [
    (folder, root / "target" if (root / "target").is_dir() else FIXTURES / "tiny/target")
    for root in (FIXTURES / name for name in ("second", "tiny", "nine", "real"))
    for folder in sorted(path.parent for path in root.glob("*/config.json"))
]
# what ends in other than 0 on a drafter that it fails, or on files that differ
FAILS_RIGHTLY = {"validate": (0, 1), "verify": (0, 1)}


def pasted(line: str) -> Outcome:
    """What a printed command ends in, with the target in place of its placeholder."""
    words = [str(TARGET) if word == "TARGET" else word for word in shlex.split(line, comments=True)]
    return call(*words[1:])


def shown_and_pasted(parent: Path, monkeypatch: pytest.MonkeyPatch, *given: str | Path) -> Outcome:
    """Run a command, then all that it prints, each line in a folder of its own."""
    here = Path(tempfile.mkdtemp(dir=parent))
    monkeypatch.chdir(here)
    shown = call(*given)
    for number, line in enumerate(dict.fromkeys(commands_in(shown.out) + commands_in(shown.err))):
        (here / str(number)).mkdir()
        monkeypatch.chdir(here / str(number))
        done = pasted(line)
        assert done.code in FAILS_RIGHTLY.get(line.split()[1], (0,)), (given[0], line, done.err)
    return shown


@pytest.mark.fast(6)
@pytest.mark.parametrize(
    ("folder", "verb", "target"),
    CASES,
    ids=[f"{folder.parent.name}/{folder.name}-{verb}-{target}" for folder, verb, target in CASES],
)
def test_what_is_printed_runs(
    folder: Path, verb: str, target: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown_and_pasted(tmp_path, monkeypatch, verb, folder, *(["--target", TARGET] if target else []))


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("folder", "target"),
    OTHERS,
    ids=[f"{folder.parent.name}/{folder.name}" for folder, _ in OTHERS],
)
def test_what_is_printed_for_pairs_runs(
    folder: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for verb, given in product(("inspect", "validate"), ([], ["--target", target])):
        shown_and_pasted(tmp_path, monkeypatch, verb, folder, *given)


@pytest.mark.fast(1)
@pytest.mark.parametrize("target", [(), ("--target", TARGET)], ids=["alone", "with its target"])
@pytest.mark.parametrize("case", STATED, ids=lambda case: case.path)
def test_what_is_printed_on_the_way_to_a_release_runs(
    case: Case, target: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ready`, `convert`, `diff`, `verify` and the plan of `upload`, unanswered and with what is true."""
    out, name = tmp_path / "out", ("--target-name", "org/name")
    with publishing_hub(monkeypatch, tmp_path):
        for first in (("ready",), ("convert",), ("convert", "--dry-run")):
            shown_and_pasted(tmp_path, monkeypatch, *first, case.folder, *target)
        plan = ("org/drafter", "--dry-run", *target)
        shown_and_pasted(tmp_path, monkeypatch, "upload", case.folder, *plan)
        given = ("convert", case.folder, *target, *name, *case.options, "-o", out)
        if shown_and_pasted(tmp_path, monkeypatch, *given).code == 0:
            shown_and_pasted(tmp_path, monkeypatch, "diff", case.folder, out, *target)
            shown_and_pasted(tmp_path, monkeypatch, "verify", out)
            shown_and_pasted(tmp_path, monkeypatch, "upload", out, *plan)


def test_upload_names_what_it_was_given_in_the_command_that_says_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FIXTURES / "producers/lightseekorg/mla"
    given = ("upload", source, "org/drafter", "--dry-run", "--engine", "vllm==0.33.0")
    with publishing_hub(monkeypatch, tmp_path):
        unknown, fails = call(*given), call(*given, "--target", TARGET)
    assert (unknown.code, fails.code) == (3, 1)
    assert f"`eaglectl inspect {source} --engine=vllm==0.33.0` shows more" in unknown.err
    assert f"`eaglectl validate {source} --engine=vllm==0.33.0 --target {TARGET}` shows" in fails.err


def test_inspect_names_for_validate_the_engines_that_it_could_judge() -> None:
    folder = FIXTURES / "second/eagle3"
    shown = call("inspect", folder)
    assert "not known whether SGLang" in shown.out
    assert f"next:  eaglectl validate {folder} --engine=vllm\n" in shown.out
    target = ("--target", FIXTURES / "second/target")
    assert "--engine" not in call("inspect", folder, *target).out.partition("\n\n")[0]


def test_no_conversion_is_printed_that_would_measure_a_target_with_more_tokens() -> None:
    """The run ends at a token of the target that the drafter's own embedding has no row for."""
    shown = call("inspect", FIXTURES / "nine/four-aux", "--target", FIXTURES / "tiny/target")
    assert "pass --aux-layers" in " ".join(shown.out.split()) and commands_in(shown.out) == []


def test_a_diagnosis_of_more_prompts_is_of_the_same_engine() -> None:
    options = eaglectl.DiagnoseOptions(engine="vllm==0.33.0")
    target = as_target(FIXTURES / "tiny/target")
    looks = Looks(str(FIXTURES / "tiny/eagle3"), target, options, None)
    line = looks._with_more_prompts(9, 5)
    assert "--engine vllm==0.33.0" in line and fault(line, ("diagnose",)) == ""


def test_a_refusal_names_no_layout_that_is_planned_already(tmp_path: Path) -> None:
    given = ["convert", FIXTURES / "producers/torchspec/mla", "--target", TARGET, "-o", tmp_path / "out"]
    given += ["--source-semantics", "rope=stored", "--engine", "vllm==0.33.0", "--engine", "vllm==0.17.0"]
    done = call(*given)
    assert (done.code, "--for vllm" in done.err) == (1, False)
    assert "vLLM 0.18.0 - 0.33.0 does: use '--engine=vllm>=0.18.0'" in done.err


def test_each_answer_says_what_the_release_does_if_it_is_true(tmp_path: Path) -> None:
    source = FIXTURES / "producers/specforge/gqa-ids"
    choices = call("inspect", source, "--engine", "vllm==0.22.1", "--json").document["choices"]
    assert [line.rpartition(" ")[2] for line in choices] == ["boundary", "output"]
    for line, gives in choices.items():
        given = shlex.split(line)[3:]
        document = call("inspect", source, *given, "--engine", "vllm==0.22.1", "--json").document
        (verdict,) = document["engines"]
        assert gives.startswith(f"vLLM 0.22.1, as stored: {verdict['outcome']}"), (line, gives)


def test_an_answer_that_only_the_user_has_is_asked_and_no_command_is_printed() -> None:
    shown = call("inspect", FIXTURES / "producers/speco/peagle")
    assert "--aux-layers with the boundaries" in " ".join(shown.out.split())
    assert commands_in(shown.out) == []


def test_inspect_prints_what_mends_positions_and_no_conversion(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(changed(TARGET, max_position_embeddings=8192)))
    folder = drafter_folder(tmp_path, config={"vocab_size": 64, "max_position_embeddings": ABSENT})
    config = changed(target, hidden_size=16, vocab_size=64)
    (target / "config.json").write_text(json.dumps(config))
    shown = call("inspect", folder, "--target", target, "--engine", "vllm==0.26.0")
    assert "runs it as trained, started with --max-model-len 2048" in " ".join(shown.out.split())
    assert "eaglectl convert" not in shown.out


ENGINES = ("vllm==0.22.1", "vllm==0.33.0", "sglang", "llama.cpp")


@pytest.mark.slow  # fast: the next one
@pytest.mark.parametrize("verb", ["inspect", "validate"])
@pytest.mark.parametrize("source", ["specforge/gqa-ids", "torchspec/mla"])
def test_each_answer_says_what_it_gives_in_each_engine_that_was_asked_for(source: str, verb: str) -> None:
    folder = FIXTURES / "producers" / source
    given = [word for engine in ENGINES for word in ("--engine", engine)]
    shown = " ".join(call(verb, folder, *given).out.replace("# ", "").split())
    choices = call("inspect", folder, *given, "--json").document["choices"]
    assert len(choices) > 1
    for line, gives in choices.items():
        answer = [word for word in shlex.split(line)[3:] if not word.startswith("--engine=")]
        document = call("inspect", folder, *answer, *given, "--json").document
        outcomes = {each["release"]: each["outcome"] for each in document["engines"]}
        stated = dict(re.findall(r"[\w.]+ ([\d.]+)(?:, as stored)?: ([^;]*)", gives))
        assert stated == outcomes and len(stated) == len(ENGINES), (line, gives)
        assert gives in shown


def test_what_an_answer_gives_fits_in_a_terminal_beside_a_command_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(FIXTURES / "producers/specforge")
    given = [word for engine in ENGINES for word in ("--engine", engine)]
    lines = call("inspect", "gqa-ids", *given).out.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("  one of:"))
    block = lines[place : lines.index("", place)]
    assert max(map(len, block)) <= 110
    assert [line.split()[-1] for line in block if "eaglectl" in line] == ["boundary", "output"]
    gives = "# vLLM 0.22.1, as stored: unknown; vLLM 0.33.0: differs; SGLang 0.5.23: differs;"
    assert gives in block[0]
    assert "llama.cpp 0.3.36: differs; the states" in " ".join(" ".join(block[:2]).replace("# ", "").split())
    alone = call("inspect", "gqa-ids", "--engine", "vllm==0.22.1").out.partition("\n\n")[0]
    assert "# vLLM 0.22.1, as stored: unknown; the states that enter" in alone and "SGLang" not in alone
