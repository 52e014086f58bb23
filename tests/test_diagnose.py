"""`diagnose`: each fault ends in its own cause, and a healthy drafter in "healthy".

The reference engine really runs; the runs of other engines are stood in for, made of its results.
"""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.errors import EaglectlError, RefusedError, UsageError  # noqa: E402
from eaglectl.operations import diagnosing  # noqa: E402
from eaglectl.reference import target as targets  # noqa: E402
from eaglectl.run.answering import _judged_layers, best_layers, climb, starts  # noqa: E402
from eaglectl.run.coverage import Coverage  # noqa: E402
from eaglectl.run.diagnosis import CAUSES, Diagnosis, Shown, find_cause  # noqa: E402
from eaglectl.run.job import EngineRun  # noqa: E402
from eaglectl.run.measurement import Estimate, PromptResult, measure  # noqa: E402
from eaglectl.run.probes import LEAST_PROMPTS, Fall  # noqa: E402
from eaglectl.run.published import Published, PublishedLength  # noqa: E402
from eaglectl.run.report import MAX_REGRESSION  # noqa: E402
from tests.builders import call  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.diagnoses import prompts_file  # noqa: E402
from tests.pages import read_page  # noqa: E402
from tests.pairs import write_prompts  # noqa: E402
from tests.stored_otherwise import Misread, faults_of  # noqa: E402
from tests.tiny import FAULTS, TARGET, TINY, Fault, in_vllms_layout  # noqa: E402

