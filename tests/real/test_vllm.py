"""The real pair in vLLM itself: it counts what the accounting counts, and says what the target says alone."""

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.operations.converting import ConvertOptions
from eaglectl.run.report import SmokeReport
from tests.engine.runners import use_runner
from tests.engine.servers import running
from tests.engine.test_serve import SETTINGS
from tests.real.conftest import REAL, ROOT
from tests.real.counting import EIGHT, FOUR, NEW, SHORT, accounted, accounting, few_prompts, texts

K, PATIENCE = 3, 900.0
RESOLVED = {
    "specforge": {"aux_layers": [2, 15, 27], "norm_output": False, "norm_before_fc": False},
    "speculators": {"aux_layers": [6, 18, 28], "norm_output": True, "norm_before_fc": True},
}
WARM = 0.7
DEVIATIONS = 3.0  # of the difference of two acceptance lengths that are drawn apart


@pytest.fixture(scope="module")
def drafters(real_target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vllm")
    for name in RESOLVED:
        eaglectl.convert(str(REAL / name), root / name, ConvertOptions(target=str(real_target)))
    return {name: root / name for name in RESOLVED}


@pytest.mark.parametrize("name", RESOLVED)
def test_vllm_counts_what_the_accounting_counts(name: str, real_target: Path, tmp_path: Path) -> None:
    report = smoke(REAL / name, real_target, few_prompts(tmp_path), NEW, "vllm")
    assert counted(report) == accounted_counts(name, real_target, EIGHT, NEW)
    assert report.is_lossless
    assert report.run.resolved.items() >= RESOLVED[name].items()


@pytest.mark.parametrize("name", RESOLVED)
def test_the_v2_runner_counts_what_the_accounting_counts(
    name: str, drafters: dict[str, Path], real_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_runner(monkeypatch, "V2")
    report = smoke(drafters[name], real_target, few_prompts(tmp_path, FOUR), SHORT, "vllm", lossless=False)
    assert report.run.resolved["runner"] == "V2 (CPUModelRunner)"
    assert counted(report) == accounted_counts(name, real_target, FOUR, SHORT)
    expected = accounted(name, real_target, K, FOUR, SHORT)
    assert [list(result.tokens) for result in report.run.results] == expected.tokens


def test_a_server_counts_what_the_accounting_counts(
    drafters: dict[str, Path], real_target: Path, tmp_path: Path
) -> None:
    with served(drafters["specforge"], real_target, tmp_path / "server.log") as url:
        report = smoke(drafters["specforge"], real_target, few_prompts(tmp_path, FOUR), SHORT, url)
    assert counted(report) == accounted_counts("specforge", real_target, FOUR, SHORT)


def test_at_a_temperature_it_accepts_as_much_as_the_reference(
    drafters: dict[str, Path], real_target: Path, tmp_path: Path
) -> None:
    answer = at_temperature(drafters["specforge"], real_target, EIGHT, NEW, WARM, tmp_path)
    report = smoke(
        drafters["specforge"], real_target, few_prompts(tmp_path), NEW, "reference", temperature=WARM
    )
    (ours, our_error), (theirs, their_error) = (
        length_and_error(counts) for counts in (counted(report), summed(answer))
    )

    assert abs(ours - theirs) <= DEVIATIONS * (our_error**2 + their_error**2) ** 0.5
    assert theirs > 1.2  # 1.0 where the temperature is lost


def smoke(drafter: Path, target: Path, prompts: Path, new: int, engine: str, **more: Any) -> SmokeReport:
    options = eaglectl.SmokeOptions(
        run_in=engine, device="cpu", prompts=prompts, max_tokens=new, k=K, timeout=PATIENCE, **more
    )
    return eaglectl.smoke(str(drafter), str(target), options)


def counted(report: SmokeReport) -> list[int]:
    """Rounds, and how many had each position accepted."""
    measured = report.measured
    return [measured.drafts, *(round(share.value * measured.drafts) for share in measured.per_position)]


def accounted_counts(name: str, target: Path, chats: tuple[int, ...], new: int) -> list[int]:
    counts = accounted(name, target, K, chats, new)
    return [counts.drafts, *counts.accepted]


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


def at_temperature(
    drafter: Path,
    target: Path,
    chats: tuple[int, ...],
    new: int,
    temperature: float,
    folder: Path,
) -> dict[str, Any]:
    """What vLLM drafts of these chats, with the temperature that its CPU build loses (vllm_child.py)."""
    request = {
        "mode": "generate",
        "target": str(target),
        "drafter": str(drafter),
        "prompts": texts(target, chats),
        "stop": [accounting().END],
        "k": K,
        "max_tokens": new,
        "temperature": temperature,
        "seed": 0,
        "context": None,
        "device": "cpu",
        "ignore_eos": False,
        "is_mla": False,
        "is_mla_target": False,
        "needs_tokenizer": False,
    }
    (folder / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "tests.real.vllm_child", folder / "request.json", folder / "answer.json"]
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def served(drafter: Path, target: Path, log: Path) -> AbstractContextManager[str]:
    """The address of a vLLM server with the pair."""
    speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": K}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(target)]
    # longer than that of the tiny pair
    command += [*SETTINGS, "--max-model-len", "512", "--max-num-batched-tokens", "512"]
    command += ["--speculative-config", json.dumps(speculation)]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    return running(command, log, PATIENCE, environment)
