"""What any command says of a drafter, every command says: one judgement, of which each prints parts."""

import json
import pkgutil
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import eaglectl
import tests.validation
from eaglectl.engines.registry import ENGINES, known_release, parse_engine
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.formats.format import Answers
from tests.builders import (
    DRAFT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    TARGETS,
    Stored,
    call,
    drafter_folder,
    floats,
    integers,
    mask,
    refusal,
    safetensors_bytes,
)
from tests.cases import CASES, Case
from tests.conftest import FIXTURES
from tests.validation.judging import installed, patches
from tests.validation.patches import Patch

LAYER = "layers.0."
OTHERS = (*TARGETS[:-1], TARGETS[-1] - 2)
OFFSETS = tuple(target - index for index, target in enumerate(TARGETS))


def nan(*shape: int) -> Stored:
    """A bfloat16 tensor of NaN alone."""
    dtype, shape, data = floats("nan", *shape)
    return dtype, shape, b"\xc0\x7f" * (len(data) // 2)


def zeros(*shape: int) -> Stored:
    dtype, shape, data = floats("zeros", *shape)
    return dtype, shape, bytes(len(data))


def one_nan(name: str, *shape: int) -> Stored:
    dtype, shape, data = floats(name, *shape)
    return dtype, shape, b"\xc0\x7f" + data[2:]


OUTPUT = f"{LAYER}self_attn.o_proj.weight"
NORM = "norm.weight"
# the drafters that were called right as stored, with the rule that reports each
IN_TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "d2t as ids": ("EGL306", {"d2t": integers(*TARGETS)}),
    "d2t absolute": ("EGL306", {"d2t": integers(*TARGETS), "t2d": mask()}),
    "d2t zero": ("EGL307", {"d2t": integers(*([0] * DRAFT)), "t2d": mask()}),
    "d2t shifted": ("EGL305", {"d2t": integers(*(offset + 1 for offset in OFFSETS[:-1]), 0), "t2d": mask()}),
    "t2d shifted": ("EGL305", {"t2d": mask(OTHERS)}),
    "NaN in a norm": ("EGL205", {NORM: one_nan(NORM, HIDDEN)}),
    "a norm of zeros": ("EGL206", {NORM: zeros(HIDDEN)}),
}
IN_MATRICES: dict[str, tuple[str, dict[str, Any]]] = {
    "NaN": ("EGL205", {OUTPUT: one_nan(OUTPUT, HIDDEN, HEADS * HEAD_DIM)}),
    "all NaN": ("EGL205", {OUTPUT: nan(HIDDEN, HEADS * HEAD_DIM)}),
    "zeroed o_proj": ("EGL206", {OUTPUT: zeros(HIDDEN, HEADS * HEAD_DIM)}),
}
BROKEN = IN_TABLES | IN_MATRICES


def broken(name: str, parent: Path) -> Path:
    return drafter_folder(parent, tensors=BROKEN[name][1])


@pytest.fixture
def trainer_state(tmp_path: Path) -> Path:
    """What SpecForge keeps of a training, beside the config that it exports."""
    folder = tmp_path / "state"
    shutil.copytree(FIXTURES / "producers/specforge/training-state", folder)
    (folder / "draft_config.json").rename(folder / "config.json")
    return folder


def words(text: str) -> str:
    """A text without its breaks and columns."""
    return " ".join(text.split())


def latest(inspection: eaglectl.Inspection) -> dict[str, eaglectl.Verdict]:
    return {verdict.engine: verdict for verdict in inspection.verdicts}


@pytest.mark.parametrize("name", BROKEN)
def test_ready_calls_nothing_right_that_validate_fails(name: str, tmp_path: Path) -> None:
    folder = broken(name, tmp_path)
    report = eaglectl.validate(folder, engines=("vllm",))
    assert report.verdict == "fail" and BROKEN[name][0] in {each.rule.id for each in report.findings}
    done = call("ready", folder, "--engine", "vllm", "--no-measure", "-o", tmp_path / "out")
    assert "right as stored" not in done.out
    if done.code == 0:
        assert eaglectl.validate(tmp_path / "out", engines=("vllm",)).verdict == "pass"
    else:
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", IN_TABLES)
def test_inspect_and_headers_only_see_what_is_wrong_of_tables_and_norms(name: str, tmp_path: Path) -> None:
    folder = broken(name, tmp_path)
    assert {verdict.outcome for verdict in latest(eaglectl.inspect(folder)).values()} == {"differs"}
    report = eaglectl.validate(folder, headers_only=True)
    assert {verdict.outcome for verdict in report.releases} == {"differs"}
    assert report.verdict == "fail" and BROKEN[name][0] in {each.rule.id for each in report.findings}


