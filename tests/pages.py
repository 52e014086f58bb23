"""A strict reader of the files of --page: every tag closes, nothing runs, nothing is loaded."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from msgspec.structs import replace

from eaglectl.report.outlines import outline
from eaglectl.report.terminal import Console, print_outline
from eaglectl.run.job import EngineRun
from eaglectl.run.measurement import PromptResult, measure, ratio
from eaglectl.run.probes import DriftCondition, Variant
from eaglectl.run.prompts import PromptChoice
from eaglectl.run.report import DrafterComparison, SetRatio, SmokeReport
from eaglectl.verdicts import GateEnding

Paint = Callable[[Console], None]
TAGS = {"html", "head", "meta", "title", "style", "body", "pre", "span"}
ATTRIBUTES = {"lang", "charset", "http-equiv", "name", "content", "class"}
SVG = "{http://www.w3.org/2000/svg}"
SVG_TAGS = {f"{SVG}{tag}" for tag in ("svg", "title", "style", "defs", "clipPath", "rect", "g", "text")}
LOADS = re.compile(r"@import|url\((?!#)|(?:src|href)\s*=", re.IGNORECASE)


def terminal_output(*results: Any, **options: Any) -> Paint:
    """What prints results on a terminal."""
    shown = outline(results, **options)
    return lambda console: print_outline(console, shown)


def read_page(page: str) -> str:
    """The text of an HTML page; fails where it is not sound or not self-contained."""
    assert page.startswith("<!DOCTYPE html>\n") and page.endswith("</html>\n")
    assert page.count("default-src 'none'") == 1
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open, f"left open: {reader.open}"
    assert not LOADS.search(reader.style)
    return reader.text


def read_image(image: str) -> list[str]:
    """The lines of an SVG image; fails where it is not sound or not self-contained."""
    root = ElementTree.fromstring(image)
    assert {element.tag for element in root.iter()} <= SVG_TAGS
    names = {name for element in root.iter() for name in element.attrib}
    assert not any("href" in name or name.startswith("on") for name in names), names
    style = root.findtext(f"{SVG}style") or ""
    assert not LOADS.search(style)
    lines: dict[float, str] = {}
    for part in root.iter(f"{SVG}text"):
        place = float(part.attrib["y"])
        lines[place] = lines.get(place, "") + (part.text or "").replace("\u00a0", " ")
    return [lines[place].rstrip() for place in sorted(lines)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = self.style = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, f"<{tag}>"
        assert {name for name, _ in attributes} <= ATTRIBUTES, f"<{tag} {attributes}>"
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        if "pre" in self.open:
            self.text += data
        elif self.open[-1:] == ["style"]:
            self.style += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")


ENDINGS = {
    "pass": GateEnding.KEPT,
    "fail": GateEnding.LOST,
    "could-not-look": GateEnding.TOO_FEW_PROMPTS,
}


def smoke_report(text: str = "x", verdict: str = "fail") -> SmokeReport:
    """A run with everything beside it: sets, a second drafter, both probes."""
    results = tuple(PromptResult(f"{text}{n % 2}", 10 + n, (8, 5 + n % 3, 2), (1, 2, 3)) for n in range(6))
    other = tuple(replace(result, accepted=(6, 3, 1)) for result in results)
    run_ = EngineRun(
        text,
        text,
        "cpu",
        "float32",
        text,
        results,
        ((1, 2, 3),) * 6,
        2.0,
        1.0,
        {"class": text, "runner": text},
    )
    measured = measure(results)
    names = dict.fromkeys(result.set for result in results)
    sets = {name: measure([result for result in results if result.set == name]) for name in names}
    reading = Variant(text, text, measure(other), ratio(other, results))
    drift = DriftCondition(text, measured, (1.0, 1.1, 1.2), (0.0, 0.1, 0.2), (0.3, 0.4, 0.5))
    failures = (text,) if verdict == "fail" else ()
    why = "" if verdict == "pass" else text
    return SmokeReport(
        text,
        run_,
        measured,
        sets,
        True,
        failures,
        (text,),
        3,
        64,
        0,
        "a" * 64,
        0.0,
        DrafterComparison(
            text,
            measure(other),
            ratio(results, other),
            ratio(results, other),
            (SetRatio(text, 6, ratio(results, other), ratio(results, other), ENDINGS[verdict], why),),
            0.97,
        ),
        (reading,),
        (drift,),
        gaps=(text,) if verdict == "could-not-look" else (),
        choice=PromptChoice((), text, "b" * 64, 99, 6),
    )
