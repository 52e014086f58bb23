"""Every command that `diagnose` prints after "next:" is run on its own case: a repair repairs."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.api.diagnose import Looks  # noqa: E402
from eaglectl.drafter.tensors import FROM_T2D  # noqa: E402
from eaglectl.run.causes import CAUSES  # noqa: E402
from eaglectl.run.diagnosis import Diagnosis, find_cause  # noqa: E402
from eaglectl.run.measurement import measure  # noqa: E402
from eaglectl.target.choice import as_target  # noqa: E402
from tests.builders import call, drafter_folder, read_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.diagnoses import ENGINE, READ, diagnose, prompts_file, scaled  # noqa: E402
from tests.tiny import TARGET, TINY, Fault, in_vllms_layout  # noqa: E402

Tensors = dict[str, "torch.Tensor"]
OF_ENGINES = {"engine-setting", "engine-unfilled", "engine-lower"}
# tests/test_diagnose_records.py runs those of engine-fact, tests/test_diagnose.py those of other-layers and
# other-revision, tests/test_target_rotation.py those of rotated targets, and tests/test_coverage.py the last
ELSEWHERE = {"engine-fact", "other-layers", "other-revision", "rotated-target", "marked-rotation"}
ELSEWHERE |= {"draft-vocabulary"}


Change = Callable[[Tensors], object]
# of tables that a whole one is left beside
REPAIRED: dict[str, Change] = {
    "shifted": lambda tensors: tensors["d2t"].add_(1),
    "absolute": lambda tensors: tensors["d2t"].add_(torch.arange(len(tensors["d2t"]))),
    "zeros": lambda tensors: tensors["d2t"].zero_(),
    "truncated": lambda tensors: tensors.update(d2t=tensors["d2t"][:-5].clone()),
    "rounded": lambda tensors: tensors.update(d2t=tensors["d2t"].bfloat16()),
    "missing": lambda tensors: tensors.pop("d2t"),
    "less marked": lambda tensors: tensors["t2d"].index_fill_(0, tensors["t2d"].nonzero()[3], False),
}
# and where there is none beside
LOST = ("shifted", "zeros", "truncated", "rounded", "missing")
WHOLE: dict[str, Change] = {
    "rolled": lambda tensors: tensors.update(d2t=torch.roll(tensors["d2t"], 1)),
    "shifted mask": lambda tensors: tensors.update(t2d=torch.roll(tensors["t2d"], 1)),
}


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


def broken(good: Path, folder: Path, *changes: Change) -> Path:
    shutil.copytree(good, folder)
    tensors = load_file(folder / "model.safetensors")
    for change in changes:
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


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("name", "is_lost"), [*((name, False) for name in REPAIRED), *((name, True) for name in LOST)]
)
def test_a_broken_table_is_made_of_the_whole_one_or_no_repair_is_printed(
    name: str, is_lost: bool, good: Path, prompts: Path, tmp_path: Path
) -> None:
    more: list[Change] = [lambda tensors: tensors.pop("t2d")] if is_lost else []
    diagnosis = diagnose(broken(good, tmp_path / "broken", REPAIRED[name], *more), prompts)
    assert diagnosis.cause == "file-rule"
    if is_lost:
        assert diagnosis.commands == () and "restore" in diagnosis.words
    else:
        assert weights(repaired(diagnosis, tmp_path / "out")) == weights(good)


@pytest.mark.slow  # fast: smoke with --probe, below, which measures both too
@pytest.mark.parametrize("name", WHOLE)
def test_of_two_whole_tables_the_one_that_drafts_better_is_kept(
    name: str, good: Path, prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(broken(good, tmp_path / "broken", WHOLE[name]), prompts)
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
    diagnosis = diagnose(broken(good, tmp_path / "broken", WHOLE["rolled"]), prompts)
    assert (diagnosis.cause, len(diagnosis.commands)) == ("tables", 2)
    assert "was not measured" in diagnosis.words


def test_smoke_asks_which_of_two_whole_tables_is_right_unless_it_probes(
    good: Path, prompts: Path, tmp_path: Path
) -> None:
    folder = broken(good, tmp_path / "broken", WHOLE["rolled"])
    given = ("smoke", folder, "--target", TARGET, "--run-in", "reference", "--prompts", prompts)
    assert "--fix-reading d2t=from-t2d or" in call(*given).err
    done = call(*given, "--probe", "sensitivity", "--max-tokens", "20")
    assert done.code == 1 and done.out.startswith("fail: acceptance length ")
    assert "--fix-reading d2t=from-t2d" in " ".join(done.out.split())


@pytest.mark.fast(3)
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


def test_a_conversion_that_changes_nothing_is_not_printed(good: Path) -> None:
    evidence = Looks(str(good), as_target(TARGET), eaglectl.DiagnoseOptions(engine="vllm"), None).start()
    assert "convert" not in evidence.commands


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


def test_an_unordered_producers_t2d_gives_no_d2t(tmp_path: Path) -> None:
    """NeMo Automodel's rows are in the order of frequency."""
    folder = shutil.copytree(FIXTURES / "producers/automodel/gqa", tmp_path / "gqa")
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    tensors["d2t"].zero_()
    save_file(tensors, path, {"format": "pt"})
    assert "t2d" in tensors
    done = call("convert", folder, "-o", tmp_path / "out", "--aux-layers", "2,4,6", "--fix-reading", FROM_T2D)
    assert (done.code, "do not fit that reading" in done.err) == (2, True)
    report = eaglectl.validate(str(folder))
    assert not [finding for finding in report.findings if FROM_T2D in finding.fix]


