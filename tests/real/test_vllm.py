"""The real pair in vLLM itself: it counts what the accounting counts, and says what the target says alone."""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.engine import pairs
from tests.engine.children import run_child
from tests.engine.runners import use_runner
from tests.engine.servers import running_vllm
from tests.real.conftest import REAL
from tests.real.counting import (
    EIGHT,
    FOUR,
    NEW,
    SHORT,
    accounted,
    accounted_counts,
    accounting,
    counted,
    few_prompts,
    smoke,
    texts,
)

K, PATIENCE = 3, 900.0
RUN = {"k": K, "timeout": PATIENCE}
RESOLVED = {
    "specforge": {"aux_layers": [2, 15, 27], "norm_output": False, "norm_before_fc": False},
    "speculators": {"aux_layers": [6, 18, 28], "norm_output": True, "norm_before_fc": True},
}
WARM = 0.7
DEVIATIONS = 3.0  # of the difference of two acceptance lengths that are drawn apart


@pytest.fixture(scope="module")
def specforge(real_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "specforge"
    eaglectl.convert(REAL / "specforge", folder, target=str(real_target))
    return folder


# Triton's interpreter, which runs V2, is slow
@pytest.mark.parametrize(("runner", "chats", "new"), [("V1", EIGHT, NEW), ("V2", FOUR, SHORT)])
@pytest.mark.parametrize("name", RESOLVED)
def test_vllm_counts_what_the_accounting_counts(
    name: str,
    runner: str,
    chats: tuple[int, ...],
    new: int,
    real_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_runner(monkeypatch, runner)
    settings = {"max_tokens": new, "lossless": runner == "V1", **RUN}
    report = smoke(REAL / name, real_target, few_prompts(tmp_path, chats), "vllm", **settings)
    expected = accounted(name, real_target, K, chats, new)
    assert counted(report) == [expected.drafts, *expected.accepted]
    meant = RESOLVED[name] | {"runner": f"{runner} (CPUModelRunner)"}
    assert report.run.resolved.items() >= meant.items()
    if runner == "V1":
        assert report.is_lossless
    else:
        assert [list(result.tokens) for result in report.run.results] == expected.tokens


def test_a_server_counts_what_the_accounting_counts(
    specforge: Path, real_target: Path, tmp_path: Path
) -> None:
    # longer than that of the tiny pair
    room = ("--max-model-len", "512", "--max-num-batched-tokens", "512")
    with running_vllm(real_target, specforge, tmp_path / "server.log", PATIENCE, *room) as url:
        report = smoke(specforge, real_target, few_prompts(tmp_path, FOUR), url, max_tokens=SHORT, **RUN)
    assert counted(report) == accounted_counts("specforge", real_target, K, FOUR, SHORT)


def test_at_a_temperature_it_accepts_as_much_as_the_reference(
    specforge: Path, real_target: Path, tmp_path: Path
) -> None:
    answer = at_temperature(specforge, real_target, tmp_path)
    settings = {"max_tokens": NEW, "temperature": WARM, **RUN}
    report = smoke(specforge, real_target, few_prompts(tmp_path), "reference", **settings)
    (ours, our_error), (theirs, their_error) = (
        length_and_error(counts) for counts in (counted(report), summed(answer))
    )
    assert abs(ours - theirs) <= DEVIATIONS * (our_error**2 + their_error**2) ** 0.5
    assert theirs > 1.2  # 1.0 where the temperature is lost


def summed(answer: dict[str, Any]) -> list[int]:
    """Rounds of all prompts, and how many had each position accepted."""
    rows = [[result["drafts"], *result["accepted"]] for result in answer["results"]]
    return [sum(column) for column in zip(*rows, strict=True)]


def length_and_error(counts: list[int]) -> tuple[float, float]:
    """The acceptance length and its standard error over rounds."""
    rounds, *taken = counts
    mean = sum(taken) / rounds
    square = sum((2 * place + 1) * count for place, count in enumerate(taken)) / rounds
    return 1 + mean, ((square - mean**2) / rounds) ** 0.5


def at_temperature(drafter: Path, target: Path, folder: Path) -> dict[str, Any]:
    """What vLLM drafts of eight chats, with the temperature that its CPU build loses (vllm_child.py)."""
    asked = {"mode": "generate", "prompts": texts(target, EIGHT), "stop": [accounting().END]}
    asked |= {"max_tokens": NEW, "temperature": WARM, "context": None, "ignore_eos": False}
    files = (folder / "request.json", folder / "answer.json")
    files[0].write_text(json.dumps(pairs.request_of(target, drafter, K, **asked)))
    run_child("tests.real.vllm_child", *files, patience=PATIENCE, log=folder / "log")
    answer: dict[str, Any] = json.loads(files[1].read_text())
    return answer
