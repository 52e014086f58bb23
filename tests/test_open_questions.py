"""What a file leaves open is measured where its target runs here; else it is asked, and never guessed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

pytest.importorskip("transformers")

from eaglectl.api.convert import measured_questions
from eaglectl.api.options import MeasureOptions
from eaglectl.drafter.drafter import Choice, question
from eaglectl.formats.format import Answers
from eaglectl.run.answering import MeasuredAnswer, compare_choices
from eaglectl.run.measurement import PromptResult
from eaglectl.run.probes import Drafts
from eaglectl.target.choice import as_target
from tests.builders import Outcome, call, changed, read_safetensors, write_safetensors
from tests.conftest import FIXTURES
from tests.open_facts import OPEN_FACTS, TINY_31, UNTRAINED, OpenFact
from tests.pairs import write_prompts

FACTS = {fact.key: fact for fact in OPEN_FACTS}
LAYERS = FACTS["second/eagle3: layers, ModelOpt"]
BASE = FACTS["second/eagle3: base stated, not trained, AngelSlim"]
YARN = FACTS["second/eagle3: yarn stated, not trained, ModelOpt"]
PAGE = FIXTURES.parent / "benchmarks/README.md"
NEAR = 0.03  # of ratios on another machine


def given(
    fact: OpenFact, folder: Path, *, prompts: int | None = None, target: Path | None = None
) -> list[str]:
    """Options that run a drafter's own target on its prompts."""
    path = write_prompts(folder / "prompts.jsonl", fact.texts()[:prompts])
    return ["--target", str(target or fact.trained.target), "--prompts", str(path), "--device", "cpu"]


def converted(fact: OpenFact, folder: Path, *options: str, **run: Any) -> Outcome:
    source = fact.write(folder / "source")
    return call("convert", source, "-o", folder / "out", *given(fact, folder, **run), *options)


def table_rows() -> dict[str, list[str]]:
    """The cells of the page's table, by drafter and what its file leaves open."""
    section = PAGE.read_text().partition("### What measuring answers")[2].partition("###")[0]
    lines = [line for line in section.splitlines() if line.startswith(("| tiny/", "| second/"))]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {f"{row[0]}: {row[1]}": row[2:] for row in rows}


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(fact, id=key, marks=[] if fact in (LAYERS, BASE) else [pytest.mark.slow])
        for key, fact in FACTS.items()
    ],
)
def test_the_answer_is_that_of_training_by_the_ratio_of_the_page(fact: OpenFact, tmp_path: Path) -> None:
    prompts, _, ratio, *_ = table_rows()[fact.key]
    source = fact.write(tmp_path / "source")
    questions = fact.measured(source, write_prompts(tmp_path / "prompts.jsonl", fact.texts()))
    choices = {str(answer.choice) for answer in questions.measured if answer.choice is not None}
    assert choices == set(fact.answers)
    assert int(prompts) == fact.prompts
    nearest = min(answer.ratio.value for answer in questions.measured)
    assert nearest == pytest.approx(float(ratio), abs=NEAR)


@pytest.mark.slow
def test_a_switch_that_two_places_state_otherwise_is_measured(tmp_path: Path) -> None:
    """Acceptance lengths of 3.74 with true and 2.02 with false; it is trained with true."""
    answer = "--source-semantics norm_output=true"
    nested = {"eagle_config.norm_output": False}
    fact = OpenFact("norm_output stated twice", TINY_31, "vllm", (answer,), nested)
    source = fact.write(tmp_path / "source")
    (measured,) = fact.measured(source, write_prompts(tmp_path / "prompts.jsonl", fact.texts())).measured
    assert str(measured.choice) == answer and measured.ratio.value == pytest.approx(1.85, abs=NEAR)


def test_the_page_has_every_open_fact_and_no_tie() -> None:
    rows = table_rows()
    assert rows.keys() == FACTS.keys()
    assert {row[1] for row in rows.values()} == {"right"}


