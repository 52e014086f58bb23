"""Pictures on pages and in the terminal: their numbers are the document's, and odd values draw nothing."""

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console as RichConsole

import eaglectl
from eaglectl import DiffOptions
from eaglectl.cli import run
from eaglectl.comparison.comparison import Numbers
from eaglectl.report.figures import Bar, Bars, Cell, Panel, Scale, Series, Timelines, fitted, fitted_log
from eaglectl.report.inspection import DEEPEST, layer_strip
from eaglectl.report.pages.markup import name
from eaglectl.report.pages.svg import MOST_BARS, cells, figure_markup, lines
from eaglectl.report.terminal.console import Console
from eaglectl.run.measurement import Estimate
from eaglectl.text import printable
from tests.conftest import FIXTURES
from tests.pages import pictures, read_page, terminal_output
from tests.test_page import smoke_report

NATIVE = str(FIXTURES / "producers/vllm/native")
IDS = str(FIXTURES / "producers/modelopt/hf-ids")
TARGET = str(FIXTURES / "target")
NAN = float("nan")
finite = st.floats(-1e6, 1e6)


def titles(picture: Element) -> list[str]:
    """What is shown where the pointer rests on a part of a picture."""
    return [element.text or "" for element in picture.iter("title")][1:]


def number(text: str | None) -> float:
    """A length or place in percent."""
    assert text is not None and text.endswith("%")
    return float(text[:-1])


# --- scales


@given(
    st.lists(finite | st.none() | st.sampled_from([NAN, math.inf, -math.inf])), st.sampled_from([0.0, 1.0])
)
def test_a_fitted_scale_holds_every_finite_value_and_few_round_ticks(
    values: list[float | None], origin: float
) -> None:
    scale = fitted(values, origin=origin)
    shown = [value for value in values if value is not None and math.isfinite(value)]
    slack = 1e-9 * (scale.high - scale.low)
    assert all(scale.low - slack <= value <= scale.high + slack for value in [*shown, origin])
    assert 1 <= len(scale.ticks()) <= 6 and scale.low < scale.high
    assert all(scale.low - slack <= tick <= scale.high + slack for tick in scale.ticks())


@given(st.lists(finite, min_size=2), st.booleans())
def test_a_larger_value_is_never_further_left(values: list[float], is_log: bool) -> None:
    scale = Scale(0.5, 2000.0, is_log, left=15, right=96)
    places = [scale.at(value) for value in sorted(values)]
    assert places == sorted(places) and 15 <= places[0] <= places[-1] <= 96


def test_a_logarithmic_scale_has_whole_decades() -> None:
    scale = fitted_log([0.0003, 0.7, None, NAN, 0.0])
    assert (scale.low, scale.high) == (1e-4, 1.0)
    assert scale.ticks() == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1])
    assert scale.at(0.01) == pytest.approx(50)
    assert fitted_log([]).low < fitted_log([]).high and fitted_log([1.0]).low == 0.1


# --- bars, lines, cells


def test_a_bar_without_a_value_is_words_alone() -> None:
    rows = [Bar("a", 0.25, "a quarter", (0.1, 0.5)), Bar("b", None, "none"), Bar("c", NAN, "nan", (0.0, NAN))]
    markup = figure_markup(Bars("bars", rows, Scale(0, 1)))
    filled = [picture.find("rect[@class='share']") for picture in pictures(markup)]
    assert [rect is not None for rect in filled] == [True, False, False]
    assert [len(picture.findall("line")) for picture in pictures(markup)] == [3, 0, 0]
    assert [picture.findtext("title") for picture in pictures(markup)] == ["a quarter", "none", "nan"]
    assert figure_markup(Bars("bars", [], Scale(0, 1))) == ""


