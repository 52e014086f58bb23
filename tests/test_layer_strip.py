"""The layers of a target with marks, as the terminal draws them."""

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console as RichConsole

import eaglectl
from eaglectl.report.inspection import DEEPEST, layer_strip
from eaglectl.report.terminal import Console
from tests.conftest import FIXTURES
from tests.pages import terminal_output

IDS = str(FIXTURES / "producers/modelopt/hf-ids")
TARGET = str(FIXTURES / "target")


def test_a_strip_marks_the_boundaries_of_the_document() -> None:
    looked = eaglectl.inspect(IDS, target=TARGET)
    document, strip = looked.to_dict(), layer_strip(looked.drafter, looked.captured_layers)
    assert strip is not None and list(strip.trained) == document["drafter"]["aux"]["boundaries"]
    captured = {name: part for part in strip.captured for name in part.engines}
    assert len(strip.captured) == 3
    for reading in document["aux_readings"]:
        marks = {boundary: captured[reading["engine"]].mark(boundary, strip.trained) for boundary in range(9)}
        both = set(reading["boundaries"]) & set(strip.trained)
        assert {boundary for boundary, mark in marks.items() if mark == "good"} == both
        assert {boundary for boundary, mark in marks.items() if mark == "bad"} == (
            set(reading["boundaries"]) - both
        )
        assert {boundary for boundary, mark in marks.items() if mark == "missing"} == (
            set(strip.trained) - both
        )


@pytest.mark.parametrize("boundaries", [(-1, 3, 5), (2, 4, DEEPEST + 1)])
def test_boundaries_that_no_target_has_are_not_drawn(boundaries: tuple[int, ...]) -> None:
    real = eaglectl.inspect(IDS, target=TARGET)
    captured = tuple(replace(part, boundaries=boundaries) for part in real.captured_layers)
    shown = replace(real, captured_layers=captured)
    assert layer_strip(shown.drafter, shown.captured_layers) is None


def test_a_boundary_past_the_last_layer_is_beside_the_layers() -> None:
    real = eaglectl.inspect(IDS, target=TARGET)
    captured = (replace(real.captured_layers[0], boundaries=(3, 5, 11)),)
    strip = layer_strip(real.drafter, captured)
    assert strip is not None and (strip.end, strip.depth) == (11, 8)


def test_engines_whose_layers_are_not_known_are_named() -> None:
    looked = eaglectl.inspect(str(FIXTURES / "producers/speculators/four-aux"))
    remark = "not drawn, as the target decides: SGLang; TensorRT-LLM; ATOM"
    assert f"  {remark}" in terminal(looked, 80)


def test_without_a_depth_or_ids_nothing_is_drawn() -> None:
    looked = eaglectl.inspect(str(FIXTURES / "producers/eagle/safetensors"))
    assert layer_strip(looked.drafter, looked.captured_layers) is None


def terminal(inspection: Any, width: int, encoding: str = "utf-8") -> list[str]:
    """What inspect prints on a terminal without colours."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    rich = RichConsole(file=stream, width=width, no_color=True, highlight=False, emoji=False, markup=False)
    terminal_output(inspection)(Console(rich))
    stream.seek(0)
    return [line.rstrip() for line in stream.read().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_terminal_draws_the_layers(width: int) -> None:
    shown = terminal(eaglectl.inspect(IDS, target=TARGET), width)
    assert [line for line in shown if "─" in line] == [
        "    0 ──×○×●─○─",
        "    0 ──×○×○×○─",
        "    0 ───●─●─●─",
    ]
    first, end = (
        next(place for place, line in enumerate(shown) if line.startswith(title))
        for title in ("Aux layers", "Releases")
    )
    assert max(map(len, shown[first:end])) <= width


def test_a_stream_of_other_characters_gets_ascii() -> None:
    shown = terminal(eaglectl.inspect(IDS, target=TARGET), 100, "ascii")
    strips = [line for line in shown if line.startswith("    0 ")]
    assert strips == ["    0 --xox*-o-", "    0 --xoxoxo-", "    0 ---*-*-*-"]
    assert "  * trained and captured  x captured, and not trained  o trained, and not captured" in shown


def test_a_deep_target_is_drawn_on_several_lines_without_a_gap() -> None:
    real = eaglectl.inspect(IDS, target=TARGET)
    target = replace(real.drafter.target, depth=80)
    shown = replace(real, drafter=replace(real.drafter, target=target))
    strips = [line for line in terminal(shown, 60) if "─" in line]
    assert [line[:6] for line in strips] == ["    0 ", "   41 "] * 3
    assert [len(line[6:]) for line in strips] == [41, 40] * 3  # the boundaries 0 to 80
    assert strips[0][6:][:9] == "──×○×●─○─"


def test_layers_that_all_engines_take_as_trained_are_not_drawn() -> None:
    pair = str(FIXTURES / "tiny/eagle3"), str(FIXTURES / "tiny/target")
    looked = eaglectl.inspect(pair[0], target=pair[1])
    assert layer_strip(looked.drafter, looked.captured_layers) is not None
    assert not any("─" in line for line in terminal(looked, 80))
