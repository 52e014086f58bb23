"""What an ordinary call shows on a terminal of 24 lines of 80 columns: the answer first, and little more."""

import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

import eaglectl
from eaglectl.commands.convert.report import conversion_outline
from eaglectl.commands.engines.report import chosen_engines, engines_outline
from eaglectl.report.documents import outline
from eaglectl.report.section import Outline
from eaglectl.report.terminal import Console, filled_table, print_outline
from tests.builders import LLAMACPP, SGLANG, VLLM, call, drafter_folder
from tests.conftest import FIXTURES, sampled
from tests.pages import smoke_report

PRODUCERS = FIXTURES / "producers"
TARGET = str(FIXTURES / "target")
TINY = str(FIXTURES / "tiny/eagle3"), str(FIXTURES / "tiny/target")
VERDICTS = ("pass: ", "fail: ", "could not look: ")
# names of engines that nobody asked for by --engine vllm
OTHERS = ("SGLang", "sglang", "llama.cpp", "TensorRT", "tensorrt", "tokenspeed", "ATOM", "LMDeploy", "mlx")
READABLE = sorted(
    str(path.parent.relative_to(FIXTURES))
    for path in PRODUCERS.glob("*/*/config.json")
    if path.parent.parent.name not in ("deepspec", "nebius") and path.parent.name != "hf-no-aux"
)


def printed(paint: Callable[[Console], None], width: int, **options: Any) -> list[str]:
    stream = io.StringIO()
    rich = RichConsole(file=stream, width=width, color_system=None, highlight=False, emoji=False, **options)
    paint(Console(rich))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def screen(shown: Outline, width: int = 80, *, is_whole: bool = False) -> list[str]:
    """The lines of a terminal; one that is wider takes several."""
    lines = printed(
        lambda console: print_outline(console, shown, is_whole=is_whole), width, force_terminal=True
    )
    return [line[place : place + width] for line in lines for place in range(0, len(line) or 1, width)]


def convert(source: str, out: Path, **options: Any) -> list[str]:
    done = eaglectl.convert(source, out, **options)
    return screen(conversion_outline(done))


@pytest.mark.parametrize("source", sampled(READABLE, 12))
@pytest.mark.parametrize("target", [None, "target"])
def test_inspect_takes_at_most_22_lines_and_begins_with_the_verdict(
    source: str, target: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FIXTURES)  # how long the path of the checkout is changes nothing
    shown = screen(outline([eaglectl.inspect(source, target=target)]))
    # a choice says above its command what it gives
    most = 22 + sum(line.startswith("  one of:") for line in shown)
    assert shown[0].startswith(VERDICTS) and len(shown) <= most, "\n".join(shown)
    assert sum(line.startswith("next:") for line in shown) <= 1


@pytest.mark.parametrize(
    ("path", "engine", "first"),
    [
        ("specforge/gqa", "", f"pass: vLLM {VLLM} and SGLang {SGLANG} run it as trained, weights not read"),
        (
            "specforge/gqa-ids",
            "vllm==0.22.1",
            "fail: vLLM 0.22.1 reads target layers 1, 3, 5; trained on 2, 4, 6",
        ),
        ("sglang/aux-norm", "vllm", f"fail: vLLM {VLLM} does not start with it"),
        (
            "torchspec/mla",
            "sglang",
            f"could not look: it is not known whether SGLang {SGLANG} runs it as trained",
        ),
        (
            "speculators/eagle3.1",
            "",
            f"fail: vLLM {VLLM} runs it as trained, weights not read;"
            f" SGLang {SGLANG} does not start with it\n"
            f"  SGLang {SGLANG}: does not read the speculators format\n"
            f"next:  eaglectl validate {PRODUCERS}/speculators/eagle3.1 --target {TARGET}",
        ),
    ],
)
def test_the_first_line_says_what_the_engines_do(path: str, engine: str, first: str) -> None:
    engines = tuple(filter(None, [engine]))
    inspection = eaglectl.inspect(str(PRODUCERS / path), target=TARGET, engines=engines)
    lines = first.splitlines()
    assert screen(outline([inspection]), 1000)[: len(lines)] == lines


def test_a_question_stands_once_before_other_reasons_and_the_command_that_takes_its_answer() -> None:
    shown = screen(outline([eaglectl.inspect(str(PRODUCERS / "torchspec/mla"), target=TARGET)]))
    assert " ".join(shown).count("rope=10000") == 1
    assert "  TorchSpec's MLA attention trains with rope base 10000" in "\n".join(shown[1:3])
    place = next(place for place, line in enumerate(shown) if line.startswith("  one of:  # vLLM "))
    assert "eaglectl convert " in (line := "".join(shown[place : place + 3])) and "rope=10000" in line
    assert not any(line.startswith("next:") for line in shown)


def test_inspect_names_no_engine_but_those_asked_for_and_has_one_line_for_others() -> None:
    for is_whole in (False, True):
        inspection = eaglectl.inspect(TINY[0], target=TINY[1], engines=("vllm",))
        text = "\n".join(screen(outline([inspection]), is_whole=is_whole))
        assert "vLLM" in text and not [name for name in OTHERS if name in text]
    shown = screen(outline([eaglectl.inspect(TINY[0], target=TINY[1])]), 160)
    assert [line for line in shown if "llama.cpp" in line] == [
        f"  also: llama.cpp {LLAMACPP} as trained; TensorRT-LLM, tokenspeed, ATOM not judged"
    ]