ROOT = FIXTURES.parent
TESTS = {cause.id: cause.test for cause in CAUSES}
COUNT, TOKENS = 16, 20
# how each fault of tests/tiny.py that is not seen by a rule ends here, on prompts that may be too few
RUN = {
    "aux layers one early": {"other-reading"},
    "aux layers one late": {"other-layers"},
    "norm_output on": {"other-reading"},
    "norm_before_residual on": {"other-reading"},
    "norm_output off": {"other-reading"},
    "rope base lost": {"other-reading", "too-few"},
}
LAYERS = "aux layers elsewhere"
FAST = "norm_output on"
# tensors stored otherwise that these prompts may be too few for
WEAK = ("rotary rows as pairs", "rotary rows in halves twice", "two norms", "rope base 10000")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both drafters in vLLM's layout."""
    return in_vllms_layout(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompts_file(tmp_path_factory.mktemp("prompts"), count=COUNT)


@pytest.fixture(scope="module")
def healthy(good: dict[str, Path], prompts: Path) -> Diagnosis:
    return diagnose(good["eagle3"], prompts)


def diagnose(drafter: Path, prompts: Path, target: Path = TARGET, **given: Any) -> Diagnosis:
    options = eaglectl.DiagnoseOptions(**{"prompts": prompts, "max_tokens": TOKENS, "device": "cpu", **given})
    return eaglectl.diagnose(str(drafter), str(target), options)


# ------------------------------------------------------------------------------------------ the table


def test_a_healthy_drafter_ends_in_healthy(healthy: Diagnosis) -> None:
    assert (healthy.cause, healthy.ending, healthy.verdict) == ("healthy", "healthy", "pass")
    assert "too little training" in {title for title, _ in healthy.not_looked}
    assert "cannot be told here: no published length of this target is known" in healthy.words
    assert "other aux layers than the file states" in healthy.ruled_out
    assert "another revision of the target" in {title for title, _ in healthy.not_looked}


def test_the_repr_of_a_diagnosis_is_without_its_evidence(healthy: Diagnosis) -> None:
    assert "cause='healthy'" in repr(healthy) and "Evidence(" not in repr(healthy)


def test_a_reading_that_loses_on_a_few_prompts_is_not_run_on_the_others(healthy: Diagnosis) -> None:
    assert healthy.evidence.reference is not None
    prompts = [variant.measured.prompts for variant in healthy.evidence.reference.variants]
    assert set(prompts) <= {LEAST_PROMPTS, COUNT} and prompts.count(LEAST_PROMPTS) > 0.7 * len(prompts)
    lost = [variant.ratio.high for variant in healthy.evidence.reference.variants]
    assert all((high < 1) for high, count in zip(lost, prompts, strict=True) if count == LEAST_PROMPTS)


@pytest.mark.slow
def test_a_healthy_drafter_takes_no_more_than_two_and_a_half_runs(
    good: dict[str, Path], prompts: Path, healthy: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`healthy`: what both load once in a process is loaded."""
    loads: list[object] = []
    load = targets.load_target
    monkeypatch.setattr(targets, "load_target", lambda *a, **k: (loads.append(a), load(*a, **k))[1])
    start = time.process_time()
    given = eaglectl.SmokeOptions(prompts=prompts, max_tokens=TOKENS, device="cpu", run_in="reference")
    eaglectl.smoke(str(good["eagle3"]), str(TARGET), given)
    middle = time.process_time()
    assert diagnose(good["eagle3"], prompts).cause == "healthy"
    assert time.process_time() - middle < 2.5 * (middle - start)
    assert len(loads) == 2  # once each


@pytest.mark.slow
def test_a_healthy_3_1_drafter_ends_in_healthy(good: dict[str, Path], prompts: Path) -> None:
    assert diagnose(good["eagle3.1"], prompts).cause == "healthy"


READ = [fault for fault in FAULTS if fault.name not in (*RUN, LAYERS)]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[] if fault.name == FAST else [pytest.mark.slow])
        for fault in FAULTS
        if fault.name in RUN
    ],
)
def test_a_fault_that_only_a_run_sees_ends_in_another_reading(
    fault: Fault, good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(fault.apply(good[fault.base], tmp_path / "broken"), prompts)
    assert diagnosis.cause in RUN[fault.name]
    if fault.name == FAST:
        (command,) = diagnosis.commands
        assert "--source-semantics norm_output=false" in command
        done = call(*shlex.split(command)[1:], "-o", tmp_path / "mended")
        assert done.code == 0, done.err


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults_of("tiny/eagle3"), ids=lambda fault: fault.name)
def test_tensors_stored_otherwise_end_in_another_reading(
    fault: Misread, good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(fault.apply(good["eagle3"], tmp_path / "broken"), prompts)
    if fault.name in WEAK and diagnosis.cause == "too-few":
        return
    assert (diagnosis.cause, diagnosis.ending) == ("other-reading", "file")
    assert fault.option in diagnosis.commands[0]


@pytest.fixture(scope="module")
def layers(good: dict[str, Path], prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """That of a drafter whose file states boundaries 1,3,5, and was trained on 2,4,5."""
    fault = next(fault for fault in FAULTS if fault.name == LAYERS)
    folder = tmp_path_factory.mktemp("layers")
    return diagnose(fault.apply(good["eagle3"], folder / "broken"), prompts)


@pytest.mark.slow
def test_other_aux_layers_are_found_and_the_printed_command_mends_them(
    layers: Diagnosis, good: dict[str, Path], tmp_path: Path
) -> None:
    assert (layers.cause, layers.ending) == ("other-layers", "file")
    (command,) = layers.commands
    assert "--aux-layers 2,4,5" in command
    assert call(*shlex.split(command)[1:], "-o", tmp_path / "mended").code == 0
    assert eaglectl.inspect(str(tmp_path / "mended"), target=str(TARGET)).drafter.aux.boundaries == (2, 4, 5)


@pytest.mark.parametrize("trained", [(2, 16, 29), (3, 11, 20), (0, 1, 32), (30, 31, 32), (7,), (2, 9, 16)])
def test_boundaries_are_found_one_by_one(trained: tuple[int, ...]) -> None:
    def score(boundaries: tuple[int, ...]) -> int:
        return -sum(abs(one - other) for one, other in zip(boundaries, trained, strict=True))

    stated = tuple(range(1, 1 + len(trained)))
    assert climb(score, starts(stated, 32), 32) == trained
    assert climb(lambda _: 0, starts(stated, 32), 32) == stated


class Counting:
    """A first pass that counts so many right tokens of 100, and what it was asked for."""

    def __init__(self, right: dict[tuple[int, ...], int]) -> None:
        self.right, self.counted = right, list[tuple[tuple[int, ...], int]]()
        self.stage = SimpleNamespace(target=SimpleNamespace(depth=4))
        self.job = SimpleNamespace(on_progress=None)

    def count_first(self, _: object, boundaries: tuple[int, ...], every: int = 1) -> int:
        self.counted.append((boundaries, every))
        return self.right.get(boundaries, 0) // every


def test_layers_that_draft_clearly_worse_are_counted_at_a_part_of_the_positions() -> None:
    right = {(1, 3): 400, (2, 3): 300, (0, 4): 396, (0, 3): 480}
    first: Any = Counting(right)
    best, counts = best_layers(first, first, (1, 3), screens=True)
    assert best == (0, 3)
    assert [counts[boundaries] for boundaries in right] == [400, -1, 396, 480]
    whole = [boundaries for boundaries, every in first.counted if every == 1]
    assert sorted(whole) == [(0, 3), (0, 4), (1, 3)]  # each once


class Drafting:
    """A stage whose drafter accepts so many of 100 draft tokens, by boundaries, on each of eight prompts."""

    boundaries, drafter, target = (1, 3, 5), None, SimpleNamespace(depth=30)
    texts: ClassVar[list[int]] = list(range(8))

    def __init__(self, accepted: dict[tuple[int, ...], int]) -> None:
        self.accepted = accepted

    def run(self, _: object, texts: list[int], boundaries: tuple[int, ...]) -> list[PromptResult]:
        # prompts differ, so that intervals have a width
        accepted = self.accepted.get(boundaries, 10)
        return [PromptResult("one", 100, (accepted + text,), ()) for text in texts]


@pytest.mark.parametrize(
    ("accepted", "best", "alike"),
    [
        ({(1, 15, 27): 80}, "1,15,27", []),
        ({(1, 15, 27): 80, (1, 15, 28): 80, (1, 15, 26): 81}, "1,15,27", [(1, 15, 26), (1, 15, 28)]),
        ({(1, 15, 27): 80, (2, 15, 27): 80}, "2,15,27", [(1, 15, 27)]),
        ({(1, 15, 27): 80, (2, 15, 27): 60}, "1,15,27", []),
        # three off, as the real pair's first boundary may be
        ({(5, 15, 27): 80, (2, 15, 27): 80}, "2,15,27", [(5, 15, 27)]),
    ],
)
def test_sets_one_off_that_draft_as_well_are_told_and_the_default_goes_before(
    accepted: dict[tuple[int, ...], int], best: str, alike: list[tuple[int, ...]]
) -> None:
    stage: Any = Drafting(accepted)
    stated = stage.run(None, stage.texts, stage.boundaries)
    found, others = _judged_layers(stage, stated, stage.texts, next(iter(accepted)))
    assert found is not None and found.is_better
    assert (found.option, others) == (f"--aux-layers {best}", alike)


def test_how_sure_the_search_is_stands_in_the_words(healthy: Diagnosis) -> None:
    search, report = healthy.evidence.layers, healthy.evidence.reference
    assert search is not None and report is not None
    found = replace(report.variants[0], ratio=Estimate(1.2, 1.05, 1.4), outcome="better")
    commands = {**healthy.evidence.commands, "layers": "eaglectl convert"}
    for alike, words in (
        (((2, 15, 27), (1, 14, 27)), "2,15,27 or 1,14,27 it drafts as well, as far as these prompts tell"),
        ((), "from each set with one boundary one off it drafts less"),
    ):
        evidence = replace(
            healthy.evidence, layers=replace(search, found=found, alike=alike), commands=commands
        )
        shown = TESTS["other-layers"](evidence)
        assert isinstance(shown, Shown) and words in shown.words


def test_layers_that_few_prompts_cannot_tell_are_too_few(healthy: Diagnosis) -> None:
    search, report = healthy.evidence.layers, healthy.evidence.reference
    assert search is not None and report is not None
    better = replace(report.variants[0], ratio=Estimate(1.2, 1.05, 1.4), outcome="better")
    for outcome, cause in (("better", "other-layers"), ("too few prompts", "too-few")):
        found = replace(search, found=replace(better, outcome=outcome))
        commands = {**healthy.evidence.commands, "layers": "eaglectl convert"}
        assert ending_of(healthy, layers=found, commands=commands) == cause


def test_what_prompts_show_stands_before_what_more_would_tell(healthy: Diagnosis) -> None:
    search, report = healthy.evidence.layers, healthy.evidence.reference
    assert search is not None and report is not None
    open_layers = replace(search, found=replace(report.variants[0], ratio=Estimate(1.03, 0.99, 1.07)))
    weak = scaled(healthy, 0.35)
    assert ending_of(healthy, layers=open_layers, reference=weak) == "too-few"
    assert ending_of(healthy, layers=open_layers, reference=weak, templated=report) == "template"
    assert ending_of(healthy, layers=open_layers, sampled=weak) == "sampling"


def test_three_prompts_are_too_few_even_for_a_broken_drafter(good: dict[str, Path], tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == FAST)
    broken = fault.apply(good["eagle3"], tmp_path / "broken")
    diagnosis = diagnose(broken, prompts_file(tmp_path, count=3))
    assert (diagnosis.cause, diagnosis.verdict) == ("too-few", "could-not-look")


def test_without_torch_the_next_command_is_the_same_again(
    good: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "eaglectl.reference.model", None)
    server, prompts = "http://127.0.0.1:9", str(prompts_file(tmp_path, count=3))
    options = eaglectl.DiagnoseOptions(run_in=server, prompts=prompts)
    diagnosis = eaglectl.diagnose(str(good["eagle3"]), str(TARGET), options)
    assert (diagnosis.cause, diagnosis.verdict) == ("no-reference", "could-not-look")
    assert "pip install '.[torch]'" in diagnosis.words
    again = ["eaglectl", "diagnose", str(good["eagle3"]), "--run-in", server, "--prompts", prompts]
    assert [shlex.split(line) for line in diagnosis.commands] == [[*again, "--target", str(TARGET)]]


def test_another_target_is_the_pair(good: dict[str, Path], prompts: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for path in TARGET.iterdir():
        (target / path.name).symlink_to(path.resolve())
    config = json.loads((TARGET / "config.json").read_text())
    (target / "config.json").unlink()
    (target / "config.json").write_text(json.dumps(config | {"hidden_size": 2 * config["hidden_size"]}))
    diagnosis = diagnose(good["eagle3"], prompts, target)
    assert (diagnosis.cause, diagnosis.ending) == ("other-target", "pair")


def test_a_drafter_past_its_positions_is_for_the_prompts(
    good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    short = Misread("short", "", config={"max_position_embeddings": 16})
    diagnosis = diagnose(short.apply(good["eagle3"], tmp_path / "short"), prompts)
    assert (diagnosis.cause, diagnosis.ending) == ("past-positions", "prompts")


@pytest.mark.slow
def test_temperature_one_ends_in_sampling(good: dict[str, Path], prompts: Path) -> None:
    diagnosis = diagnose(good["eagle3"], prompts, temperature=1.0)
    assert (diagnosis.cause, diagnosis.ending) == ("sampling", "prompts")
    assert "at temperature 1 and" in diagnosis.words


@pytest.mark.slow
def test_a_target_of_other_weights_is_another_revision(
    good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    embedding = {"embed_tokens.weight": load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]}
    drafter, target = tmp_path / "drafter", tmp_path / "target"
    for source, folder in ((good["eagle3"], drafter), (TARGET, target)):
        shutil.copytree(source, folder)
    stored = load_file(drafter / "model.safetensors")
    save_file(stored | embedding, drafter / "model.safetensors", {"format": "pt"})
    random = torch.Generator().manual_seed(0)
    moved = {
        name: (weight + 0.3 * weight.std() * torch.randn(weight.shape, generator=random)).bfloat16()
        if weight.dim() > 1
        else weight
        for name, weight in load_file(TARGET / "model.safetensors").items()
    }
    save_file(moved, target / "model.safetensors", {"format": "pt"})
    diagnosis = diagnose(drafter, prompts, target)
    assert (diagnosis.cause, diagnosis.ending) == ("other-revision", "pair")
    assert "differ from the target's" in diagnosis.words and "pass the revision" in diagnosis.words
    (command,) = diagnosis.commands
    done = call(*shlex.split(command)[1:])
    assert "EGL704" in done.out, done.err


# of the tiny target, which knows code and no chat: the user's message is a comment above it
TEMPLATE = "{% for message in messages %}# {{ message.content }}\n\nimport {% endfor %}"
ANOTHER_TEMPLATE = "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
QUESTIONS = (
    "What does the module do?",
    "How do I read a file?",
    "Which value is returned?",
    "Explain the parser",
    "Give the names of the fields",
    "How is an error raised?",
    "What is the type of the key?",
    "List the arguments",
    "When is the cache cleared?",
    "How do I sort a list?",
    "What happens to the path?",
    "How many items are left?",
)


@pytest.mark.slow
def test_chats_in_the_template_of_another_model_end_in_the_template(
    good: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(TARGET, target := tmp_path / "target")
    (target / "chat_template.jinja").write_text(TEMPLATE)
    texts = [ANOTHER_TEMPLATE.format(question) for question in QUESTIONS]
    diagnosis = diagnose(good["eagle3"], write_prompts(tmp_path / "chats.jsonl", texts), target)
    assert (diagnosis.cause, diagnosis.ending) == ("template", "prompts")
    templated, served = diagnosis.evidence.templated, diagnosis.evidence.served
    assert templated is not None and served is not None
    assert templated.measured.length.low > 1.5 * served.measured.length.high
    messages = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
    (tmp_path / "mended.jsonl").write_text("".join(json.dumps(line) + "\n" for line in messages))
    assert diagnose(good["eagle3"], tmp_path / "mended.jsonl", target).cause == "healthy"


# ------------------------------------------------------------------- engines, from stood-in runs


def stand_in(monkeypatch: pytest.MonkeyPatch, change: Callable[[EngineRun], EngineRun]) -> None:
    """Let vLLM's run be the reference's, changed; `change` may raise."""
    from eaglectl.operations import smoking
    from eaglectl.run.stage import run_reference

    def run(job: Any, engine: str) -> EngineRun:
        report = run_reference(job)
        return report if engine == "reference" else change(replace(report, engine=engine, version="0.33.0"))

    monkeypatch.setattr(smoking, "_run", run)
    monkeypatch.setattr(diagnosing, "installed_release", lambda engine: "0.33.0")


def dead(run: EngineRun) -> EngineRun:
    return replace(run, results=tuple(replace(r, accepted=(0,) * len(r.accepted)) for r in run.results))


def refused(run: EngineRun) -> EngineRun:
    raise RefusedError("vLLM 0.33.0 does not run this drafter: KeyError")


def not_there(run: EngineRun) -> EngineRun:
    raise EaglectlError("vLLM died")


ENGINE = {
    "refused": (refused, "engine-refuses", "engine"),
    "another setting": (
        lambda run: replace(run, differences=("norm_output: vLLM uses False, the checkpoint means True",)),
        "engine-setting",
        "engine",
    ),
    "unfilled": (
        lambda run: replace(run, resolved={"unfilled": ["fc.weight"]}),
        "engine-unfilled",
        "engine",
    ),
    "dead in the engine alone": (
        lambda run: replace(dead(run), resolved={"unfilled": []}),
        "engine-lower",
        "engine",
    ),
    "level": (lambda run: replace(run, resolved={"unfilled": []}), "healthy", "healthy"),
    "no run": (not_there, "no-engine", "could-not-look"),
}


@pytest.mark.parametrize("name", [name for name in ENGINE if ENGINE[name][0] not in (refused, not_there)])
def test_what_an_engine_did_ends_in_its_cause(name: str, healthy: Diagnosis) -> None:
    change, cause, _ = ENGINE[name]
    report = healthy.evidence.reference
    assert report is not None
    run = change(replace(report.run, engine="vllm", version="0.33.0"))
    engine = replace(report, run=run, measured=measure(run.results))
    assert ending_of(healthy, engine_name="vllm", engine=engine) == cause


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "no run"))
        for name in ("refused", "no run", "dead in the engine alone")
    ],
)
def test_a_run_in_an_engine_ends_in_its_cause(
    name: str, good: dict[str, Path], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, cause, ending = ENGINE[name]
    stand_in(monkeypatch, change)
    diagnosis = diagnose(good["eagle3"], prompts, engine="vllm")
    assert (diagnosis.cause, diagnosis.ending) == (cause, ending)


@pytest.mark.slow
def test_a_release_that_is_known_not_to_serve_it_is_named_without_a_run(
    good: dict[str, Path], prompts: Path
) -> None:
    diagnosis = diagnose(good["eagle3.1"], prompts, engine="vllm==0.18.0")
    assert (diagnosis.cause, diagnosis.ending) == ("engine-fact", "engine")
    assert "vllm>=0.22.0" in " ".join(diagnosis.commands)


# ------------------------------------------------------------------ prompts and training, by evidence


def ending_of(diagnosis: Diagnosis, **changes: Any) -> str:
    """Where the tree ends with the evidence of a run changed."""
    evidence = replace(diagnosis.evidence, **changes)
    return find_cause(CAUSES, evidence, lambda phase, given: given, "", "").cause


def scaled(diagnosis: Diagnosis, share: float) -> Any:
    """The reference's report with this share of its accepted tokens."""
    report = diagnosis.evidence.reference
    assert report is not None
    results = tuple(
        replace(r, accepted=tuple(round(share * count) for count in r.accepted)) for r in report.run.results
    )
    measured = measure(results)
    return replace(report, run=replace(report.run, results=results), measured=measured)


def beside(report: Any, *lengths: float) -> Any:
    """The report beside lengths that others published of runs like it."""
    alike = tuple(
        PublishedLength(one, "org/other", "org/target", "x", "p", 3, 0.0, None, "k=3", "s", "u", "d")
        for one in lengths
    )
    return replace(report, published=Published(alike))


def test_acceptance_below_that_of_others_with_nothing_else_is_the_training(healthy: Diagnosis) -> None:
    weak = scaled(healthy, 0.35)
    assert ending_of(healthy, reference=beside(weak, 3.0, 2.5)) == "weak"


def test_acceptance_as_that_of_others_is_healthy(healthy: Diagnosis) -> None:
    weak = scaled(healthy, 0.35)
    reached = weak.measured.length.value
    assert ending_of(healthy, reference=beside(weak, reached, 3.0)) == "healthy"


def test_a_dead_figure_of_others_is_nothing_to_judge_by(healthy: Diagnosis) -> None:
    assert ending_of(healthy, reference=beside(scaled(healthy, 0.35), 1.01)) == "healthy"


def test_an_interval_that_holds_what_others_reach_is_too_few(healthy: Diagnosis) -> None:
    weak = scaled(healthy, 0.35)
    length = weak.measured.length
    reached = 0.5 * length.value / MAX_REGRESSION + 0.5 * length.high
    assert length.value < MAX_REGRESSION * reached and reached <= length.high
    assert ending_of(healthy, reference=beside(weak, reached)) == "too-few"


@pytest.mark.parametrize("share", [0.35, 0.45, 0.55])
def test_acceptance_with_nothing_to_judge_it_by_is_no_fault(healthy: Diagnosis, share: float) -> None:
    report = scaled(healthy, share)
    assert report.measured.per_position[0].low < 0.5
    assert ending_of(healthy, reference=report) == "healthy"


def test_a_dead_drafter_with_nothing_else_is_not_found(healthy: Diagnosis) -> None:
    assert ending_of(healthy, reference=scaled(healthy, 0)) == "not-found"


def test_weak_acceptance_on_a_quantised_target_is_the_pair(healthy: Diagnosis) -> None:
    weak = beside(scaled(healthy, 0.35), 2.5)
    assert ending_of(healthy, reference=weak, is_target_quantised=True) == "quantised-target"
    assert ending_of(healthy, is_target_quantised=True) == "healthy"


def test_sampling_that_costs_acceptance_is_the_prompts(healthy: Diagnosis) -> None:
    assert ending_of(healthy, sampled=scaled(healthy, 0.4)) == "sampling"
    assert ending_of(healthy, sampled=healthy.evidence.reference) == "healthy"


def test_sampling_is_seen_in_pairs_where_the_intervals_of_both_runs_meet(healthy: Diagnosis) -> None:
    report = healthy.evidence.reference
    assert report is not None
    less = scaled(healthy, 0.9)
    assert less.measured.length.high > report.measured.length.low
    assert ending_of(healthy, sampled=less) == "sampling"


def test_a_run_otherwise_that_a_few_more_prompts_would_tell_is_too_few(healthy: Diagnosis) -> None:
    report = healthy.evidence.reference
    assert report is not None
    results = tuple(
        replace(r, accepted=tuple(round((1 if place % 8 else 0.4) * count) for count in r.accepted))
        for place, r in enumerate(report.run.results)
    )
    less = replace(report, run=replace(report.run, results=results), measured=measure(results))
    for changes, words in (
        ({"sampled": less}, "at the temperature that was asked for the prompts have x0.9"),
        ({"reference": less, "templated": report}, "in the target's chat template the prompts have x1.0"),
    ):
        evidence = replace(healthy.evidence, **changes)  # type: ignore[arg-type]
        shown = TESTS["too-few"](evidence)
        assert isinstance(shown, Shown)
        assert shown.words.startswith(words) and "give about" in shown.words
        assert ending_of(healthy, **changes) == "too-few"


def test_layers_next_to_the_stated_ones_are_not_named_where_the_search_found_others(
    healthy: Diagnosis,
) -> None:
    search, report = healthy.evidence.layers, healthy.evidence.reference
    assert search is not None and report is not None and report.probed is not None
    near = report.probed.variants[0]
    assert near.is_of_layers
    near = replace(near, outcome="better", is_verified=True)
    probed = replace(report.probed, variants=(near, *report.probed.variants[1:]))
    report = replace(report, probed=probed)
    commands = {**healthy.evidence.commands, "layers": "search", "repair": "near"}
    found = replace(search, found=replace(near, name="aux boundaries 0,1,2", outcome="better"))
    assert ending_of(healthy, reference=report, layers=found, commands=commands) == "other-layers"
    nothing = replace(search, found=None)
    assert ending_of(healthy, reference=report, layers=nothing, commands=commands) == "other-reading"


def test_another_reading_is_named_though_the_search_found_layers(healthy: Diagnosis) -> None:
    search, report = healthy.evidence.layers, healthy.evidence.reference
    assert search is not None and report is not None and report.probed is not None
    other = next(variant for variant in report.variants if variant.name == "norm_output true")
    better = replace(other, outcome="better", is_verified=True)
    reference = replace(report, probed=replace(report.probed, variants=(better,)))
    layers = replace(search, found=replace(better, name="aux boundaries 0,1,2"))
    commands = {**healthy.evidence.commands, "layers": "search", "repair": "norm"}
    assert ending_of(healthy, reference=reference, layers=layers, commands=commands) == "other-reading"


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        ("no better", None),
        ("too few prompts", "too few prompts to tell of norm_output true"),
    ],
)
def test_a_reading_is_ruled_out_unless_these_prompts_are_too_few(
    outcome: str, shown: str | None, healthy: Diagnosis
) -> None:
    report = healthy.evidence.reference
    assert report is not None and report.probed is not None
    other = next(variant for variant in report.variants if variant.name == "norm_output true")
    probed = replace(report.probed, variants=(replace(other, outcome=outcome),))
    evidence = replace(healthy.evidence, reference=replace(report, probed=probed))
    assert TESTS["other-reading"](evidence) == shown


