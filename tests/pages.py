"""A strict reader of the files of --page: every tag closes, nothing runs, nothing is loaded."""

import re
from html.parser import HTMLParser

from msgspec.structs import replace

from eaglectl.run.job import EngineRun
from eaglectl.run.measurement import PromptResult, measure, ratio
from eaglectl.run.probes import DriftCondition, Variant
from eaglectl.run.prompts import PromptChoice
from eaglectl.run.results import DrafterComparison, Reason, SetRatio, SmokeReport
from eaglectl.verdicts import GateEnding

TAGS = {"html", "head", "meta", "title", "style", "body", "pre", "span"}
ATTRIBUTES = {"lang", "charset", "http-equiv", "name", "content", "class"}
LOADS = re.compile(r"@import|url\((?!#)|(?:src|href)\s*=", re.IGNORECASE)


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


ENDINGS = {"pass": GateEnding.KEPT, "fail": GateEnding.LOST, "could-not-look": GateEnding.TOO_FEW_PROMPTS}


def smoke_report(text: str = "x", verdict: str = "fail") -> SmokeReport:
    """A run with everything beside it: sets, a second drafter, both probes."""
    results = tuple(PromptResult(f"{text}{n % 2}", 10 + n, (8, 5 + n % 3, 2), (1, 2, 3)) for n in range(6))
    other = tuple(replace(result, accepted=(6, 3, 1)) for result in results)
    resolved = {"class": text, "runner": text}
    texts = ((1, 2, 3),) * 6
    run_ = EngineRun(text, text, "cpu", "float32", text, results, texts, 2.0, 1.0, resolved)
    measured = measure(results)
    names = dict.fromkeys(result.set for result in results)
    sets = {name: measure([result for result in results if result.set == name]) for name in names}
    reading = Variant(text, text, measure(other), ratio(other, results))
    drift = DriftCondition(text, measured, (1.0, 1.1, 1.2), (0.0, 0.1, 0.2), (0.3, 0.4, 0.5))
    why = "" if verdict == "pass" else text
    ratios = ratio(results, other), ratio(results, other)
    in_sets = (SetRatio(text, 6, *ratios, ENDINGS[verdict], why),)
    compared = DrafterComparison(text, measure(other), *ratios, in_sets, 0.97)
    return SmokeReport(
        source=text,
        run=run_,
        measured=measured,
        by_set=sets,
        is_lossless=True,
        reasons=(
            Reason("note", text),
            *([] if verdict == "pass" else [Reason("failure" if verdict == "fail" else "gap", text)]),
        ),
        k=3,
        max_tokens=64,
        seed=0,
        prompts_digest="a" * 64,
        temperature=0.0,
        against=compared,
        variants=(reading,),
        drift_conditions=(drift,),
        choice=PromptChoice((), text, "b" * 64, 99, 6),
    )