def test_convert_takes_at_most_12_lines_and_prints_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = convert(TINY[0], Path("o"), target=TINY[1])
    assert shown[0].startswith("done: wrote ") and len(shown) <= 12, "\n".join(shown)
    assert [line for line in shown if "vllm serve" in line or "launch_server" in line] == [
        line for line in shown if line.startswith("next:  vllm serve ")
    ]
    shown = convert(TINY[0], Path("other"), target=TINY[1], engines=("sglang",))
    text = "\n".join(shown)
    assert "next:  python -m sglang.launch_server" in text and len(shown) <= 14
    assert not re.search("vllm serve|vLLM|also", text)


def test_validate_with_three_findings_takes_at_most_20_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # how long the path is changes nothing
    keys = {"hidden_act": "gelu", "architectures": ["Mine"], "num_hidden_layers": 3}
    report = eaglectl.validate(drafter_folder(tmp_path, config=keys).name)
    shown = screen(outline([report]))
    assert shown[0].startswith("fail: ") and len(shown) <= 20, "\n".join(shown)
    assert sum(line.startswith(("  error", "  warning")) for line in shown) == 3


@pytest.mark.parametrize("source", sampled(READABLE, 6))
def test_a_fix_of_validate_is_printed_once(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    shown = screen(outline([eaglectl.validate(source, target=TARGET)]), 400)
    commands = re.findall(r"eaglectl convert [^`(\n]*(?<! )", "\n".join(shown))
    assert len(commands) == len(set(commands)) and len(shown) <= 24


def test_a_passing_validate_says_which_engines_run_it() -> None:
    shown = screen(outline([eaglectl.validate(TINY[0], target=TINY[1])]))
    assert shown[0] == f"pass: {TINY[0]}: no errors, 3 notes"
    assert f"  vLLM {VLLM} and SGLang {SGLANG} run it as trained" in shown


def test_engines_fits_a_matrix_into_14_lines() -> None:
    shown = screen(engines_outline(chosen_engines(None)))
    assert len(shown) <= 14, "\n".join(shown)
    assert shown[0] == f"done: of 9 kinds vLLM {VLLM} serves 8, SGLang {SGLANG} 5, llama.cpp {LLAMACPP} 1"


@pytest.mark.parametrize("width", [60, 200])
def test_no_line_but_a_command_is_wider_than_the_terminal(width: int) -> None:
    shown = outline([eaglectl.inspect(str(PRODUCERS / "torchspec/mla"), target=TARGET)])
    shown_lines = printed(lambda console: print_outline(console, shown, is_whole=False), width)
    commands = ("next:", "  # vLLM", "eaglectl convert ")
    lines = [line for line in shown_lines if not any(words in line for words in commands)]
    assert max(map(len, lines)) <= width


def test_v_shows_the_rest_and_names_nothing_more(tmp_path: Path) -> None:
    shutil.copytree(TINY[0], tmp_path / "drafter")
    short, whole = (call("inspect", *more, tmp_path / "drafter").out for more in ((), ("-v",)))
    titles = ("Network", "Aux layers", "Releases", "Serve", "Tensors")
    assert f"more with -v: {', '.join(titles)}\n" in short and "more with -v" not in whole
    assert all(f"\n{title}" in whole for title in titles)


# narrow terminals: no word is broken, and nothing is left out


OUTLINES: dict[str, Callable[[], Outline]] = {
    "inspect": lambda: outline([eaglectl.inspect(str(PRODUCERS / "modelopt/hf-ids"), target=TARGET)]),
    "diff": lambda: outline([eaglectl.diff(TINY[0], str(FIXTURES / "tiny/eagle3.1"), target=TINY[1])]),
    "smoke": lambda: outline([smoke_report()]),
    "engines": lambda: engines_outline(chosen_engines(None)),
}


@pytest.mark.fast(5)
@pytest.mark.parametrize("name", OUTLINES)
@pytest.mark.parametrize("width", [60, 80])
def test_no_word_is_broken(name: str, width: int) -> None:
    shown = OUTLINES[name]()
    wide, narrow = (
        set(" ".join(printed(lambda console: print_outline(console, shown), size)).split())
        for size in (5000, width)
    )
    # where each row is a block, the head of its first column is not needed
    assert wide - narrow <= {"tensor", "engine", "condition", "prompts", "reading", "rule"}


def test_where_columns_do_not_fit_each_row_is_a_block() -> None:
    rows = [("layers.0.self_attn.q_proj.weight", "values", "", "0.5"), ("fc.weight", "dtype", "8", "-")]
    table = filled_table(("tensor", "difference", "numbers", "relative RMS"), rows)
    assert printed(lambda console: console.print(table), 50) == [
        "layers.0.self_attn.q_proj.weight",
        "  difference    values",
        "  relative RMS  0.5",
        "fc.weight",
        "  difference    dtype",
        "  numbers       8",
        "  relative RMS  -",
    ]
