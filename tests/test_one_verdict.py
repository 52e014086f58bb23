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
from eaglectl.engines.registry import ENGINES, known_release
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.formats.format import Answers
from tests.builders import (
    DRAFT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    SGLANG,
    TARGETS,
    VLLM,
    Stored,
    call,
    drafter_folder,
    floats,
    integers,
    mask,
    refusal,
)
from tests.cases import CASES, Case
from tests.conftest import FIXTURES, sampled
from tests.validation.judging import patches
from tests.validation.patches import Patch

LAYER = "layers.0."
OTHERS = (*TARGETS[:-1], TARGETS[-1] - 2)
OFFSETS = tuple(target - index for index, target in enumerate(TARGETS))


NAN = b"\xc0\x7f"


def beginning(data: bytes, name: str, *shape: int) -> Stored:
    """A bfloat16 tensor whose first bytes are these."""
    dtype, shape, other = floats(name, *shape)
    return dtype, shape, data + other[len(data) :]


OUTPUT = f"{LAYER}self_attn.o_proj.weight"
OUTPUT_SHAPE, OUTPUT_SIZE = (HIDDEN, HEADS * HEAD_DIM), HIDDEN * HEADS * HEAD_DIM
NORM = "norm.weight"
# the drafters that were called right as stored, with the rule that reports each
IN_TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "d2t as ids": ("EGL306", {"d2t": integers(*TARGETS)}),
    "d2t absolute": ("EGL306", {"d2t": integers(*TARGETS), "t2d": mask()}),
    "d2t zero": ("EGL307", {"d2t": integers(*([0] * DRAFT)), "t2d": mask()}),
    "d2t shifted": ("EGL305", {"d2t": integers(*(offset + 1 for offset in OFFSETS[:-1]), 0), "t2d": mask()}),
    "t2d shifted": ("EGL305", {"t2d": mask(OTHERS)}),
    "NaN in a norm": ("EGL205", {NORM: beginning(NAN, NORM, HIDDEN)}),
    "a norm of zeros": ("EGL206", {NORM: beginning(bytes(2 * HIDDEN), NORM, HIDDEN)}),
}
IN_MATRICES: dict[str, tuple[str, dict[str, Any]]] = {
    "NaN": ("EGL205", {OUTPUT: beginning(NAN, OUTPUT, *OUTPUT_SHAPE)}),
    "all NaN": ("EGL205", {OUTPUT: beginning(NAN * OUTPUT_SIZE, OUTPUT, *OUTPUT_SHAPE)}),
    "zeroed o_proj": ("EGL206", {OUTPUT: beginning(bytes(2 * OUTPUT_SIZE), OUTPUT, *OUTPUT_SHAPE)}),
}
BROKEN = IN_TABLES | IN_MATRICES


def broken(name: str, parent: Path) -> Path:
    return drafter_folder(parent, tensors=BROKEN[name][1])


def latest(inspection: eaglectl.Inspection) -> dict[str, eaglectl.Verdict]:
    return {verdict.engine: verdict for verdict in inspection.verdicts}


@pytest.mark.fast(4)
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


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", IN_TABLES)
def test_what_is_wrong_of_tables_and_norms_is_seen_without_the_weights(name: str, tmp_path: Path) -> None:
    folder = broken(name, tmp_path)
    assert {verdict.outcome for verdict in latest(eaglectl.inspect(folder)).values()} == {"differs"}
    report = eaglectl.validate(folder, headers_only=True)
    assert {verdict.outcome for verdict in report.releases} == {"differs"}
    assert report.verdict == "fail" and BROKEN[name][0] in {each.rule.id for each in report.findings}
    done = call("diff", drafter_folder(tmp_path, "good"), folder)
    assert done.code in (1, 3) and not done.out.startswith("pass")
    assert f"vllm {VLLM}" in done.out and "differs" in done.out


@pytest.mark.parametrize("name", IN_MATRICES)
def test_what_is_wrong_of_matrices_is_not_converted_and_a_verdict_without_them_says_so(
    name: str, tmp_path: Path
) -> None:
    folder, out = broken(name, tmp_path), tmp_path / "out"
    words = {verdict.words for verdict in latest(eaglectl.inspect(folder)).values()}
    assert words == {"as trained, weights not read"}
    first = f"  vLLM {VLLM} and SGLang {SGLANG} run it as trained, weights not read"
    assert first in call("validate", "--headers-only", folder).out.splitlines()
    message = refusal(1, "convert", folder, "-o", out)
    assert BROKEN[name][0] in message and "--force-unserved" in message and not out.exists()
    served = call("convert", folder, "-o", out, "--force-unserved", "--json").document["serving"]
    assert {row["engine"]: row["unread"] for row in served}["vllm"] == "weights not read"


@pytest.mark.parametrize("command", ["inspect", "validate", "ready"])
def test_a_trainers_state_is_not_what_engines_load(command: str, tmp_path: Path) -> None:
    # what SpecForge keeps of a training, beside the config that it exports
    state = shutil.copytree(FIXTURES / "producers/specforge/training-state", tmp_path / "state")
    (state / "draft_config.json").rename(state / "config.json")
    options = {"inspect": [], "validate": ["--engine", "vllm"], "ready": ["--engine", "vllm", "--no-measure"]}
    done = call(command, state, "--target", FIXTURES / "target", *options[command])
    assert command == "ready" or "reads the items of training_state" in " ".join(done.out.split())
    assert "right as stored" not in done.out
    assert "vllm serve" not in done.out or "eaglectl convert" in done.out