def test_a_chat_template_that_helps_is_the_prompts(healthy: Diagnosis) -> None:
    weak = scaled(healthy, 0.35)
    assert ending_of(healthy, reference=weak, templated=healthy.evidence.reference) == "template"
    assert ending_of(healthy, reference=beside(weak, 2.5), templated=weak) == "weak"


def test_a_vocabulary_without_the_tokens_of_a_set_is_the_cause(healthy: Diagnosis) -> None:
    report = healthy.evidence.reference
    assert report is not None
    most, least = Coverage(900, 890, 3.9), Coverage(100, 40, 1.5)
    low = Coverage(1000, 930, 3.6, {"english": most, "hindi": least}, {"Devanagari": least}, commands=("x",))
    one_low = replace(report, coverage=low)
    assert ending_of(healthy, reference=one_low) == "draft-vocabulary"
    shown = TESTS["draft-vocabulary"](replace(healthy.evidence, reference=one_low))
    assert isinstance(shown, Shown) and shown.commands == ("x",)
    assert shown.title == 'a draft vocabulary without the tokens of "hindi"'
    cause = next(cause for cause in CAUSES if cause.id == "draft-vocabulary")
    assert cause.ending == "vocabulary"
    assert ending_of(healthy, reference=replace(report, coverage=most)) == "healthy"


