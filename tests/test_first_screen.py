"""What an ordinary call shows on a terminal of 24 lines of 80 columns: the answer first, and little more."""

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

import eaglectl
from eaglectl.commands.convert.report import conversion_outline
from eaglectl.commands.engines.report import chosen_engines, engines_outline
from eaglectl.report.outlines import outline
from eaglectl.report.section import Outline
from eaglectl.report.terminal import Console, print_outline
from tests.builders import call, drafter_folder
from tests.conftest import FIXTURES, sampled

PRODUCERS = FIXTURES / "producers"
TARGET = str(FIXTURES / "target")
TINY = str(FIXTURES / "tiny/eagle3"), str(FIXTURES / "tiny/target")
# the first words of a verdict
VERDICTS = ("vLLM ", "SGLang ", "WRONG: ", "FAILS: ", "OPEN: ")
# names of engines that nobody asked for by --engine vllm
OTHERS = (
    "SGLang",
    "sglang",
    "llama.cpp",
    "TensorRT",
    "tensorrt",
    "tokenspeed",
    "ATOM",
    "LMDeploy",
    "mlx",
)
READABLE = sorted(
    str(path.parent.relative_to(FIXTURES))
    for path in PRODUCERS.glob("*/*/config.json")
    if path.parent.parent.name not in ("deepspec", "nebius") and path.parent.name != "hf-no-aux"
)


def screen(shown: Outline, width: int = 80, *, is_whole: bool = False) -> list[str]:
    """The lines of a terminal; one that is wider takes several."""
    stream = io.StringIO()
    rich = RichConsole(
        file=stream, width=width, color_system=None, highlight=False, emoji=False, force_terminal=True
    )
    print_outline(Console(rich), shown, is_whole=is_whole)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    return [line[place : place + width] for line in lines for place in range(0, len(line) or 1, width)]


def convert(source: str, out: Path, **options: Any) -> list[str]:
    done = eaglectl.convert(source, out, **options)
    return screen(conversion_outline(done, options.get("engines", ())))


@pytest.mark.parametrize("source", sampled(READABLE, 12))
@pytest.mark.parametrize("target", [None, "target"])
def test_inspect_takes_at_most_22_lines_and_begins_with_the_verdict(
    source: str, target: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FIXTURES)  # how long the path of the checkout is changes nothing
    shown = screen(outline([eaglectl.inspect(source, target=target)]))
    assert shown[0].startswith(VERDICTS) and len(shown) <= 22, "\n".join(shown)
    assert sum(line.startswith("next:") for line in shown) <= 1


@pytest.mark.parametrize(
    ("path", "engines", "first"),
    [
        ("specforge/gqa", (), "vLLM 0.33.0 and SGLang 0.5.23 run it as trained, weights not read"),
        (
            "specforge/gqa-ids",
            ("vllm==0.22.1",),
            "WRONG: vLLM 0.22.1 reads target layers 1, 3, 5; trained on 2, 4, 6",
        ),
        ("sglang/aux-norm", ("vllm",), "FAILS: vLLM 0.33.0 does not start with it"),
        ("torchspec/mla", ("sglang",), "OPEN: it is not known whether SGLang 0.5.23 runs it as trained"),
    ],
)
def test_the_first_line_says_what_the_engines_do(path: str, engines: tuple[str, ...], first: str) -> None:
    inspection = eaglectl.inspect(str(PRODUCERS / path), target=TARGET, engines=engines)
    assert screen(outline([inspection]))[0] == first


def test_a_question_stands_once_before_other_reasons_and_the_command_that_takes_its_answer() -> None:
    shown = screen(outline([eaglectl.inspect(str(PRODUCERS / "torchspec/mla"), target=TARGET)]))
    assert " ".join(shown).count("rope=10000") == 1
    assert shown[1].startswith("  TorchSpec's MLA attention trains with rope base 10000")
    place = next(place for place, line in enumerate(shown) if line.startswith("next:  eaglectl convert "))
    assert shown[place - 1] == "  the next command needs the answer to this"


@pytest.mark.parametrize("is_whole", [False, True])
def test_inspect_names_no_engine_but_those_asked_for(is_whole: bool) -> None:
    inspection = eaglectl.inspect(TINY[0], target=TINY[1], engines=("vllm",))
    text = "\n".join(screen(outline([inspection]), is_whole=is_whole))
    assert "vLLM" in text and not [name for name in OTHERS if name in text]


