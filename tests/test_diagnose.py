"""`diagnose`: each fault ends in its own cause, and a healthy drafter in "healthy".

The reference engine really runs; the runs of other engines are stood in for, made of its results.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.api.diagnose import Looks  # noqa: E402
from eaglectl.engines.engine import Verdict  # noqa: E402
from eaglectl.errors import UsageError  # noqa: E402
from eaglectl.formats.published import Figure, PublishedSource  # noqa: E402
from eaglectl.reference import target_model as targets  # noqa: E402
from eaglectl.report.acceptance import diagnosis_outline  # noqa: E402
from eaglectl.run.answering import _judged_layers, climb, starts  # noqa: E402
from eaglectl.run.causes import CAUSES  # noqa: E402
from eaglectl.run.coverage import Coverage  # noqa: E402
from eaglectl.run.diagnosis import Diagnosis, find_cause  # noqa: E402
from eaglectl.run.gate import MAX_REGRESSION  # noqa: E402
from eaglectl.run.job import EngineRun  # noqa: E402
from eaglectl.run.measurement import Estimate, PromptResult, measure  # noqa: E402
from eaglectl.run.probes import Fall  # noqa: E402
from eaglectl.run.prompts import FURTHER_PROMPTS, MORE_PROMPTS  # noqa: E402
from eaglectl.run.published_lengths import Published, PublishedLength  # noqa: E402
from eaglectl.target.choice import as_target  # noqa: E402
from eaglectl.verdicts import ServedAs  # noqa: E402
from tests.builders import VLLM, call, changed, read_safetensors  # noqa: E402
from tests.diagnoses import ENGINE, FAST, LAYERS, RUN, TOKENS, diagnose, prompts_file, reference, scaled  # noqa: E402
from tests.pairs import write_prompts  # noqa: E402
from tests.stored_otherwise import FUSED, MLP, Misread, in_order, in_shards  # noqa: E402
from tests.tiny import FAULTS, TARGET, TINY, Fault, in_vllms_layout  # noqa: E402


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both drafters in vLLM's layout."""
    return in_vllms_layout(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompts_file(tmp_path_factory.mktemp("prompts"), count=16)


@pytest.fixture(scope="module")
def healthy(good: dict[str, Path], prompts: Path) -> Diagnosis:
    loads: list[object] = []
    load = targets.load_tokenizer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "load_tokenizer", lambda *a, **k: (loads.append(a), load(*a, **k))[1])
        diagnosis = diagnose(good["eagle3"], prompts)
    assert len(loads) == 1, "the tokenizer is loaded once"
    return diagnosis


def test_a_healthy_drafter_ends_in_healthy(healthy: Diagnosis) -> None:
    assert (healthy.cause, healthy.ending, healthy.verdict) == ("healthy", "healthy", "pass")
    titles = {title for title, _ in healthy.not_looked}
    assert {"too little training", "another revision of the target"} <= titles
    assert "no threshold for this run: no published length of this target is known" in healthy.words
    assert "other aux layers than the file states" in healthy.ruled_out
    assert healthy.evidence.layers is not None
    assert "aux boundaries +1" in {reading["name"] for reading in healthy.to_dict()["readings"]}