@pytest.mark.parametrize("name", IN_MATRICES)
def test_a_verdict_without_the_weights_says_so(name: str, tmp_path: Path) -> None:
    folder = broken(name, tmp_path)
    words = {verdict.words for verdict in latest(eaglectl.inspect(folder)).values()}
    assert words == {"as trained, weights not read"}
    first = "  vLLM 0.33.0 and SGLang 0.5.23 run it as trained, weights not read"
    assert first in call("validate", "--headers-only", folder).out.splitlines()


def test_a_verdict_with_the_weights_does_not_say_so(tmp_path: Path) -> None:
    report = eaglectl.validate(drafter_folder(tmp_path))
    assert {verdict.words for verdict in report.releases} == {"as trained"}


@pytest.mark.parametrize("command", ["inspect", "validate", "ready"])
def test_a_trainers_state_is_not_what_engines_load(command: str, trainer_state: Path) -> None:
    options = {"inspect": [], "validate": ["--engine", "vllm"], "ready": ["--engine", "vllm", "--no-measure"]}
    done = call(command, trainer_state, "--target", FIXTURES / "target", *options[command])
    assert command == "ready" or "takes the items of training_state" in words(done.out)
    assert "right as stored" not in done.out
    assert "vllm serve" not in done.out or "eaglectl convert" in done.out


def test_weights_beside_those_that_were_named_are_loaded_too(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "adapter.safetensors").write_bytes(safetensors_bytes({"a": floats("a", 2, 2)}))
    verdict = eaglectl.validate(folder, engines=("vllm",)).releases[0]
    assert verdict.outcome == "fails" and "opens adapter.safetensors" in verdict.reasons[0]


def test_weights_in_files_that_the_loader_does_not_open_are_not_served(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "producers/eagle/bin", folder)
    (folder / "pytorch_model.bin").rename(folder / "drafter.pth")
    verdict = latest(eaglectl.inspect(folder, answers=Answers(assume=True), target=str(FIXTURES / "target")))[
        "vllm"
    ]
    assert any("and the weights are in drafter.pth" in reason for reason in verdict.reasons), verdict


def test_serve_lines_name_the_folder_of_a_file(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    command = eaglectl.inspect(folder / "model.safetensors").commands["vllm"]
    assert f'"model": "{folder}"' in command


@pytest.mark.parametrize(
    ("engine", "code"), [("atom", 1), ("tokenspeed", 3), ("tensorrt-llm", 3), ("max", 3)]
)
def test_engines_that_are_only_read_never_pass(engine: str, code: int, tmp_path: Path) -> None:
    done = call("validate", drafter_folder(tmp_path), "--engine", engine)
    assert done.code == code
    assert ("captures boundaries [1, 3, 4]" if code == 1 else "smoke --run-in http://") in words(done.out)


def test_a_named_policy_gives_the_target_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "team/policy.toml"
    policy.parent.mkdir()
    policy.write_text(f'engines = ["vllm==0.32.0"]\n[defaults]\ntarget = "{FIXTURES / "target"}"\n')
    monkeypatch.chdir(tmp_path)
    done = call("validate", FIXTURES / "producers/vllm/native", "--policy", policy)
    assert "no target was given" not in done.out and "vLLM 0.32.0 runs" in done.out
    assert f"{policy} gives --target " in done.err


@pytest.mark.parametrize("release", ["0.99.0", "0.99.0+cpu"])
def test_an_engine_named_alone_is_the_installed_release(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "vllm", "vllm", release))
    done = call("validate", drafter_folder(tmp_path), "--engine", "vllm")
    assert done.code == 3
    assert done.out.startswith("COULD NOT LOOK ")
    assert "vLLM 0.99.0 runs it as trained not a known release: update eaglectl" in words(done.out)


