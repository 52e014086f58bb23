"""Every command that `diagnose` and `smoke` print runs as it is pasted: for good pairs and for each fault."""

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("transformers")

from tests.builders import Outcome, call  # noqa: E402
from tests.pairs import TINY as PAIR  # noqa: E402
from tests.pairs import write_prompts  # noqa: E402
from tests.printed import commands_in, fault  # noqa: E402
from tests.test_next_commands import REPAIRED, WHOLE, broken  # noqa: E402
from tests.tiny import FAULTS, TARGET, TINY, Fault, in_vllms_layout  # noqa: E402

GOOD = ("eagle3", "eagle3.1")
TABLES = REPAIRED | WHOLE
ASKED: Mapping[str, tuple[str, ...]] = {
    "diagnose": ("diagnose",),
    "diagnose an engine": ("diagnose", "--engine", "vllm==0.33.0"),
    "smoke": ("smoke", "--run-in", "reference"),
    "smoke and probe": ("smoke", "--run-in", "reference", "--probe", "sensitivity"),
    "smoke and write counts": ("smoke", "--run-in", "reference", "--write-token-counts", "counts.txt"),
}
PROMPTS, TOKENS = 6, "16"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both trained drafters in vLLM's layout."""
    return in_vllms_layout(tmp_path_factory.mktemp("good"))


def pasted(parent: Path, monkeypatch: pytest.MonkeyPatch, *given: str | Path, is_faulty: bool) -> Outcome:
    """Run a command on the pair, then all that it prints, each line in a folder of its own."""
    prompts = write_prompts(parent / "prompts.jsonl", PAIR.texts("prompts")[:PROMPTS])
    options = ("--target", TARGET, "--prompts", prompts, "--max-tokens", TOKENS, "--device", "cpu")
    monkeypatch.chdir(tempfile.mkdtemp(dir=parent))
    shown = call(*given, *options)
    for line in dict.fromkeys(commands_in(shown.out) + commands_in(shown.err)):
        assert fault(line, [str(word) for word in given]) == ""
        monkeypatch.chdir(tempfile.mkdtemp(dir=parent))
        done = call(*shlex.split(line, comments=True)[1:])
        # `validate` fails what it is pasted for, and a diagnosis of more prompts finds the fault
        may_fail = line.split()[1] == "validate" or (line.split()[1] == "diagnose" and is_faulty)
        assert done.code == 0 or (done.code == 1 and may_fail), (given[0], line, done.out[:200], done.err)
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", [*GOOD, *(f"{name} as stored" for name in GOOD)])
def test_what_is_printed_of_a_good_pair_runs(
    name: str, asked: str, good: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = TINY / name.removesuffix(" as stored") if name.endswith("stored") else good[name]
    verb, *more = ASKED[asked]
    pasted(tmp_path, monkeypatch, verb, drafter, *more, is_faulty=False)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change.name)
def test_what_is_printed_of_a_fault_runs(
    change: Fault, asked: str, good: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = change.apply(good[change.base], tmp_path / "a broken one")
    verb, *more = ASKED[asked]
    pasted(tmp_path, monkeypatch, verb, folder, *more, is_faulty=True)


@pytest.mark.fast(1)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("table", ["absolute", *(name for name in TABLES if name != "absolute")])
def test_what_is_printed_of_a_broken_table_runs(
    table: str, asked: str, good: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = broken(good["eagle3"], tmp_path / "a broken one", TABLES[table])
    verb, *more = ASKED[asked]
    shown = pasted(tmp_path, monkeypatch, verb, folder, *more, is_faulty=True)
    if verb == "diagnose":
        # of two whole tables few prompts may not tell which is right
        assert shown.code == 1 and len(commands_in(shown.out)) in ((1, 2) if table in WHOLE else (1,))


@pytest.mark.slow  # fast: the cases of the function that writes it, in tests/test_diagnose.py
def test_a_diagnosis_of_too_few_prompts_of_a_file_ends_in_one_of_prompts_that_are_there(
    good: dict[str, Path], tmp_path: Path
) -> None:
    change = next(change for change in FAULTS if change.name == "aux layers one early")
    folder = change.apply(good[change.base], tmp_path / "a broken one")
    prompts = write_prompts(tmp_path / "few.jsonl", PAIR.texts("prompts")[:8])
    given = ("--target", TARGET, "--prompts", prompts, "--max-tokens", "20", "--device", "cpu")
    shown = call("diagnose", folder, *given)
    (line,) = commands_in(shown.out)
    assert shown.code == 3 and "FILE" not in line and str(prompts) not in line
    done = call(*shlex.split(line)[1:])
    assert done.code == 1 and "it drafts better read with aux boundaries +1" in " ".join(done.out.split())