@pytest.mark.fast(1)
@pytest.mark.parametrize("fact", [LAYERS, BASE], ids=lambda fact: fact.name)
def test_convert_writes_the_measured_answer_with_its_evidence(fact: OpenFact, tmp_path: Path) -> None:
    outcome = converted(fact, tmp_path)
    assert outcome.code == 0, outcome.err
    (answer,) = fact.answers
    assert "measured: acceptance length" in outcome.out
    assert f"with {answer} and" in outcome.out
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    (entry,) = record["measured"]
    assert (entry["answer"], entry["outcome"]) == (answer, "measured")
    assert entry["interval"][0] > 1
    assert entry["readings"][0]["option"] == answer
    assert (entry["prompts"]["name"], entry["prompts"]["count"]) == ("prompts.jsonl", fact.prompts)
    assert len(entry["prompts"]["sha256"]) == 64
    (settled,) = record["settled"]
    assert settled["by"] == "measured"
    inspected = call("inspect", "-v", tmp_path / "out", "--target", fact.trained.target)
    assert f"{answer} measured (acceptance length" in " ".join(inspected.out.split())
    assert inspected.code == 0
    assert "Measured: " in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(
    ("act", "option", "words"),
    [
        ("silu", "--no-measure", "rope=10000"),
        ("gelu", "--force-unserved", "not measured: hidden_act is 'gelu', and the reference has SiLU only"),
    ],
)
def test_what_is_not_measured_is_asked(act: str, option: str, words: str, tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    (source / "config.json").write_text(json.dumps(changed(source, hidden_act=act)))
    target = ["--target", BASE.trained.target]
    run = target if option == "--no-measure" else given(BASE, tmp_path)
    outcome = call("convert", source, "-o", tmp_path / "out", *run, option)
    assert outcome.code == 2 and words in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_target_without_weights_is_asked_for_them(tmp_path: Path) -> None:
    (target := tmp_path / "target").mkdir()
    shutil.copy(BASE.trained.target / "config.json", target)
    outcome = converted(BASE, tmp_path, target=target)
    assert outcome.code == 2 and "rope=10000" in outcome.err
    assert "pass --target with the target's weights to measure it" in outcome.err


def test_an_error_that_measuring_does_not_answer_does_not_speak_of_measuring(tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    options = ["--for", "speculators", "--assume-defaults", "-o", tmp_path / "out"]
    outcome = call("convert", source, *options)
    assert outcome.code == 2
    *notices, error = outcome.err.splitlines()
    assert "pass --target-name org/name" in error
    assert "measure" not in error
    assert "assuming the usual values; pass --target with the target's weights to measure it" in notices[0]


def test_a_tie_is_asked_with_the_number_of_prompts_that_would_tell(tmp_path: Path) -> None:
    outcome = converted(YARN, tmp_path, prompts=8)
    assert outcome.code == 2
    assert "measured: a tie, acceptance length" in outcome.err
    assert "; pass --prompts FILE with about " in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_tie_of_the_built_in_prompts_is_run_again_with_more_of_them(tmp_path: Path) -> None:
    source, stages = BASE.write(tmp_path / "source"), []
    options = MeasureOptions(device="cpu", max_tokens=BASE.trained.tokens)
    target = as_target(BASE.trained.target)
    found = measured_questions(
        str(source), target, Answers(), options, lambda step: stages.append(step.stage)
    )
    assert "a tie after 24 prompts, running 120" in stages
    assert [str(answer.choice) for answer in found.measured] == ["--source-semantics rope=10000"]
    assert found.record["measured"][0]["prompts"]["count"] == 120


@pytest.mark.slow
def test_layers_of_which_the_target_allows_one_set_are_asked(tmp_path: Path) -> None:
    target = shutil.copytree(LAYERS.trained.target, tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    two = {"num_hidden_layers": 2, "layer_types": config["layer_types"][:2]}
    (target / "config.json").write_text(json.dumps(config | two))
    weights = target / "model.safetensors"
    gone = tuple(f"model.layers.{layer}." for layer in range(2, config["num_hidden_layers"]))
    kept = {name: row for name, row in read_safetensors(weights).items() if not name.startswith(gone)}
    write_safetensors(weights, kept)
    outcome = converted(LAYERS, tmp_path, prompts=16, target=target)
    assert outcome.code == 2, outcome.err
    assert "--aux-layers" in outcome.err and "measured" not in outcome.err


@pytest.mark.slow
def test_an_untrained_drafter_has_no_answer(tmp_path: Path) -> None:
    outcome = converted(UNTRAINED, tmp_path)
    assert outcome.code == 2
    assert "no draft token is accepted with any choice" in outcome.err


def test_a_wrong_answer_of_the_user_is_taken_as_given(tmp_path: Path) -> None:
    outcome = converted(BASE, tmp_path, "--source-semantics", "rope=stored")
    assert outcome.code == 0, outcome.err
    assert "measured" not in outcome.out
    assert json.loads((tmp_path / "out/config.json").read_text())["rope_theta"] == 1e6
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    assert "measured" not in record
    assert [entry["by"] for entry in record["settled"]] == ["given"]


@pytest.mark.slow
def test_calibrate_measures_and_prints_the_answer_in_its_next_command(tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    outcome = call("calibrate", source, "-o", tmp_path / "statistics", *given(BASE, tmp_path))
    assert outcome.code == 0, outcome.err
    assert "rope_theta, measured: acceptance length" in outcome.out
    assert "--source-semantics rope=10000" in outcome.out.splitlines()[-1]
    statistics = json.loads((tmp_path / "statistics/statistics.json").read_text())
    assert statistics["engine"]["name"] == "transformers"
    (entry,) = statistics["measured"]
    assert entry["answer"] == "--source-semantics rope=10000"


FIRST, SECOND_CHOICE = (Choice("--source-semantics", f"rope={base}") for base in (1, 2))
NOTE = question("rope_theta", "why", "rope-base-doubt", (FIRST, SECOND_CHOICE))
# the leading matches of each text
WON = [[3, 2 + text % 2, 3, 2] for text in range(12)]
LOST = [[1, 1 + text % 3, 0, 1] for text in range(12)]


def judged(first: list[list[int]], second: list[list[int]]) -> MeasuredAnswer:
    drafts = [
        Drafts(tuple(map(np.array, matches)), tuple(PromptResult("p", 1, (0, 0, 0), ()) for _ in matches))
        for matches in (first, second)
    ]
    return compare_choices(NOTE, dict(zip((FIRST, SECOND_CHOICE), drafts, strict=True)), 3)


def test_the_same_drafts_are_a_tie_that_no_number_of_prompts_breaks() -> None:
    answer = judged(WON, WON)
    assert (answer.outcome, answer.choice, answer.prompts_needed) == ("tie", None, None)
    assert "they draft alike on these" in answer.text


def test_fewer_than_eight_prompts_are_no_answer() -> None:
    assert str(judged(WON[:8], LOST[:8]).choice) == str(FIRST)
    assert judged(WON[:7], LOST[:7]).choice is None