def test_a_bar_starts_at_its_origin_in_both_directions() -> None:
    rows = [Bar("less", 0.5, "0.5"), Bar("more", 1.5, "1.5")]
    less, more = pictures(figure_markup(Bars("ratios", rows, Scale(0, 2), origin=1.0, reference=0.9)))
    spans = [
        (number(rect.get("x")), number(rect.get("width")))
        for rect in (less.find("rect[@class='share']"), more.find("rect[@class='share']"))
        if rect is not None
    ]
    assert spans == [(25, 25), (50, 25)]
    reference = less.find("line[@class='reference']")
    assert reference is not None and reference.get("x1") == reference.get("x2") == "45%"


def test_of_many_bars_the_rest_is_counted() -> None:
    rows = [Bar(str(n), 0.5, "half") for n in range(MOST_BARS + 1200)]
    markup = figure_markup(Bars("many", rows, Scale(0, 1)))
    assert len(pictures(markup)) == MOST_BARS and "and 1,200 more" in markup


def test_a_line_is_interrupted_where_a_value_is_nan() -> None:
    series = [Series("a", [0.0, 1.0, NAN, 1.0, 0.5])]
    (picture,) = pictures(lines(Panel("t", list("01234"), series, Scale(0, 1), [(0, "0"), (1, "1")])))
    assert len(picture.findall("line[@class='line series-0']")) == 2
    assert titles(picture) == ["a, 0: 0", "a, 1: 1", "a, 3: 1", "a, 4: 0.5"]
    assert picture.findtext("desc") == "a: 0, 1, nan, 1, 0.5 (from 0 to 4)"


@pytest.mark.parametrize(("places", "values"), [([], []), (["0"], [0.3]), (["0"], [NAN])])
def test_lines_of_one_point_or_none_are_drawn(places: list[str], values: list[float]) -> None:
    (picture,) = pictures(lines(Panel("t", places, [Series("a", values)], fitted(values), [])))
    assert not picture.findall("line[@class='line series-0']")
    assert len(titles(picture)) == sum(map(math.isfinite, values))


def test_cells_tell_outcomes_by_glyph_and_name_the_changes() -> None:
    row = [Cell(f"0.{n}.0", "bad" if n < 20 else "good", "fail: x" if n < 20 else "pass") for n in range(40)]
    (picture,) = pictures(cells("vllm", row))
    assert titles(picture)[0] == "0.0.0: fail: x" and titles(picture)[-1] == "0.39.0: pass"
    paths = [path.get("d") for path in picture.iter("path")]
    assert len(set(paths[:20])) == len(set(paths[20:])) == 1 and paths[0] != paths[-1]
    assert [text.text for text in picture.iter("text")] == ["0.0.0", "0.20.0", "0.39.0"]


@pytest.mark.parametrize(
    ("names", "shown"), [(["1"], "1"), (["0.5.15.post1", "0.5.16"], "0.5.15.post1 - 0.5.16")]
)
def test_few_cells_have_one_label(names: Sequence[str], shown: str) -> None:
    (picture,) = pictures(cells("x", [Cell(text, "doubt", "could-not-look") for text in names]))
    assert [text.text for text in picture.iter("text")] == ["?"] * len(names) + [shown]


def test_no_release_is_no_timeline() -> None:
    assert figure_markup(Timelines({})) == ""


# --- names


@given(st.text(st.sampled_from("ab./_:-=3 <&\u202e\n"), max_size=120) | st.text())
def test_a_name_folds_and_stays_the_same_text(plain: str) -> None:
    import html

    assert html.unescape(name(plain).replace("<wbr>", "")) == printable(plain)
    assert all(len(html.unescape(part)) <= 25 for part in name(plain).split("<wbr>"))


def test_a_name_folds_after_separators_and_not_inside_numbers() -> None:
    assert (
        name("layers.0.self_attn.q_proj.weight")
        == "layers.0.<wbr>self_<wbr>attn.<wbr>q_<wbr>proj.<wbr>weight"
    )
    assert name("out/eagle3.1") == "out/<wbr>eagle3.1"


# --- the pages


def document(capsys: pytest.CaptureFixture[str], page: Path, *arguments: str) -> tuple[Any, str]:
    """The JSON document and the page of one command."""
    run([*arguments, "--json", "--page", str(page)])
    return json.loads(capsys.readouterr().out), page.read_text(encoding="utf-8")