def test_a_known_installed_release_is_the_one_that_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "vllm", "vllm", "0.31.0+cu128"))
    assert parse_engine("vllm").releases == ("0.31.0",)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.33.0+cu128", "0.33.0"),
        ("0.33.0.post1", "0.33.0"),
        ("0.33.0.post1+cu128", "0.33.0"),
        ("0.33.1.post1", "0.33.1.post1"),
        ("0.34.0+cu128", "0.34.0"),
    ],
)
def test_local_and_post_releases_are_their_release(version: str, release: str) -> None:
    assert known_release(ENGINES["vllm"], version) == release


def test_a_post_release_that_is_known_is_itself() -> None:
    assert known_release(ENGINES["sglang"], "0.5.15.post1") == "0.5.15.post1"


@pytest.mark.parametrize("text", ["vllm==0.33.0+cu128", "vllm==0.33.0.post1"])
def test_they_can_be_asked_for(text: str) -> None:
    assert parse_engine(text).releases == ("0.33.0",)


@pytest.mark.parametrize("text", ["vllm==0.99.0", "vllm>=99", "sglang==0.6.0"])
def test_an_unknown_release_is_no_wrong_call(text: str, tmp_path: Path) -> None:
    message = refusal(3, "validate", drafter_folder(tmp_path), "--engine", text)
    assert "update eaglectl" in message


@pytest.mark.parametrize("name", IN_TABLES)
def test_what_no_engine_drafts_with_is_equal_to_nothing_that_drafts(name: str, tmp_path: Path) -> None:
    good, bad = drafter_folder(tmp_path, "good"), drafter_folder(tmp_path, "bad", tensors=BROKEN[name][1])
    done = call("diff", good, bad)
    assert done.code in (1, 3) and not done.out.startswith("equal")
    assert "vllm 0.33.0" in done.out and "differs" in done.out


def test_diff_names_the_side_that_no_engine_drafts_with(tmp_path: Path) -> None:
    good = drafter_folder(tmp_path, "good", tensors={"t2d": mask()})
    document = call("diff", good, broken("d2t absolute", tmp_path), "--json").document
    assert document["verdict"] == "differs"
    assert {fact["b"] for fact in document["served"]} == {"differs"}


@pytest.mark.parametrize("name", IN_MATRICES)
def test_broken_numbers_are_not_converted(name: str, tmp_path: Path) -> None:
    folder = broken(name, tmp_path)
    message = refusal(1, "convert", folder, "-o", tmp_path / "out")
    assert BROKEN[name][0] in message and "--force-unserved" in message
    assert not (tmp_path / "out").exists()
    assert call("convert", folder, "-o", tmp_path / "out", "--force-unserved").code == 0


def test_a_forced_conversion_says_that_its_numbers_were_not_read(tmp_path: Path) -> None:
    done = call("convert", broken("NaN", tmp_path), "-o", tmp_path / "out", "--force-unserved", "--json")
    served = {row["engine"]: row["unread"] for row in done.document["serving"]}
    assert served["vllm"] == "weights not read"


def test_the_repair_of_a_table_is_said_in_words(tmp_path: Path) -> None:
    done = call("convert", broken("d2t absolute", tmp_path), "-o", tmp_path / "out")
    assert "d2t: token ids became offsets; as stored no engine accepts a token" in done.out


def test_the_target_that_was_named_is_said_with_its_digest() -> None:
    source, target = FIXTURES / "producers/vllm/native", FIXTURES / "target"
    assert "given by --target" in call("inspect", source, "--target", target).out
    for command in ("inspect", "validate"):
        document = call(command, source, "--target", target, "--json").document
        assert document["target"] == f"{target}, given by --target"
        assert len(document["target_digest"]) == 64


