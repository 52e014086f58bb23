"""Every command that `diagnose` prints after "next:" is run on its own case: a repair repairs."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.drafter.vocabulary import FROM_T2D  # noqa: E402
from eaglectl.errors import RefusedError  # noqa: E402
from eaglectl.operations.diagnosing import Looks  # noqa: E402
from eaglectl.run.diagnosis import CAUSES, Diagnosis, find_cause  # noqa: E402
from eaglectl.run.measurement import measure  # noqa: E402
from tests.builders import Outcome, call, drafter_folder, floats, read_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.printed import parse_fault  # noqa: E402
from tests.test_diagnose import ENGINE, READ, diagnose, prompts_file, scaled  # noqa: E402
from tests.tiny import TARGET, TINY, Fault, in_vllms_layout  # noqa: E402

Tensors = dict[str, "torch.Tensor"]
# the causes whose commands are no repairs of the file, each run below on its own case
RUN_HERE = {"no-reference", "other-target", "refused", "not-found"}
OF_ENGINES = {"engine-refuses", "engine-setting", "engine-unfilled", "engine-lower"}
# tests/test_diagnose_records.py runs those of engine-fact, tests/test_diagnose.py those of other-layers and
# other-revision, tests/test_target_rotation.py those of rotated targets, and tests/test_coverage.py the last
ELSEWHERE = {"engine-fact", "other-layers", "other-revision", "rotated-target", "marked-rotation"}
ELSEWHERE |= {"draft-vocabulary"}


def shifted(tensors: Tensors) -> None:
    tensors["d2t"] += 1


def absolute(tensors: Tensors) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def zeros(tensors: Tensors) -> None:
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])


def truncated(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"][:-5].clone()


def rounded(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"].bfloat16()


def missing(tensors: Tensors) -> None:
    del tensors["d2t"]


def less_marked(tensors: Tensors) -> None:
    tensors["t2d"][tensors["t2d"].nonzero()[3]] = False


def rolled(tensors: Tensors) -> None:
    tensors["d2t"] = torch.roll(tensors["d2t"], 1)


def shifted_mask(tensors: Tensors) -> None:
    tensors["t2d"] = torch.roll(tensors["t2d"], 1)


def not_a_number(tensors: Tensors) -> None:
    tensors["norm.weight"][:] = float("nan")


def without_mask(change: Callable[[Tensors], None]) -> Callable[[Tensors], None]:
    def both(tensors: Tensors) -> None:
        change(tensors)
        del tensors["t2d"]

    both.__name__ = f"{change.__name__}_without_t2d"
    return both


REPAIRED = (shifted, absolute, zeros, truncated, rounded, missing, less_marked)
LOST = tuple(map(without_mask, (shifted, zeros, truncated, rounded, missing)))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both trained drafters in vLLM's layout."""
    return in_vllms_layout(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def good(both: dict[str, Path]) -> Path:
    return both["eagle3"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompts_file(tmp_path_factory.mktemp("prompts"), count=16)


def broken(good: Path, folder: Path, change: Callable[[Tensors], None]) -> Path:
    shutil.copytree(good, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def repaired(diagnosis: Diagnosis, out: Path) -> Path:
    """The output of the one command that is printed."""
    (line,) = diagnosis.commands
    done = call(*shlex.split(line)[1:], "-o", out)
    assert done.code == 0, (line, done.err)
    return out


def weights(folder: Path) -> dict[str, object]:
    return dict(read_safetensors(folder / "model.safetensors"))


@pytest.mark.parametrize("change", REPAIRED, ids=lambda change: change.__name__)
def test_a_broken_table_is_made_of_the_whole_one(
    change: Callable[[Tensors], None], good: Path, prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(broken(good, tmp_path / "broken", change), prompts)
    assert diagnosis.cause == "file-rule"
    out = repaired(diagnosis, tmp_path / "out")
    assert weights(out) == weights(good)


@pytest.mark.parametrize("change", LOST, ids=lambda change: change.__name__)
def test_no_repair_is_printed_where_there_is_none(
    change: Callable[[Tensors], None], good: Path, prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(broken(good, tmp_path / "broken", change), prompts)
    assert (diagnosis.cause, diagnosis.commands) == ("file-rule", ())
    assert "restore" in diagnosis.words


@pytest.mark.parametrize("change", [rolled, pytest.param(shifted_mask, marks=pytest.mark.slow)])
def test_of_two_whole_tables_the_one_that_drafts_better_is_kept(
    change: Callable[[Tensors], None], good: Path, prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(broken(good, tmp_path / "broken", change), prompts)
    assert diagnosis.cause == "tables"
    assert weights(repaired(diagnosis, tmp_path / "out")) == weights(good)


@pytest.mark.slow
def test_two_whole_tables_that_few_prompts_cannot_tell_are_a_choice(good: Path, tmp_path: Path) -> None:
    def one_other(tensors: Tensors) -> None:
        marked = tensors["t2d"].nonzero().flatten().tolist()
        free = next(token for token in range(len(tensors["t2d"]) - 1, 0, -1) if token not in marked)
        tensors["t2d"][[marked[200], free]] = torch.tensor([False, True])

    folder = broken(good, tmp_path / "broken", one_other)
    diagnosis = diagnose(folder, prompts_file(tmp_path, count=3))
    assert diagnosis.cause == "tables"
    readings = ("d2t=from-t2d", "t2d=from-d2t")
    assert [reading in line for reading, line in zip(readings, diagnosis.commands, strict=True)] == [True] * 2
    for line in diagnosis.commands:
        done = call(*shlex.split(line)[1:], "-o", tmp_path / "out", "--force")
        assert done.code == 0, done.err
        assert eaglectl.validate(str(tmp_path / "out")).verdict == "pass"


def test_without_torch_two_whole_tables_are_a_choice_too(
    good: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "eaglectl.reference.model", None)
    diagnosis = diagnose(broken(good, tmp_path / "broken", rolled), prompts)
    assert (diagnosis.cause, len(diagnosis.commands)) == ("tables", 2)
    assert "was not measured" in diagnosis.words


def test_smoke_asks_which_of_two_whole_tables_is_right_unless_it_probes(
    good: Path, prompts: Path, tmp_path: Path
) -> None:
    folder = broken(good, tmp_path / "broken", rolled)
    given = ("smoke", folder, "--target", TARGET, "--run-in", "reference", "--prompts", prompts)
    assert "--fix-reading d2t=from-t2d or" in call(*given).err
    done = call(*given, "--probe", "sensitivity", "--max-tokens", "20")
    assert done.code == 1 and "--fix-reading d2t=from-t2d" in " ".join(done.out.split())


def test_convert_asks_which_of_two_whole_tables_is_right(good: Path, tmp_path: Path) -> None:
    folder = broken(good, tmp_path / "broken", rolled)
    done = call("convert", folder, "-o", tmp_path / "out")
    assert done.code == 2 and not (tmp_path / "out").exists()
    assert "pass --fix-reading d2t=from-t2d or --fix-reading t2d=from-d2t" in " ".join(done.err.split())


@pytest.mark.parametrize("fault", READ, ids=lambda fault: fault.name)
def test_a_fault_that_a_rule_sees_is_repaired_or_no_repair_is_printed(
    fault: Fault, both: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    folder = fault.apply(both[fault.base], tmp_path / "broken")
    diagnosis = diagnose(folder, prompts)
    assert (diagnosis.cause, diagnosis.ending, diagnosis.verdict) == ("file-rule", "file", "fail")
    assert diagnosis.words.startswith("EGL")
    assert diagnosis.evidence.reference is None  # nothing ran
    if diagnosis.commands:
        out = repaired(diagnosis, tmp_path / "out")
        assert eaglectl.validate(str(out), eaglectl.ValidateOptions(target=str(TARGET))).verdict == "pass"
    else:
        given = ("--target", TARGET, "--no-measure", "-o", tmp_path / "out")
        if call("convert", folder, *given).code == 0:
            after = eaglectl.validate(str(tmp_path / "out"), eaglectl.ValidateOptions(target=str(TARGET)))
            assert after.verdict != "pass", "it repairs, and is not printed"


def test_a_fault_that_no_conversion_repairs_prints_none(good: Path, prompts: Path, tmp_path: Path) -> None:
    folder = broken(good, tmp_path / "broken", not_a_number)
    given = ("--target", TARGET, "--no-measure", "-o", tmp_path / "out")
    assert "EGL205" in call("convert", folder, *given).err
    diagnosis = diagnose(folder, prompts)
    assert (diagnosis.cause, diagnosis.commands) == ("file-rule", ())


def test_every_cause_with_commands_is_run() -> None:
    run = {"file-rule", "tables", "other-reading", *ELSEWHERE, *RUN_HERE, *OF_ENGINES}
    silent = {"past-positions", "too-few", "sampling", "template", "one-set", "quantised-target"}
    silent |= {"untrained", "weak", "no-engine", "healthy"}
    assert {cause.id for cause in CAUSES} == run | silent


def test_a_conversion_that_changes_nothing_is_not_printed(good: Path) -> None:
    evidence = Looks(str(good), str(TARGET), eaglectl.DiagnoseOptions(engine="vllm"), None).start()
    assert "convert" not in evidence.commands


def test_every_command_is_parsed() -> None:
    evidence = Looks(
        str(TINY / "eagle3"), str(TARGET), eaglectl.DiagnoseOptions(engine="sglang"), None
    ).start()
    assert {"diagnose", "validate", "inspect", "smoke", "probe", "convert"} == set(evidence.commands)
    for name, line in evidence.commands.items():
        assert parse_fault(shlex.split(line)[1:]) == "", name


@pytest.mark.parametrize(
    ("tensors", "words"),
    [({"d2t": None}, "d2t is missing"), ({"norm.weight": None}, "norm.weight is missing")],
    ids=["d2t", "norm"],
)
def test_inspect_prints_no_conversion_that_is_refused(
    tensors: dict[str, None], words: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, tensors=tensors)
    done = call("inspect", folder, "-v")
    assert words in done.out and "eaglectl convert" not in done.out
    assert call("inspect", folder, "--json").document["next"] == ""
    assert call("convert", folder, "-o", tmp_path / "out").code == 1


def test_inspect_asks_for_the_option_that_a_problem_needs(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, tensors={"more.weight": floats("x", 16)})
    done = call("inspect", folder)
    assert "eaglectl convert" in done.out and "the next command needs the answer to this" in done.out


def test_an_unordered_producers_t2d_gives_no_d2t(tmp_path: Path) -> None:
    """NeMo Automodel's rows are in the order of frequency."""
    folder = shutil.copytree(FIXTURES / "producers/automodel/gqa", tmp_path / "gqa")
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    zeros(tensors)
    save_file(tensors, path, {"format": "pt"})
    assert "t2d" in tensors
    done = call("convert", folder, "-o", tmp_path / "out", "--aux-layers", "2,4,6", "--fix-reading", FROM_T2D)
    assert (done.code, "do not allow that reading" in done.err) == (2, True)
    report = eaglectl.validate(str(folder))
    assert not [finding for finding in report.findings if FROM_T2D in finding.fix]


# ------------------------------------------------------- commands that are no repairs, each on its own case


def shown_of(diagnosis: Diagnosis, **changes: Any) -> tuple[str, tuple[str, ...]]:
    """The cause and the commands that the evidence of a run, changed, ends in."""
    evidence = replace(diagnosis.evidence, **changes)
    ended = find_cause(CAUSES, evidence, lambda phase, given: given, "", "")
    return ended.cause, ended.commands


def run_printed(lines: tuple[str, ...], *more: str | Path) -> Outcome:
    (line,) = lines
    return call(*shlex.split(line)[1:], *more)


@pytest.fixture(scope="module")
def trainers_own(prompts: Path) -> Diagnosis:
    """That of the drafter as its trainer wrote it, which a conversion for vLLM changes."""
    return diagnose(TINY / "eagle3", prompts)


def test_with_torch_the_same_command_again_measures(
    good: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "eaglectl.reference.model", None)
        diagnosis = diagnose(good, prompts)
    assert diagnosis.cause == "no-reference"
    done = run_printed(diagnosis.commands)
    assert (done.code, "healthy" in done.out) == (0, True), done.err


def test_another_targets_findings_are_shown(good: Path, prompts: Path, tmp_path: Path) -> None:
    shutil.copytree(TARGET, target := tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"hidden_size": 2 * config["hidden_size"]}))
    diagnosis = diagnose(good, prompts, target)
    assert diagnosis.cause == "other-target"
    done = run_printed(diagnosis.commands)
    assert done.code == 1 and "EGL7" in done.out


def test_what_the_reference_refuses_is_inspected(good: Path, prompts: Path, tmp_path: Path) -> None:
    def parallel(tensors: Tensors) -> None:
        tensors["mask_hidden"] = torch.zeros(1, 1, tensors["fc.weight"].shape[1], dtype=torch.bfloat16)

    folder = broken(good, tmp_path / "parallel", parallel)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mask_token_id": 3}))
    diagnosis = diagnose(folder, prompts)
    assert diagnosis.cause == "refused"
    done = run_printed(diagnosis.commands)
    assert done.code == 0 and "parallel" in done.out


@pytest.mark.slow
def test_what_was_not_found_is_probed_further(trainers_own: Diagnosis) -> None:
    cause, lines = shown_of(trainers_own, reference=scaled(trainers_own, 0))
    assert cause == "not-found"
    done = run_printed(lines, "--device", "cpu")
    assert done.code in (0, 1) and "long context" in done.out, done.err


@pytest.mark.parametrize("name", [name for name, (_, cause, _) in ENGINE.items() if cause in OF_ENGINES])
def test_what_an_engine_did_is_repaired_by_the_conversion(
    name: str, trainers_own: Diagnosis, tmp_path: Path
) -> None:
    change, expected, _ = ENGINE[name]
    report = trainers_own.evidence.reference
    assert report is not None
    read = Looks(
        str(TINY / "eagle3"), str(TARGET), eaglectl.DiagnoseOptions(engine="vllm==0.33.0"), None
    ).start()
    changes: dict[str, Any] = {"validated": read.validated, "commands": read.commands}
    try:
        run = change(replace(report.run, engine="vllm", version="0.33.0"))
    except RefusedError as error:
        changes["refusals"] = {"engine": str(error)}
    else:
        changes["engine"] = replace(report, run=run, measured=measure(run.results))
    cause, lines = shown_of(trainers_own, engine_name="vllm", **changes)
    assert cause == expected
    if cause == "engine-refuses":  # no change is known that this release would take
        assert lines == ()
        return
    done = run_printed(lines, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    options = eaglectl.ValidateOptions(target=str(TARGET), engines=("vllm==0.33.0",))
    assert eaglectl.validate(str(tmp_path / "out"), options).verdict == "pass"
