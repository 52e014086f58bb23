"""The sensitivity probe on the trained pair: a fault is named or told, and the printed command mends it."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from eaglectl import api  # noqa: E402
from eaglectl.acceptance.report import SmokeReport  # noqa: E402
from eaglectl.api.converting import ConvertOptions  # noqa: E402
from tests.builders import call, read_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.stored_otherwise import Misread, faults_of  # noqa: E402
from tests.tiny import TARGET  # noqa: E402

TINY = FIXTURES / "tiny"
LONGEST = 160  # characters of a prompt
PROMPTS, TOKENS = 12, 20
# the one that the fast tests run
FAST = "gate and up"
# these prompts may be too few for them
WEAK = ("rotary rows as pairs", "rotary rows in halves twice", "two norms", "rope base 10000")


def prompts_file(folder: Path, name: str = "prompts", start: int = 0, count: int = PROMPTS) -> Path:
    """Prompts of the tiny pair, cut, as a file."""
    lines = (TINY / f"{name}.jsonl").read_text().splitlines()[start : start + count]
    texts = [json.loads(line)["prompt"].strip()[:LONGEST] for line in lines]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The EAGLE-3 drafter in vLLM's layout."""
    folder = tmp_path_factory.mktemp("good") / "eagle3"
    api.convert(str(TINY / "eagle3"), folder, ConvertOptions(target=str(TARGET)))
    return folder


def probe(drafter: Path, prompts: Path, **given: Any) -> SmokeReport:
    settings = {"engine": "reference", "device": "cpu", "max_tokens": TOKENS, "probe": "sensitivity", **given}
    return api.smoke(str(drafter), str(TARGET), api.SmokeOptions(prompts=prompts, **settings))


def printed_command(report: SmokeReport) -> list[str]:
    """What the failure says to run, without the program's name."""
    (failure,) = (text for text in report.failures if "drafts better read with" in text)
    program, *arguments = shlex.split(failure.rpartition("measure again: ")[2])
    assert program == "eaglectl"
    return arguments


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[] if fault.name == FAST else [pytest.mark.slow])
        for fault in faults_of("tiny")
    ],
)
def test_a_fault_is_named_and_the_printed_command_mends_it(
    fault: Misread, good: Path, tmp_path: Path
) -> None:
    prompts = prompts_file(tmp_path)
    report = probe(fault.apply(good, tmp_path / "broken"), prompts)
    if fault.name in WEAK and not report.failures:
        (variant,) = (variant for variant in report.variants if variant.option == fault.option)
        assert variant.outcome == "too few prompts"
        assert any(note.startswith(variant.name) for note in report.notes)
        return
    assert report.verdict == "fail"
    command = printed_command(report)
    assert fault.option in shlex.join(command)
    done = call(*command, "-o", str(tmp_path / "mended"))
    assert done.code == 0, done.err
    mended, right = (folder / "model.safetensors" for folder in (tmp_path / "mended", good))
    assert read_safetensors(mended) == read_safetensors(right)
    if fault.name == FAST:
        again = probe(tmp_path / "mended", prompts)
        assert not again.failures
        assert again.measured.length.value > 1.2 * report.measured.length.value


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 40, 80])
def test_a_good_drafter_is_not_failed(start: int, good: Path, tmp_path: Path) -> None:
    report = probe(good, prompts_file(tmp_path, "gate", start))
    assert not report.failures


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "words"), [(90, "the probe leaves them out"), (16, "no reading was")])
def test_drafts_past_the_drafters_positions_are_left_out_and_told(
    positions: int, words: str, good: Path, tmp_path: Path
) -> None:
    short = Misread("short", "", config={"max_position_embeddings": positions})
    report = probe(short.apply(good, tmp_path / "drafter"), prompts_file(tmp_path))
    assert not report.failures
    assert any(words in note for note in report.notes), report.notes


def test_a_gain_that_few_prompts_cannot_show_says_how_many_would(good: Path, tmp_path: Path) -> None:
    fault = next(fault for fault in faults_of("tiny") if fault.name == FAST)
    broken = fault.apply(good, tmp_path / "broken")
    report = probe(broken, prompts_file(tmp_path, count=3), max_tokens=12)
    (variant,) = (variant for variant in report.variants if variant.option == fault.option)
    assert variant.outcome == "too few prompts"
    assert variant.prompts_needed is not None
    assert variant.prompts_needed >= 8
    assert any(f"give about {variant.prompts_needed}" in note for note in report.notes)
    assert not [text for text in report.failures if "drafts better" in text]