@pytest.mark.slow
def test_a_healthy_drafter_takes_no_more_than_two_and_a_half_runs(
    good: dict[str, Path], prompts: Path, healthy: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the target's floating-point operations, which no load of the machine changes; each loads it once."""
    loads: list[object] = []
    load, run = targets.load_target, targets.TargetModel._run
    monkeypatch.setattr(targets, "load_target", lambda *a, **k: (loads.append(a), load(*a, **k))[1])
    operations = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal operations
        with FlopCounterMode(display=False) as counter:
            result = run(*arguments, **named)
        operations += counter.get_total_flops()
        return result

    monkeypatch.setattr(targets.TargetModel, "_run", counted)
    given = eaglectl.SmokeOptions(prompts=prompts, max_tokens=TOKENS, device="cpu", run_in="reference")
    eaglectl.smoke(str(good["eagle3"]), str(TARGET), given)
    smoke = operations
    assert diagnose(good["eagle3"], prompts).cause == "healthy"
    assert 0 < operations - smoke < 2.5 * smoke
    assert len(loads) == 2


MENDS = {FAST: "--source-semantics norm_output=false", LAYERS: "--aux-layers 2,4,5"}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[] if fault.name == FAST else [pytest.mark.slow])
        for fault in FAULTS
        if fault.name in (*RUN, LAYERS)
    ],
)
def test_a_fault_that_only_a_run_sees_ends_in_another_reading_or_layers_and_the_command_mends_it(
    fault: Fault, good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(fault.apply(good[fault.base], tmp_path / "broken"), prompts)
    assert diagnosis.cause in RUN.get(fault.name, {"other-layers"})
    if fault.name in MENDS:
        (command,) = diagnosis.commands
        assert MENDS[fault.name] in command
        done = call(*shlex.split(command)[1:], "-o", tmp_path / "mended")
        assert done.code == 0, done.err


@pytest.mark.slow
def test_two_faults_are_told_at_the_first_and_mended_one_after_the_other(
    good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    order, shards = Misread("", "", in_order("kqv")), Misread("", "", in_shards(MLP, 2))
    folder = shards.apply(order.apply(good["eagle3"], tmp_path / "one"), tmp_path / "two")
    first = diagnose(folder, prompts)
    assert first.title.startswith("read with rows of fused q/k/v kqv it drafts better, but that is not all")
    assert "with that, rows of fused gate/up 2-shards is x" in first.words
    assert "--fix-reading fused-qkv=kqv" in first.commands[0]
    assert call(*shlex.split(first.commands[0])[1:], "-o", str(tmp_path / "half")).code == 0
    second = diagnose(tmp_path / "half", prompts)
    assert second.title.startswith("it drafts better read with rows of fused gate/up 2-shards: ")
    assert call(*shlex.split(second.commands[0])[1:], "-o", str(tmp_path / "whole")).code == 0
    mended, right = (path / "model.safetensors" for path in (tmp_path / "whole", good["eagle3"]))
    assert read_safetensors(mended) == read_safetensors(right)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FUSED, ids=lambda fault: fault.name)
def test_a_fused_matrix_cut_in_the_wrong_places_is_named(
    fault: Misread, good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    diagnosis = diagnose(fault.apply(good["eagle3"], tmp_path / "drafter"), prompts)
    assert (diagnosis.cause, "not all" in diagnosis.title) == ("other-reading", False)
    assert fault.option in diagnosis.commands[0]


@pytest.mark.parametrize(("expected", "is_whole"), [(None, True), (1.3, True), (2.5, False)])
def test_a_reading_that_drafts_less_than_expected_is_not_the_whole_cause(
    expected: float | None, is_whole: bool, healthy: Diagnosis
) -> None:
    low = ended(healthy, reference=unproven(healthy, 1.4, "better"), commands=COMMANDS, expected=expected)
    assert low.cause == "other-reading"
    assert ("2.5 of --expected: this is not the whole cause" in low.words) != is_whole


@pytest.mark.parametrize("trained", [(2, 16, 29), (3, 11, 20), (0, 1, 32), (30, 31, 32), (7,), (2, 9, 16)])
def test_boundaries_are_found_one_by_one(trained: tuple[int, ...]) -> None:
    def score(boundaries: tuple[int, ...]) -> int:
        return -sum(abs(one - other) for one, other in zip(boundaries, trained, strict=True))

    stated = tuple(range(1, 1 + len(trained)))
    assert climb(score, starts(stated, 32), 32) == trained
    assert climb(lambda _: 0, starts(stated, 32), 32) == stated


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "config", "given", "cause", "words"),
    [
        ("eagle3", {"norm_output": True}, {"sample": 3}, "could-not-look: too-few", "too few to judge by"),
        ("eagle3", {"max_position_embeddings": 16}, {}, "prompts: past-positions", "begin past the drafter"),
        ("eagle3", {}, {"temperature": 1.0}, "prompts: sampling", "at temperature 1 and"),
        # a release that is known not to serve it is named without a run
        ("eagle3.1", {}, {"engine": "vllm==0.18.0"}, "engine: engine-fact", "vllm>=0.22.0"),
    ],
)
def test_what_is_not_the_drafters_is_told(
    base: str,
    config: dict[str, Any],
    given: dict[str, Any],
    cause: str,
    words: str,
    good: dict[str, Path],
    prompts: Path,
    tmp_path: Path,
) -> None:
    drafter = Misread("otherwise", "", config=config).apply(good[base], tmp_path / "drafter")
    diagnosis = diagnose(drafter, prompts, **given)
    assert f"{diagnosis.ending}: {diagnosis.cause}" == cause
    assert words in " ".join((diagnosis.words, *diagnosis.commands))


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
    target = shutil.copytree(TARGET, tmp_path / "target")
    (target / "config.json").write_text(json.dumps(changed(TARGET, hidden_size=256)))
    diagnosis = diagnose(good["eagle3"], prompts, target)
    assert (diagnosis.cause, diagnosis.ending) == ("other-target", "pair")


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
QUESTIONS = [f"How do I read the values of field {number}?" for number in range(12)]


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