def test_the_strip_marks_the_boundaries_of_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, page = document(capsys, tmp_path / "p.html", "inspect", IDS, "--target", TARGET)
    trained = set(values["drafter"]["aux"]["boundaries"])
    expected = {
        (
            tuple(reading["boundaries"]),
            tuple(sorted(set(reading["boundaries"]) & trained)),
            tuple(sorted(set(reading["boundaries"]) - trained)),
            tuple(sorted(trained - set(reading["boundaries"]))),
        )
        for reading in values["aux_readings"]
    }
    strips = [picture for picture in pictures(page) if picture.find("rect[@class='layer']") is not None]
    assert all(len(picture.findall("rect")) == 8 for picture in strips)
    first, *engines = strips
    assert titles(first) == [f"boundary {boundary}: trained" for boundary in sorted(trained)]
    marked = set()
    for picture in engines:
        marks = [title.removeprefix("boundary ").split(": ") for title in titles(picture)]
        by_word = {
            word: tuple(int(boundary) for boundary, told in marks if told == word)
            for word in ("trained and captured", "captured, and not trained", "trained, and not captured")
        }
        captured = tuple(sorted(by_word["trained and captured"] + by_word["captured, and not trained"]))
        marked.add((captured, *by_word.values()))
    assert marked == expected and len(expected) == 3


def test_marks_stand_at_their_boundaries() -> None:
    page = eaglectl.render_page(eaglectl.inspect(IDS, target=TARGET))
    picture = next(p for p in pictures(page) if p.find("rect[@class='layer']") is not None)
    places = [number(mark.get("x")) for mark in picture.findall("svg")]
    assert places == [2 + 96 * boundary / 8 for boundary in (3, 5, 7)]  # 8 layers, from 2 % to 98 %


@pytest.mark.parametrize("boundaries", [(-1, 3, 5), (2, 4, DEEPEST + 1)])
def test_boundaries_that_no_target_has_are_not_drawn(boundaries: tuple[int, ...]) -> None:
    real = eaglectl.inspect(IDS, target=TARGET)
    captured = tuple(replace(part, boundaries=boundaries) for part in real.captured_layers)
    shown = replace(real, captured_layers=captured)
    assert layer_strip(shown.drafter, shown.captured_layers) is None
    assert 'class="layer"' not in eaglectl.render_page(shown)


def test_a_boundary_past_the_last_layer_is_beside_the_layers() -> None:
    real = eaglectl.inspect(IDS, target=TARGET)
    captured = (replace(real.captured_layers[0], boundaries=(3, 5, 11)),)
    strip = layer_strip(real.drafter, captured)
    assert strip is not None and (strip.end, strip.depth) == (11, 8)
    drawn_strip = pictures(eaglectl.render_page(replace(real, captured_layers=captured)))[0]
    assert len(drawn_strip.findall("rect")) == 8


def test_engines_whose_layers_are_not_known_are_named() -> None:
    looked = eaglectl.inspect(str(FIXTURES / "producers/speculators/four-aux"))
    remark = "not drawn, as the target decides: SGLang; TensorRT-LLM; ATOM"
    page = read_page(eaglectl.render_page(looked)).text
    assert remark in page and "how many it has is not known" in page
    assert f"  {remark}" in terminal(looked, 80)


def test_without_a_depth_or_ids_nothing_is_drawn() -> None:
    looked = eaglectl.inspect(str(FIXTURES / "producers/eagle/safetensors"))
    assert layer_strip(
        looked.drafter, looked.captured_layers
    ) is None and 'class="layer"' not in eaglectl.render_page(looked)