def test_a_set_that_it_loses_on_is_the_prompts(healthy: Diagnosis) -> None:
    report = healthy.evidence.reference
    assert report is not None
    weak = scaled(healthy, 0.1).measured
    both = replace(report, by_set={"code": report.measured, "poems": weak})
    assert ending_of(healthy, reference=both) == "one-set"
    half = replace(report, by_set={"code": report.measured, "poems": scaled(healthy, 0.5).measured})
    assert ending_of(healthy, reference=half) == "healthy"


def test_a_fall_at_a_position_is_the_prompts(healthy: Diagnosis) -> None:
    report = healthy.evidence.reference
    assert report is not None and report.probed is not None
    fallen = replace(report, probed=replace(report.probed, fall=Fall(64, 0.7, 0.3)))
    assert ending_of(healthy, reference=fallen) == "past-positions"


def test_an_expected_length_draws_the_line(healthy: Diagnosis) -> None:
    assert ending_of(healthy, expected=3.9) == "not-found"
    assert ending_of(healthy, expected=2.0) == "healthy"


# --------------------------------------------------------------------------------- command and page


def test_the_command_prints_the_cause_and_the_next_command(good: dict[str, Path], tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "d2t missing")
    broken = fault.apply(good["eagle3"], tmp_path / "broken")
    done = call("diagnose", broken, "--target", TARGET, "--device", "cpu")
    assert done.code == 1
    assert done.out.startswith("cause in the file  ")
    assert "EGL310 d2t-missing" in done.out
    assert "restore it from the trainer" in done.out and "next: " not in done.out  # no table is left
    document = call("diagnose", broken, "--target", TARGET, "--device", "cpu", "--json").document
    assert (document["ending"], document["cause"]) == ("file", "file-rule")