def test_a_reference_s_figure_is_not_an_engine_s(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.tiny import PROMPTS, TARGET, TINY

    place = tmp_path / "automodel"
    assert call("convert", TINY / "eagle3", "--for", "automodel", "--target", TARGET, "-o", place).code == 0
    run = ("--target", TARGET, "--prompts", PROMPTS, "--sample", "3", "--max-tokens", "4", "--device", "cpu")
    done = call("smoke", place, *run, "--run-in", "reference")
    assert "measured as if the file were read as trained; vLLM 0.33.0" in " ".join(done.out.split())


# every case with every command


def bad_cases() -> Iterator[Patch]:
    """The bad cases of rules of severity error."""
    for info in pkgutil.iter_modules(tests.validation.__path__):
        if info.name.startswith("test_") and info.name not in ("test_rules", "test_cli"):
            module = import_module(f"tests.validation.{info.name}")
            yield from (patch for value in vars(module).values() for patch in patches(value))


def outcomes(verdicts: Any) -> dict[tuple[str, str], Any]:
    return {(verdict.engine, verdict.release): verdict for verdict in verdicts}


def check_agreement(folder: Path, target: str | None, answers: Answers, place: Path) -> None:
    """Assert that no command says of an engine what another denies."""
    labels = tuple(f"{name}=={engine.releases[-1]}" for name, engine in ENGINES.items())
    given = {"target": target, "answers": answers}
    report = eaglectl.validate(folder, engines=labels, **given)
    judged = outcomes(report.releases)
    try:
        inspection = eaglectl.inspect(folder, engines=labels, **given)
    except EaglectlError:
        assert "as trained" not in {verdict.outcome for verdict in judged.values()}
        return
    for key, verdict in outcomes(inspection.requested).items():
        full = judged[key]
        assert verdict.outcome == full.outcome or verdict.unread, (key, verdict, full)
        assert verdict.words != "as trained"
    check_ready(folder, target, answers, place, report)


def check_ready(
    folder: Path, target: str | None, answers: Answers, place: Path, report: eaglectl.Report
) -> None:
    for name in ("vllm", "sglang"):
        out = place / name
        try:
            ready = eaglectl.ready(folder, target, out, engines=(name,), answers=answers, measure=None)
        except EaglectlError:
            continue
        (state,) = ready.engines
        judged = outcomes(report.releases)[name, state.release]
        assert state.stored_outcome == judged.outcome, (state.stored_reasons, judged)
        if ready.verdict == "pass":
            served = out if out.exists() else folder
            again = eaglectl.validate(served, engines=(name,), target=target)
            assert again.verdict != "fail", [each.match.message for each in again.findings]


def check_conversion(folder: Path, target: str | None, answers: Answers, place: Path) -> None:
    """Assert that what convert says of its output validate says too."""
    try:
        made = eaglectl.convert(folder, place / "out", target=target, answers=answers, measure=None)
    except (EaglectlError, UnreadableError):
        return
    for row in made.serving:
        if row.is_served:
            label = f"{row.verdict.engine}=={row.verdict.release}"
            report = eaglectl.validate(place / "out", engines=(label,), target=target)
            assert report.releases[0].outcome == "as trained", (row, report.releases)


PATCHES = tuple(bad_cases())
SAMPLED = PATCHES[:: max(1, len(PATCHES) // 8)]


def check_patch(patch: Patch, place: Path) -> None:
    target = None
    if patch.target_config is not None:
        (place / "target").mkdir()
        (place / "target/config.json").write_text(json.dumps(patch.target_config))
        target = str(place / "target")
    folder = patch.build(place)
    answers = patch.given.get("answers", Answers())
    check_agreement(folder, target, answers, place)
    check_conversion(folder, target, answers, place)


@pytest.mark.parametrize("patch", SAMPLED, ids=lambda patch: patch.why)
def test_commands_agree_on_a_sample_of_bad_cases(patch: Patch, tmp_path: Path) -> None:
    check_patch(patch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.why)
def test_commands_agree_on_every_bad_case(patch: Patch, tmp_path: Path) -> None:
    check_patch(patch, tmp_path)


def check_case(case: Case, place: Path) -> None:
    target = str(FIXTURES / "target")
    check_agreement(case.folder, target, case.answered(), place)
    check_conversion(case.folder, target, case.answered(), place)


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.is_pickled][::9], ids=lambda case: case.path
)
def test_commands_agree_on_a_sample_of_fixtures(case: Case, tmp_path: Path) -> None:
    check_case(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_commands_agree_on_every_fixture(case: Case, tmp_path: Path) -> None:
    check_case(case, tmp_path)


@pytest.mark.parametrize("name", BROKEN)
def test_commands_agree_on_what_was_called_right(name: str, tmp_path: Path) -> None:
    check_agreement(broken(name, tmp_path), None, Answers(), tmp_path)