@pytest.mark.parametrize(("change", "cause"), ENGINE.values(), ids=ENGINE)
def test_what_an_engine_did_ends_in_its_cause(
    change: Callable[[EngineRun], EngineRun], cause: str, healthy: Diagnosis
) -> None:
    report = reference(healthy)
    run = change(replace(report.run, engine="vllm", version=VLLM))
    engine = replace(report, run=run, measured=measure(run.results))
    assert ended(healthy, engine_name="vllm", engine=engine).cause == cause


def ended(diagnosis: Diagnosis, **changes: Any) -> Diagnosis:
    """The diagnosis with the evidence of a run changed."""
    return find_cause(CAUSES, replace(diagnosis.evidence, **changes), lambda phase, given: given, "", "")


def beside(report: Any, *lengths: float) -> Any:
    """The report beside lengths that others published of runs like it."""
    figure, source = Figure("s", "org/target", "org/other", {}), PublishedSource("s", "u", "d")
    alike = tuple(PublishedLength(one, "x", figure, source) for one in lengths)
    return replace(report, published=Published(alike))


def sets(healthy: Diagnosis, share: float) -> Any:
    """The report with a second set of prompts of which this share is accepted."""
    both = {"code": reference(healthy).measured, "poems": scaled(healthy, share).measured}
    return replace(reference(healthy), by_set=both)


def fallen(healthy: Diagnosis) -> Any:
    report = reference(healthy)
    return replace(report, probed=replace(report.probed, fall=Fall(64, 0.7, 0.3)))


def past(healthy: Diagnosis) -> Any:
    """The report with nearly all drafts past the drafter's positions."""
    report = reference(healthy)
    return replace(report, probed=replace(report.probed, left_out=1459, starts=1464))


def reading(healthy: Diagnosis) -> Any:
    """The report with a reading that drafts better."""
    report = reference(healthy)
    other = next(variant for variant in report.variants if variant.name == "norm_output true")
    better = replace(other, outcome="better", is_verified=True)
    return replace(report, probed=replace(report.probed, variants=(better,)))