def test_the_document_lists_readings_prompts_and_positions(healthy: Diagnosis) -> None:
    document = healthy.to_dict()
    lengths = [row["acceptance_length"] for row in document["prompts"]]
    assert lengths == sorted(lengths) and len(lengths) == COUNT
    assert sum(row["drafts"] for row in document["prompts"]) == document["runs"]["reference"]["drafts"]
    assert "aux boundaries +1" in {reading["name"] for reading in document["readings"]}
    bounds = [(part["start"], part["end"]) for part in document["text_positions"]]
    assert bounds[:3] == [(0, 16), (16, 32), (32, 64)]


def test_the_command_writes_its_page(good: dict[str, Path], tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "d2t missing")
    broken, page = fault.apply(good["eagle3"], tmp_path / "broken"), tmp_path / "page.html"
    done = call("diagnose", broken, "--target", TARGET, "--device", "cpu", "--page", page)
    assert done.code == 1
    assert "\ncause in the file  " in read_page(page.read_text())
    refused = call("diagnose", broken, "--target", TARGET, "--page", broken / "config.json")
    assert refused.code == 2 and "is no page" in refused.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "llama.cpp"}, "--engine llama.cpp: vllm or sglang was expected"),
        ({"run_in": "llama.cpp"}, "vllm, sglang, reference or a server's URL"),
        ({"engine": "vllm", "run_in": "sglang"}, "leave one of them out"),
        ({"engine": "http://127.0.0.1:1", "run_in": "vllm"}, "is named by --run-in"),
        ({"engine": "vlm"}, "--engine vlm"),
        ({"expected": 5.0}, "--expected 5"),
        ({"expected": 1.0}, "--expected 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str, prompts: Path) -> None:
    with pytest.raises(UsageError, match=words):
        diagnose(TINY / "eagle3", prompts, **options)


def test_every_cause_has_an_id_of_its_own() -> None:
    assert len({cause.id for cause in CAUSES}) == len(CAUSES)
