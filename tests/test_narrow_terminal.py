"""Tables on narrow terminals: no word is broken, and nothing is left out."""

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as RichConsole

import eaglectl
from eaglectl import DiffOptions
from eaglectl.commands.engines.report import chosen_engines, engines_outline
from eaglectl.report.terminal import LONGEST_UNBROKEN, Console, filled_table, print_outline
from tests.conftest import FIXTURES
from tests.pages import smoke_report, terminal_output

IDS = str(FIXTURES / "producers/modelopt/hf-ids")
TARGET = str(FIXTURES / "target")
Paint = Callable[[Console], None]


def printed(paint: Paint, width: int) -> str:
    stream = io.StringIO()
    rich = RichConsole(file=stream, width=width, no_color=True, highlight=False, emoji=False, markup=False)
    paint(Console(rich))
    return stream.getvalue()


def inspected() -> Paint:
    inspection = eaglectl.inspect(IDS, target=TARGET)
    return terminal_output(inspection, has_tensors=True)


def compared() -> Paint:
    pair = str(FIXTURES / "tiny/eagle3"), str(FIXTURES / "tiny/eagle3.1")
    comparison = eaglectl.diff(*pair, DiffOptions(target=str(FIXTURES / "tiny/target")))
    return terminal_output(comparison)


def smoked() -> Paint:
    report = smoke_report()
    return terminal_output(report)


def followed() -> Paint:
    return lambda console: print_outline(console, engines_outline(chosen_engines(None)))


@pytest.mark.parametrize("make", [inspected, compared, smoked, followed])
@pytest.mark.parametrize("width", [60, 80])
def test_no_word_is_broken(make: Callable[[], Paint], width: int) -> None:
    paint = make()
    words = set(printed(paint, 5000).split())
    # where each row is a block, the head of its first column is not needed
    assert words - set(printed(paint, width).split()) <= {
        "tensor",
        "engine",
        "condition",
        "prompts",
        "reading",
    }


words = st.text(st.sampled_from("abc"), min_size=1, max_size=LONGEST_UNBROKEN // 2)
cells = st.lists(words, max_size=4).map(" ".join)


@given(st.lists(st.tuples(words, cells, cells, cells), min_size=1, max_size=4), st.integers(60, 120))
def test_any_table_keeps_its_words(rows: list[tuple[str, ...]], width: int) -> None:
    head = ("engine", "second head", "third", "as trained")
    shown = printed(lambda console: console.print(filled_table(head, rows)), width)
    assert all(len(line) <= width for line in shown.splitlines())
    assert {word for row in rows for cell in row for word in cell.split()} <= set(shown.split())


def test_where_columns_do_not_fit_each_row_is_a_block() -> None:
    rows = [("layers.0.self_attn.q_proj.weight", "values", "", "0.5"), ("fc.weight", "dtype", "8", "-")]
    table = filled_table(("tensor", "difference", "numbers", "relative RMS"), rows)
    assert [line.rstrip() for line in printed(lambda console: console.print(table), 50).splitlines()] == [
        "layers.0.self_attn.q_proj.weight",
        "  difference    values",
        "  relative RMS  0.5",
        "fc.weight",
        "  difference    dtype",
        "  numbers       8",
        "  relative RMS  -",
    ]


def test_a_wide_table_is_as_before() -> None:
    table = filled_table(("a", "b"), [("x", "one two"), ("y", "three")])
    assert [line.rstrip() for line in printed(lambda console: console.print(table), 40).splitlines()] == [
        "a  b",
        "x  one two",
        "y  three",
    ]