def test_weights_in_files_that_the_loader_does_not_open_are_not_served(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = shutil.copytree(FIXTURES / "producers/eagle/bin", tmp_path / "drafter")
    (folder / "pytorch_model.bin").rename(folder / "drafter.pth")
    target = str(FIXTURES / "target")
    verdict = latest(eaglectl.inspect(folder, answers=Answers(assume=True), target=target))["vllm"]
    assert any("but the weights are in drafter.pth" in reason for reason in verdict.reasons), verdict


@pytest.mark.parametrize(
    ("engine", "code"), [("atom", 1), ("tokenspeed", 3), ("tensorrt-llm", 3), ("max", 3)]
)
def test_engines_that_are_only_read_never_pass(engine: str, code: int, tmp_path: Path) -> None:
    done = call("validate", drafter_folder(tmp_path), "--engine", engine)
    words = "captures boundaries [1, 3, 4]" if code == 1 else "smoke --run-in http://"
    assert done.code == code and words in " ".join(done.out.split())


def test_a_named_policy_gives_the_target_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "team/policy.toml"
    policy.parent.mkdir()
    policy.write_text(f'engines = ["vllm==0.32.0"]\n[defaults]\ntarget = "{FIXTURES / "target"}"\n')
    monkeypatch.chdir(tmp_path)
    done = call("validate", FIXTURES / "producers/vllm/native", "--policy", policy)
    assert "no target was given" not in done.out and "vLLM 0.32.0 runs" in done.out
    assert f"defaults from {policy}: --target " in done.err


def test_local_and_post_releases_are_their_release() -> None:
    for version in ("0.33.0+cu128", "0.33.0.post1", "0.33.0.post1+cu128"):
        assert known_release(ENGINES["vllm"], version) == "0.33.0"
    assert known_release(ENGINES["vllm"], "0.33.1.post1") == "0.33.1.post1"
    assert known_release(ENGINES["vllm"], "0.34.0+cu128") == "0.34.0"


def test_the_repair_of_a_table_is_said_in_words(tmp_path: Path) -> None:
    done = call("convert", broken("d2t absolute", tmp_path), "-o", tmp_path / "out")
    assert "d2t: token ids became offsets; with the stored file no draft token would be accepted" in done.out


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
    assert f"the acceptance of the drafter as trained; vLLM {VLLM}" in " ".join(done.out.split())


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
    judged = outcomes(eaglectl.validate(folder, engines=labels, **given).releases)
    try:
        inspection = eaglectl.inspect(folder, engines=labels, **given)
    except EaglectlError:
        assert "as trained" not in {verdict.outcome for verdict in judged.values()}
        return
    for key, verdict in outcomes(inspection.requested).items():
        full = judged[key]
        assert verdict.outcome == full.outcome or verdict.unread, (key, verdict, full)
        assert verdict.words != "as trained"
    check_ready(folder, target, answers, place, judged)


def check_ready(
    folder: Path, target: str | None, answers: Answers, place: Path, judged: dict[tuple[str, str], Any]
) -> None:
    for name in ("vllm", "sglang"):
        out = place / name
        try:
            ready = eaglectl.ready(folder, target, out, engines=(name,), answers=answers, measure=None)
        except EaglectlError:
            continue
        (state,) = ready.engines
        assert state.stored.outcome == judged[name, state.release].outcome, state.stored.reasons
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
            assert report.releases[0].outcome == row.verdict.outcome, (row, report.releases)


PATCHES = tuple(bad_cases())


@pytest.mark.parametrize("patch", sampled(PATCHES, len(PATCHES) // 7), ids=lambda patch: patch.why)
def test_commands_agree_on_bad_cases(patch: Patch, tmp_path: Path) -> None:
    target = None
    if patch.target_config is not None:
        (tmp_path / "target").mkdir()
        (tmp_path / "target/config.json").write_text(json.dumps(patch.target_config))
        target = str(tmp_path / "target")
    folder = patch.build(tmp_path)
    answers = patch.given.get("answers", Answers())
    check_agreement(folder, target, answers, tmp_path)
    check_conversion(folder, target, answers, tmp_path)


@pytest.mark.fast(4)
@pytest.mark.parametrize("case", sampled(CASES, 9), ids=lambda case: case.path)
def test_commands_agree_on_fixtures(case: Case, tmp_path: Path) -> None:
    if case.is_pickled:
        pytest.importorskip("torch")
    target = str(FIXTURES / "target")
    check_agreement(case.folder, target, case.answered(), tmp_path)
    check_conversion(case.folder, target, case.answered(), tmp_path)


def test_serve_lines_name_the_folder_of_a_file(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    command = eaglectl.inspect(folder / "model.safetensors").commands["vllm"]
    assert f'"model": "{folder}"' in command