def changes(healthy: Diagnosis, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Evidence in the words of TREE: runs by the share that is accepted, and lengths that others published.

    `layers` are others that draft more, by this and more, and what the search says of them.
    """
    made = dict(given)
    for name, value in given.items():
        match name, value:
            case "layers", (low, outcome):
                variant = reference(healthy).variants[0]
                found = replace(variant, ratio=Estimate(low + 0.1, low, low + 0.2), outcome=outcome)
                made[name] = replace(healthy.evidence.layers, found=found)
            case _, (share, *lengths):
                made[name] = beside(scaled(healthy, share), *lengths)
            case "reference", _:
                made[name] = value(healthy)
    return made


COMMANDS = {"validate": "v", "layers": "search", "repair": "norm"}
OPEN = (0.99, "no better")


def unproven(healthy: Diagnosis, length: float = 1.4, outcome: str = "too few prompts") -> Any:
    """The report of a dead drafter with a reading of this length that gains, and is not shown to."""
    dead = scaled(healthy, 0)
    other = next(variant for variant in dead.variants if variant.name == "norm_output true")
    measured = replace(other.measured, length=Estimate(length, length - 0.2, length + 0.2))
    gaining = replace(other, measured=measured, ratio=Estimate(length, 1.1, 2.0), outcome=outcome)
    return replace(dead, variants=(gaining,), probed=replace(dead.probed, variants=(gaining,)))


# what is changed in a healthy drafter's evidence, and the cause that it then ends in
TREE: dict[str, tuple[dict[str, Any], str]] = {
    "below others": ({"reference": (0.35, 3.0, 2.5)}, "weak"),
    "a dead figure of others": ({"reference": (0.35, 1.01)}, "healthy"),
    "nothing to judge by": ({"reference": (0.35,)}, "healthy"),
    "nothing to judge by, more": ({"reference": (0.55,)}, "healthy"),
    "below every published drafter": ({"reference": (0.12,)}, "not-found"),
    "below them, beside a dead figure": ({"reference": (0.12, 1.01)}, "not-found"),
    "below them, but as its training": ({"reference": (0.12,), "expected": 1.1}, "healthy"),
    "below them, as a figure of its target": ({"reference": (0.12, 1.06)}, "healthy"),
    "dead": ({"reference": (0,)}, "not-found"),
    "weak on a quantised target": (
        {"reference": (0.35, 2.5), "is_target_quantised": True},
        "quantised-target",
    ),
    "a base model that it fits better": ({"reference": (0.5,), "base": (1,)}, "tuned-target"),
    "a base model that it fits alike": ({"reference": (0.35, 2.5), "base": (0.35,)}, "weak"),
    "a base model that it fits worse": ({"base": (0.5,)}, "healthy"),
    "a quantised target alone": ({"is_target_quantised": True}, "healthy"),
    "sampling costs": ({"sampled": (0.4,)}, "sampling"),
    "sampling costs, seen in pairs": ({"sampled": (0.9,)}, "sampling"),
    "sampling costs nothing": ({"sampled": (1,)}, "healthy"),
    "a template helps": ({"reference": (0.35,), "templated": (1,)}, "template"),
    "a template does not help": ({"reference": (0.35, 2.5), "templated": (0.35,)}, "weak"),
    "a set that it loses on": ({"reference": lambda good: sets(good, 0.1)}, "one-set"),
    "a set that is lower": ({"reference": lambda good: sets(good, 0.5)}, "healthy"),
    "a fall at a position": ({"reference": fallen}, "past-positions"),
    "nearly all past the positions": ({"reference": past}, "past-positions"),
    "an engine that refuses it": (
        {"engine_name": "vllm", "refusals": {"engine": "KeyError"}},
        "engine-refuses",
    ),
    "an engine that does not run": ({"engine_name": "vllm", "gaps": {"engine": "vLLM died"}}, "no-engine"),
    "other layers": ({"layers": (1.05, "better"), "commands": COMMANDS}, "other-layers"),
    "layers of too few prompts": ({"layers": (1.05, "too few prompts")}, "too-few"),
    "another reading, though the search found layers": (
        {"reference": reading, "layers": (1.05, "no better"), "commands": COMMANDS},
        "other-reading",
    ),
    # what prompts show stands before what more would tell
    "layers that are open": ({"layers": OPEN, "reference": (0.35,)}, "too-few"),
    "layers that are open, and a template": (
        {"layers": OPEN, "reference": (0.35,), "templated": (1,)},
        "template",
    ),
    "layers that are open, and sampling": ({"layers": OPEN, "sampled": (0.35,)}, "sampling"),
    "layers that are open, and dead": ({"layers": OPEN, "reference": (0,)}, "too-few"),
    "dead, with a reading that may be alive": ({"reference": unproven}, "too-few"),
    "dead, with a reading that is taken for chance": (
        {"reference": lambda good: unproven(good, outcome="no better")},
        "too-few",
    ),
    "dead in every reading": ({"reference": lambda good: unproven(good, length=1.04)}, "not-found"),
    "under the expected length": ({"expected": 3.9}, "not-found"),
    "above the expected length": ({"expected": 2.0}, "healthy"),
}


@pytest.mark.parametrize(("given", "cause"), TREE.values(), ids=TREE)
def test_evidence_ends_in_its_cause(given: Mapping[str, Any], cause: str, healthy: Diagnosis) -> None:
    assert ended(healthy, **changes(healthy, given)).cause == cause


def test_a_length_below_every_published_drafter_is_no_pass(healthy: Diagnosis) -> None:
    low = ended(healthy, **changes(healthy, {"reference": (0.12,)}))
    assert low.verdict == "fail" and "below 1.28, the lowest of any published drafter" in low.words
    # nor are weights that draft so little said to draft well
    stored = Verdict("vllm", "0.33.0", ServedAs.DIFFERS, ("reads another base",))
    assert ended(low, as_stored=(stored,)).cause == "not-found"


@pytest.mark.parametrize(("length", "is_whole"), [(1.16, False), (1.27, False), (1.4, True)])
def test_a_reading_that_drafts_less_than_every_published_drafter_is_not_the_whole_cause(
    length: float, is_whole: bool, healthy: Diagnosis
) -> None:
    report = unproven(healthy, length, "better")
    (best,) = report.variants
    second = replace(best, name="heads of 16", ratio=Estimate(1.05, 1.01, 1.1))
    report = replace(report, probed=replace(report.probed, variants=(best, second)))
    low = ended(healthy, reference=report, commands=COMMANDS)
    assert low.cause == "other-reading"
    assert ("that is not all" in low.title) != is_whole
    assert ("so do the readings heads of 16; below 1.28, the lowest of any" in low.words) != is_whole


@pytest.mark.parametrize("title", ["d2t and t2d that name other tokens", "one kind of prompts"])
def test_a_title_without_acceptance_lengths_is_shown_with_that_of_the_run(
    title: str, healthy: Diagnosis
) -> None:
    assert "(acceptance length " in str(diagnosis_outline(replace(healthy, title=title)).head)
    both = ended(healthy, **changes(healthy, {"reference": reading, "commands": COMMANDS}))
    assert both.title.endswith(" read so") and str(diagnosis_outline(both).head).count("length") == 0


@pytest.mark.slow
def test_a_switch_that_few_prompts_do_not_show_ends_in_the_command_that_does(
    good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    fault = next(fault for fault in FAULTS if fault.name == FAST)
    broken = fault.apply(good[fault.base], tmp_path / "broken")
    found = diagnose(broken, prompts, sample=5)
    assert (found.cause, found.verdict) == ("too-few", "could-not-look")
    assert "norm_output false drafts better" in found.words and "use about" in found.words
    (command,) = found.commands
    assert f"--prompts {prompts} --sample " in command and f"--max-tokens {TOKENS}" in command
    done = call(*shlex.split(command)[1:])
    assert done.code == 1 and "norm_output is true and should be false" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("options", "needed", "words"),
    [
        ({"sample": 8}, 14, "diagnose D --sample 14"),
        ({"sample": 8}, 24, "diagnose D"),
        ({"run_in": "sglang"}, 60, "diagnose D --prompts MORE --sample 60 --run-in sglang"),
        ({}, 130, "diagnose D --prompts FURTHER --sample 130"),
        ({"prompts": "my.jsonl"}, 24, "diagnose D --prompts my.jsonl"),
        ({"prompts": "my.jsonl"}, 96, "diagnose D --prompts MORE"),
        ({"prompts": "my.jsonl", "sample": 8}, 24, "diagnose D --prompts my.jsonl"),
        (
            {"prompts": "my.jsonl", "max_tokens": 9},
            30,
            "diagnose D --prompts MORE --sample 30 --max-tokens 9",
        ),
    ],
)
def test_the_command_for_more_prompts_takes_those_that_are_there(
    options: dict[str, Any], needed: int, words: str
) -> None:
    looks = Looks("D", as_target("T"), eaglectl.DiagnoseOptions(**options), None)
    command = looks._with_more_prompts(needed, 24)
    for file, name in ((MORE_PROMPTS, "MORE"), (FURTHER_PROMPTS, "FURTHER")):
        command = command.replace(str(file), name)
    assert command == f"eaglectl {words} --target T"


def test_no_command_is_printed_for_more_prompts_than_any_file_here_has() -> None:
    looks = Looks("D", as_target("T"), eaglectl.DiagnoseOptions(prompts="my.jsonl"), None)
    assert looks._with_more_prompts(1000, 24) == ""


def test_a_drafter_that_engines_read_otherwise_is_not_said_to_have_nothing(
    good: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    source = tmp_path / "ids"
    shutil.copytree(good["eagle3"], source)
    config = json.loads((source / "config.json").read_text())
    # the trained layers in an order that SGLang, and vLLM's V1 runner, read as they are: one lower
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 2, 3]
    config["eagle_aux_hidden_state_layer_ids"] = [1, 3, 4]
    (source / "config.json").write_text(json.dumps(config))
    found = diagnose(source, prompts, answers=eaglectl.Answers(aux_layers=(2, 4, 5)))
    assert found.cause == "healthy" and f"run as trained; as stored, in vllm {VLLM}" in found.words
    (command,) = found.commands
    assert command.startswith("eaglectl convert ") and "--aux-layers 2,4,5" in command


def test_an_interval_that_holds_what_others_reach_is_too_few(healthy: Diagnosis) -> None:
    weak = scaled(healthy, 0.35)
    length = weak.measured.length
    reached = 0.5 * length.value / MAX_REGRESSION + 0.5 * length.high
    assert length.value < MAX_REGRESSION * reached and reached <= length.high
    assert ended(healthy, reference=beside(weak, reached)).cause == "too-few"


def test_a_run_otherwise_that_a_few_more_prompts_would_tell_is_too_few(healthy: Diagnosis) -> None:
    less = scaled(healthy, 0.4, every=8)
    for changes, words in (
        ({"sampled": less}, "at the requested temperature the acceptance length is x0.9"),
        (
            {"reference": less, "templated": reference(healthy)},
            "in the target's chat template the acceptance length is x1.0",
        ),
    ):
        found = ended(healthy, **changes)
        assert found.cause == "too-few" and found.words.startswith(words) and "use about" in found.words


def test_a_vocabulary_without_the_tokens_of_a_set_is_the_cause(healthy: Diagnosis) -> None:
    most, least = Coverage(900, 890, 3.9), Coverage(100, 40, 1.5)
    low = Coverage(1000, 930, 3.6, {"english": most, "hindi": least}, {"Devanagari": least}, commands=("x",))
    found = ended(healthy, reference=replace(reference(healthy), coverage=low))
    assert (found.cause, found.ending, found.commands) == ("draft-vocabulary", "vocabulary", ("x",))
    assert found.title == 'a draft vocabulary without the tokens of "hindi"'
    assert ended(healthy, reference=replace(reference(healthy), coverage=most)).cause == "healthy"


def test_the_command_prints_the_cause_and_the_next_command(good: dict[str, Path], tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "d2t missing")
    broken = fault.apply(good["eagle3"], tmp_path / "broken")
    done = call("diagnose", broken, "--target", TARGET, "--device", "cpu")
    assert done.code == 1
    assert done.out.startswith("fail: cause in the file: ")
    assert "EGL310 d2t-missing" in done.out
    assert "restore it from the trainer" in done.out and "next: " not in done.out  # no table is left
    document = call("diagnose", broken, "--target", TARGET, "--device", "cpu", "--json").document
    assert (document["ending"], document["cause"]) == ("file", "file-rule")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "llama.cpp"}, "--engine llama.cpp: vllm or sglang was expected"),
        ({"run_in": "llama.cpp"}, "vllm, sglang, reference or a server's URL"),
        ({"engine": "vllm", "run_in": "sglang"}, "leave one of them out"),
        ({"engine": "http://127.0.0.1:1", "run_in": "vllm"}, "pass a running server with --run-in"),
        ({"engine": "vlm"}, "--engine vlm"),
        ({"expected": 5.0}, "--expected 5"),
        ({"expected": 1.0}, "--expected 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str, prompts: Path) -> None:
    with pytest.raises(UsageError, match=words):
        diagnose(TINY / "eagle3", prompts, **options)
