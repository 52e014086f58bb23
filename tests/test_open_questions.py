"""What a file leaves open is measured where its target runs here; else it is asked, and never guessed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from eaglectl.drafter.drafter import Choice, question  # noqa: E402
from eaglectl.formats.format import Answers  # noqa: E402
from eaglectl.operations.open_questions import measured_questions  # noqa: E402
from eaglectl.operations.options import MeasureOptions  # noqa: E402
from eaglectl.run.answering import MeasuredAnswer, _judged, is_measurable  # noqa: E402
from eaglectl.run.measurement import PromptResult  # noqa: E402
from eaglectl.run.probes import Drafts  # noqa: E402
from eaglectl.run.prompts import (  # noqa: E402
    choose_prompts,
    more_prompts,
)
from tests.builders import Outcome, call, read_safetensors, write_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.open_facts import OPEN_FACTS, TINY_31, UNTRAINED, OpenFact  # noqa: E402
from tests.pairs import write_prompts  # noqa: E402

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


# ------------------------------------------------------------------------------------------- trained pairs


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


def test_what_was_measured_is_written(tmp_path: Path) -> None:
    assert converted(BASE, tmp_path).code == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["rope_theta"] == 10000


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_without_measuring_it_is_asked(fact: OpenFact, tmp_path: Path) -> None:
    source = fact.write(tmp_path / "source")
    outcome = call("convert", source, "-o", tmp_path / "out", "--target", fact.trained.target, "--no-measure")
    assert outcome.code == 2
    assert not (tmp_path / "out").exists()


def test_a_target_without_weights_is_asked_for_them(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    shutil.copy(BASE.trained.target / "config.json", target)
    outcome = converted(BASE, tmp_path, target=target)
    assert outcome.code == 2
    assert "rope=10000" in outcome.err
    assert "--target with the target's weights would measure it" in outcome.err


def test_without_a_target_it_is_asked_for(tmp_path: Path) -> None:
    outcome = call("convert", BASE.write(tmp_path / "source"), "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "--target with the target's weights would measure it" in outcome.err


def test_an_error_that_measuring_does_not_answer_does_not_speak_of_measuring(tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    options = ["--for", "speculators", "--assume-defaults", "-o", tmp_path / "out"]
    outcome = call("convert", source, *options)
    assert outcome.code == 2
    *notices, error = outcome.err.splitlines()
    assert "pass --target-name org/name" in error
    assert "measure" not in error
    assert "usual values are assumed; --target with the target's weights would measure it" in notices[0]


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
    target = str(BASE.trained.target)
    found = measured_questions(
        str(source), target, Answers(), options, lambda step: stages.append(step.stage)
    )
    assert "24 prompts leave a tie, running 120" in stages
    assert [str(answer.choice) for answer in found.measured] == ["--source-semantics rope=10000"]
    assert found.record["measured"][0]["prompts"]["count"] == 120


def test_a_tie_that_more_built_in_prompts_do_not_break_is_left_one_and_recorded(tmp_path: Path) -> None:
    source = YARN.write(tmp_path / "source")
    options = MeasureOptions(device="cpu", max_tokens=YARN.trained.tokens)
    found = measured_questions(str(source), str(YARN.trained.target), Answers(), options)
    (answer,) = found.measured
    assert answer.choice is None and (answer.prompts_needed or 0) > 120
    (entry,) = found.record["measured"]
    assert (entry["answer"], entry["outcome"], entry["prompts"]["count"]) == (None, "tie", 24)


def test_prompts_of_the_user_are_not_added_to(tmp_path: Path) -> None:
    outcome = converted(BASE, tmp_path, prompts=8)
    assert outcome.code == 0 or "8 prompts" in outcome.err
    assert "120" not in outcome.err


def test_further_built_in_prompts_are_others_of_the_same_kinds() -> None:
    first, more = choose_prompts(None).prompts, more_prompts()
    assert (len(first), len(more)) == (24, 96)
    assert len({prompt.text for prompt in first + more}) == 120
    assert {prompt.set for prompt in more} == {prompt.set for prompt in first}
    assert all(prompt.is_chat == (prompt.set == "chat") for prompt in more)


def test_layers_need_prompts_that_choose_and_others_that_judge(tmp_path: Path) -> None:
    outcome = converted(LAYERS, tmp_path, prompts=15)
    assert outcome.code == 2
    assert "not measured: 15 prompts are too few to tell by; 16 or more can" in outcome.err


def test_layers_of_which_the_target_allows_one_set_are_asked(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(LAYERS.trained.target, target)
    config = json.loads((target / "config.json").read_text())
    two = {"num_hidden_layers": 2, "layer_types": config["layer_types"][:2]}
    (target / "config.json").write_text(json.dumps(config | two))
    weights = target / "model.safetensors"
    tensors = read_safetensors(weights)
    gone = tuple(f"model.layers.{layer}." for layer in range(2, config["num_hidden_layers"]))
    write_safetensors(weights, {name: row for name, row in tensors.items() if not name.startswith(gone)})
    outcome = converted(LAYERS, tmp_path, prompts=16, target=target)
    assert outcome.code == 2, outcome.err
    assert "--aux-layers" in outcome.err
    assert "measured" not in outcome.err


def test_a_drafter_of_another_activation_is_asked(tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    options = ["-o", tmp_path / "out", *given(BASE, tmp_path)]
    outcome = call("convert", source, *options, "--force-unserved")
    assert outcome.code == 2, outcome.err
    assert "not measured: hidden_act is 'gelu', and drafters are run with SiLU alone here" in outcome.err


def test_an_untrained_drafter_has_no_answer(tmp_path: Path) -> None:
    outcome = converted(UNTRAINED, tmp_path)
    assert outcome.code == 2
    assert "nothing is drafted whichever is taken" in outcome.err


def test_a_wrong_answer_of_the_user_is_taken_as_given(tmp_path: Path) -> None:
    outcome = converted(BASE, tmp_path, "--source-semantics", "rope=stored")
    assert outcome.code == 0, outcome.err
    assert "measured" not in outcome.out
    assert json.loads((tmp_path / "out/config.json").read_text())["rope_theta"] == 1e6
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    assert "measured" not in record
    assert [entry["by"] for entry in record["settled"]] == ["given"]


@pytest.mark.slow
def test_an_answer_to_one_question_leaves_the_other_to_be_measured(tmp_path: Path) -> None:
    fact = FACTS["second/eagle3: layers and yarn, ModelOpt"]
    outcome = converted(fact, tmp_path, "--source-semantics", "rope=plain")
    assert outcome.code == 0, outcome.err
    assert "with --aux-layers 1,3,5 and" in outcome.out
    assert "rope_scaling, measured" not in outcome.out


def test_a_run_that_is_switched_off_takes_no_prompts(tmp_path: Path) -> None:
    outcome = converted(BASE, tmp_path, "--no-measure")
    assert outcome.code == 2
    assert "--no-measure switches off" in outcome.err


# ----------------------------------------------------------------------------------------- other commands


def test_calibrate_measures_and_prints_the_answer_in_its_next_command(tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    outcome = call("calibrate", source, "-o", tmp_path / "statistics", *given(BASE, tmp_path))
    assert outcome.code == 0, outcome.err
    assert "rope_theta, measured: acceptance length" in outcome.out
    assert "--source-semantics rope=10000" in outcome.out.splitlines()[-1]
    (entry,) = json.loads((tmp_path / "statistics/statistics.json").read_text())["measured"]
    assert entry["answer"] == "--source-semantics rope=10000"


def test_calibrate_asks_where_it_does_not_measure(tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    options = given(BASE, tmp_path)
    assert call("calibrate", source, "-o", tmp_path / "s", *options, "--no-measure").code == 2


@pytest.mark.slow
def test_diagnose_measures_before_it_looks(tmp_path: Path) -> None:
    source = BASE.write(tmp_path / "source")
    outcome = call("diagnose", source, *given(BASE, tmp_path), "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, document["ending"]) == (0, "healthy")
    assert [entry["answer"] for entry in document["measured"]] == ["--source-semantics rope=10000"]


# ------------------------------------------------------------------------------------------- the judgement

FIRST, SECOND_CHOICE, THIRD = (Choice("--source-semantics", f"rope={base}") for base in (1, 2, 3))
NOTE = question("rope_theta", "why", "rope-base-doubt", (FIRST, SECOND_CHOICE))


def drafts(*matches: list[int], k: int = 3) -> Drafts:
    """Drafts of texts by their leading matches."""
    results = (PromptResult("p", 1, (0,) * k, ()) for _ in matches)
    return Drafts(tuple(np.array(row) for row in matches), tuple(results))


def judged(*others: Drafts, best: Drafts) -> MeasuredAnswer:
    named = dict(zip((SECOND_CHOICE, THIRD), others, strict=False))
    return _judged(NOTE, {FIRST: best, **named}, 3)


WON = drafts(*([3, 2 + text % 2, 3, 2] for text in range(12)))
LOST = drafts(*([1, 1 + text % 3, 0, 1] for text in range(12)))


def test_a_gain_beyond_chance_is_an_answer() -> None:
    answer = judged(LOST, best=WON)
    assert (answer.outcome, answer.choice, answer.prompts_needed) == ("measured", FIRST, None)
    assert answer.ratio.low > 1


def test_the_same_drafts_are_a_tie_that_no_number_of_prompts_breaks() -> None:
    answer = judged(WON, best=WON)
    assert (answer.outcome, answer.choice, answer.prompts_needed) == ("tie", None, None)
    assert "they draft alike on these" in answer.text


def test_one_rival_that_is_as_good_makes_a_tie() -> None:
    assert judged(LOST, WON, best=WON).choice is None


def test_fewer_than_eight_prompts_are_no_answer() -> None:
    few = [Drafts(run.matches[:7], run.results[:7]) for run in (LOST, WON)]
    assert judged(few[0], best=few[1]).choice is None


def test_drafts_that_are_never_right_are_no_answer() -> None:
    rare = drafts(*([1] + [0] * 99 for _ in range(12)))
    none = drafts(*([0] * 100 for _ in range(12)))
    assert judged(none, best=rare).outcome == "nothing drafted"


def test_a_noisy_gain_says_how_many_prompts_would_tell() -> None:
    noisy = drafts(*([2 + (text % 3 > 0), 1, 3 * (text % 2), 2] for text in range(12)))
    steady = drafts(*([2, 1, 1 + text % 3, 2 - text % 2] for text in range(12)))
    answer = judged(steady, best=noisy)
    assert answer.outcome == "tie"
    assert answer.prompts_needed is not None
    assert answer.prompts_needed > 12
    assert answer.text.endswith(f"; pass --prompts FILE with about {answer.prompts_needed} prompts")


def test_only_questions_with_two_whole_choices_or_of_layers_are_measurable() -> None:
    free = Choice("--source-semantics", "mask_token_id=N", is_free=True)
    layers = Choice("--aux-layers", is_free=True)
    assert is_measurable(NOTE)
    assert is_measurable(question("aux layers", "why", "aux-ids-doubted", (layers,)))
    assert not is_measurable(question("mask_token_id", "why", "mask-token", (free,)))