def test_the_timeline_has_every_release_with_its_outcome_and_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(FIXTURES / "producers/speculators/eagle3.1")
    call = ["validate", source, "--engine", "vllm>=0.10", "--engine", "sglang"]
    values, page = document(capsys, tmp_path / "p.html", *call)
    told = [title for picture in pictures(page) for title in titles(picture)]
    assert len(told) == len(values["releases"]) > 20
    for title, verdict in zip(told, values["releases"], strict=True):
        release, outcome, *rest = title.split(": ")
        assert (release, outcome) == (verdict["release"], verdict["verdict"])
        assert all(rule in title for rule in verdict["rules"])
        assert rest or outcome == "pass"
    tones = {"pass": "good", "fail": "bad", "could-not-look": "doubt"}
    classes = [rect.get("class") for picture in pictures(page) for rect in picture.findall("rect")]
    assert classes == [f"cell {tones[verdict['verdict']]}" for verdict in values["releases"]]
    assert {rule for verdict in values["releases"] for rule in verdict["rules"]} <= {
        word.strip(",") for word in read_page(page).words
    }


def test_distances_are_drawn_as_the_document_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [str(FIXTURES / "tiny/eagle3"), str(FIXTURES / "tiny/eagle3.1")]
    target = str(FIXTURES / "tiny/target")
    values, page = document(capsys, tmp_path / "p.html", "diff", *sides, "--target", target)
    distances = [
        tensor["numbers"]["relative_rms"]
        for tensor in values["tensors"]
        if tensor["numbers"] and tensor["numbers"]["relative_rms"] is not None
    ]
    bars_drawn = [picture.find("rect[@class='share']") for picture in pictures(page)]
    widths = [number(rect.get("width")) for rect in bars_drawn if rect is not None]
    assert len(widths) == len(distances) == 13
    assert widths == pytest.approx([100 * distance / 1.5 for distance in distances], abs=0.01)


def test_distances_far_apart_have_a_logarithmic_scale_and_missing_ones_no_bar() -> None:
    real = eaglectl.diff(NATIVE, IDS, DiffOptions(target=TARGET))
    pairs = [pair for pair in real.tensors if pair.a and pair.b][:4]
    rms = (0.0001, 1.0, None, 0.01)
    tensors = tuple(
        replace(pair, state="bytes", numbers=Numbers(4, 4, 1.0, value))
        for pair, value in zip(pairs, rms, strict=True)
    )
    page = eaglectl.render_page(replace(real, tensors=tensors))
    found = [picture.find("rect[@class='share']") for picture in pictures(page)]
    assert [number(rect.get("width")) for rect in found if rect is not None] == [0, 100, 50]
    assert "the scale is logarithmic" in page
    none = eaglectl.render_page(replace(real, tensors=()))
    assert pictures(none) == []


def test_ratios_and_probes_are_drawn_from_the_report() -> None:
    report = smoke_report()
    assert report.against is not None
    by_title = {picture.findtext("title"): picture for picture in pictures(eaglectl.render_page(report))}
    ratio, reading = report.against.sets[0].ratio, report.variants[0].ratio
    for value in (ratio, reading):
        assert f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]" in by_title
    growth = by_title["RMS of the fed-back state, over depth 0, by depth"]
    assert titles(growth) == ["x, 0: 1", "x, 1: 1.1", "x, 2: 1.2"]
    own = by_title["attention on own drafts, by depth"]
    assert titles(own) == ["x, 0: 0.3", "x, 1: 0.4", "x, 2: 0.5"]


def test_odd_figures_of_a_run_are_words_alone() -> None:
    report = smoke_report()
    odd = Estimate(NAN, NAN, math.inf)
    measured = replace(report.measured, per_position=(odd,))
    drift = replace(
        report.drift_conditions[0],
        measured=measured,
        state_growth=(NAN,),
        attention_on_first=(NAN,),
        attention_on_own=(0.0,),
    )
    shown = replace(
        report, measured=measured, k=1, drift_conditions=(drift,), against=None, variants=(), by_set={}
    )
    page = eaglectl.render_page(shown)
    assert "nan" in read_page(page).text
    first, *_ = pictures(page)
    assert first.find("rect[@class='share']") is None and first.findall("line") == []
    assert not any("nan" in str(element.attrib) for picture in pictures(page) for element in picture.iter())


# --- the terminal


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
    end = next(place for place, line in enumerate(shown) if line.startswith("Served as stored"))
    assert max(map(len, shown[:end])) <= width


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