# ------------------------------------------------------- commands that are no repairs, each on its own case


def shown_of(diagnosis: Diagnosis, **changes: Any) -> tuple[str, tuple[str, ...]]:
    """The cause and the commands that the evidence of a run, changed, ends in."""
    evidence = replace(diagnosis.evidence, **changes)
    ended = find_cause(CAUSES, evidence, lambda phase, given: given, "", "")
    return ended.cause, ended.commands


@pytest.fixture(scope="module")
def trainers_own(prompts: Path) -> Diagnosis:
    """That of the drafter as its trainer wrote it, which a conversion for vLLM changes."""
    return diagnose(TINY / "eagle3", prompts)


@pytest.mark.slow
def test_what_was_not_found_is_probed_further(trainers_own: Diagnosis) -> None:
    cause, lines = shown_of(trainers_own, reference=scaled(trainers_own, 0))
    assert (cause, len(lines)) == ("not-found", 1)
    done = call(*shlex.split(lines[0])[1:], "--device", "cpu")
    assert done.code in (0, 1) and "long context" in done.out, done.err


@pytest.mark.slow  # fast: tests/test_diagnose_records.py
@pytest.mark.parametrize("name", [name for name, (_, cause) in ENGINE.items() if cause in OF_ENGINES])
def test_what_an_engine_did_is_repaired_by_the_conversion(
    name: str, trainers_own: Diagnosis, tmp_path: Path
) -> None:
    change, expected = ENGINE[name]
    report = trainers_own.evidence.reference
    assert report is not None
    read = Looks(
        str(TINY / "eagle3"), as_target(TARGET), eaglectl.DiagnoseOptions(engine="vllm==0.33.0"), None
    ).start()
    run = change(replace(report.run, engine="vllm", version="0.33.0"))
    engine = replace(report, run=run, measured=measure(run.results))
    given: dict[str, Any] = {"validated": read.validated, "commands": read.commands, "engine": engine}
    cause, lines = shown_of(trainers_own, engine_name="vllm", **given)
    assert (cause, len(lines)) == (expected, 1)
    done = call(*shlex.split(lines[0])[1:], "-o", tmp_path / "out")
    assert done.code == 0, done.err
    options = eaglectl.ValidateOptions(target=str(TARGET), engines=("vllm==0.33.0",))
    assert eaglectl.validate(str(tmp_path / "out"), options).verdict == "pass"