def test_other_engines_have_one_line_where_none_is_asked_for() -> None:
    shown = screen(outline([eaglectl.inspect(TINY[0], target=TINY[1])]), 160)
    assert [line for line in shown if "llama.cpp" in line] == [
        "  also: llama.cpp 0.3.36 as trained; TensorRT-LLM, tokenspeed, ATOM not judged"
    ]


def test_each_of_several_sources_has_its_verdict_under_its_name() -> None:
    sources = [str(PRODUCERS / "specforge/gqa"), str(PRODUCERS / "sglang/aux-norm")]
    shown = screen(outline([eaglectl.inspect(source) for source in sources], names=sources))
    verdicts = [shown[shown.index(f"== {source}") + 1].strip() for source in sources]
    assert verdicts[0].startswith("vLLM ") and verdicts[1].startswith("FAILS: ")
    assert len(shown) <= 16


def test_convert_takes_at_most_12_lines_and_prints_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = convert(TINY[0], Path("o"), target=TINY[1])
    assert shown[0].startswith("wrote ") and len(shown) <= 12, "\n".join(shown)
    assert [line for line in shown if "vllm serve" in line or "launch_server" in line] == [
        line for line in shown if line.startswith("next:  vllm serve ")
    ]


def test_convert_prints_the_command_of_the_engine_asked_for(tmp_path: Path) -> None:
    shown = convert(TINY[0], tmp_path / "o", target=TINY[1], engines=("sglang",))
    text = "\n".join(shown)
    assert "next:  python -m sglang.launch_server" in text and "vllm serve" not in text
    assert "vLLM" not in text and "also" not in text and len(shown) <= 14


def test_validate_with_three_findings_takes_at_most_20_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # how long the path is changes nothing
    keys = {"hidden_act": "gelu", "architectures": ["Mine"], "num_hidden_layers": 3}
    report = eaglectl.validate(drafter_folder(tmp_path, config=keys).name)
    shown = screen(outline([report]))
    assert shown[0].startswith("FAIL ") and len(shown) <= 20, "\n".join(shown)
    assert sum(line.startswith(("  error", "  warning")) for line in shown) == 3


@pytest.mark.parametrize("source", sampled(READABLE, 6))
def test_a_fix_of_validate_is_printed_once(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    shown = screen(outline([eaglectl.validate(source, target=TARGET)]), 400)
    commands = [line.strip() for line in shown if "eaglectl convert" in line]
    assert len(commands) == len(set(commands)) and len(shown) <= 24


def test_a_passing_validate_says_which_engines_run_it() -> None:
    shown = screen(outline([eaglectl.validate(TINY[0], target=TINY[1])]))
    assert shown[0] == f"PASS {TINY[0]}: no errors, 3 notes"
    assert "  vLLM 0.33.0 and SGLang 0.5.23 run it as trained" in shown


def test_engines_fits_a_matrix_into_14_lines() -> None:
    shown = screen(engines_outline(chosen_engines(None)))
    assert len(shown) <= 14, "\n".join(shown)
    assert shown[0] == "of 9 kinds of drafter vLLM 0.33.0 serves 8, SGLang 0.5.23 5, llama.cpp 0.3.36 1"


@pytest.mark.parametrize("width", [60, 200])
def test_no_line_but_a_command_is_wider_than_the_terminal(width: int) -> None:
    shown = outline([eaglectl.inspect(str(PRODUCERS / "torchspec/mla"), target=TARGET)])
    stream = io.StringIO()
    print_outline(Console(RichConsole(file=stream, width=width, color_system=None)), shown, is_whole=False)
    lines = [line.rstrip() for line in stream.getvalue().splitlines() if not line.startswith("next:")]
    assert max(map(len, lines)) <= width


def test_v_shows_the_rest_and_names_nothing_more(tmp_path: Path) -> None:
    shutil.copytree(TINY[0], tmp_path / "drafter")
    short, whole = (call("inspect", *more, tmp_path / "drafter").out for more in ((), ("-v",)))
    assert "more with -v: Network, Aux layers, Releases, Serve\n" in short and "more with -v" not in whole
    assert all(f"\n{title}" in whole for title in ("Network", "Aux layers", "Releases", "Serve"))
