"""The prompts of the real pair: sets apart, of four kinds, as prompts.py deals them."""

import json
from pathlib import Path
from typing import Any

import pytest

from eaglectl.run.prompts import read_prompts
from tests.real.conftest import REAL
from tests.real.counting import EIGHT, FOUR, SHORT, accounted, accounting, tool

SIZES = {"calibration": 100, "gate": 60, "test": 40}
KINDS = {"code", "maths", "chat", "writing"}


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (REAL / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", SIZES)
def test_a_set_has_every_kind_and_chats_of_two_turns(name: str) -> None:
    found = read_prompts(REAL / f"{name}.jsonl")
    assert len(found) == SIZES[name]
    assert {prompt.set for prompt in found} == KINDS
    turns = [message["role"] for prompt in found for message in prompt.messages]
    assert turns.count("assistant") > 8 and turns.count("system") >= 3


def test_no_prompt_is_in_two_sets_nor_trained_on() -> None:
    dealt = tool("prompts").deal()
    trained = {json.dumps(line["messages"][-1]) for line in dealt["train"]}
    first = {name: {json.dumps(line["messages"][-1]) for line in dealt[name]} for name in SIZES}
    assert all(not found & trained for found in first.values())
    assert sum(map(len, first.values())) == len(set().union(*first.values()))


def test_the_files_are_what_is_dealt() -> None:
    for name, dealt in tool("prompts").deal().items():
        if name == "train":
            continue
        for line, made in zip(lines(name), dealt, strict=True):
            assert line["set"] == made["set"]
            assert line["messages"][: len(made["messages"])] == made["messages"]
            if "then" in made:
                assert line["messages"][-1]["content"] == made["then"]


@pytest.mark.parametrize("chats", [EIGHT, FOUR])
def test_the_chats_that_engines_run_are_of_every_kind(chats: tuple[int, ...]) -> None:
    found = [lines("test")[chat] for chat in chats]
    assert {line["set"] for line in found} == KINDS
    roles = [[message["role"] for message in line["messages"]] for line in found]
    assert ["system", "user"] in roles and ["user", "assistant", "user"] in roles


@pytest.mark.slow
def test_an_answer_of_theirs_ends_by_the_end_of_sequence_and_others_by_the_limit(real_target: Path) -> None:
    counts = accounted("specforge", real_target, 3, FOUR, SHORT)
    answers = counts.tokens
    recorded = json.loads((REAL / "engines.json").read_text())[0]
    assert recorded["counts"] == [counts.drafts, *counts.accepted]
    assert {tokens[-1] == accounting().END for tokens in answers} == {True, False}
    assert max(map(len, answers)) == SHORT


@pytest.mark.parametrize("drafter", ["specforge", "speculators"])
def test_the_reference_and_vllm_counted_the_same_on_all_chats(drafter: str) -> None:
    rows = json.loads((REAL / "acceptance.json").read_text())
    counts = {
        (row["engine"], row["k"]): (row["drafts"], row["accepted"])
        for row in rows
        if row["drafter"] == drafter
    }
    assert {("reference", 3), ("reference", 5), ("vllm 0.32.0", 3)} <= counts.keys()
    assert counts["reference", 3] == counts["vllm 0.32.0", 3]


def test_every_fault_ends_in_its_own_ending_and_healthy_drafters_in_healthy() -> None:
    rows = json.loads((REAL / "diagnoses.json").read_text())
    healthy = {row["drafter"] for row in rows if (row["case"], row["cause"]) == ("none", "healthy")}
    assert healthy == {"specforge", "speculators"}
    assert [row["case"] for row in rows if not row["is_right"]] == []
