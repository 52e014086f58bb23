"""A strict reader of pages: every tag closes, nothing runs, nothing is loaded."""

import base64
import hashlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from eaglectl.report.outlines import outline
from eaglectl.report.terminal.console import Console
from eaglectl.report.terminal.report import print_outline

Paint = Callable[[Console], None]
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "main",
    "section",
    "article",
    "h1",
    "h2",
    "h3",
    "h4",
    "p",
    "a",
    "span",
    "strong",
    "b",
    "code",
    "pre",
    "ul",
    "li",
    "dl",
    "dt",
    "dd",
    "div",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "figure",
    "figcaption",
    "wbr",
    "svg",
    "desc",
    "rect",
    "line",
    "path",
    "text",
}
ATTRIBUTES = {
    "lang",
    "charset",
    "name",
    "content",
    "http-equiv",
    "class",
    "id",
    "href",
    "rel",
    "scope",
    "role",
    "aria-label",
    "aria-hidden",
    "tabindex",
    "width",
    "height",
    "x1",
    "x2",
    "y1",
    "y2",
    "x",
    "y",
    "d",
    "text-anchor",
}
INLINE = {"a", "span", "strong", "b", "code", "wbr"}
VOID = {"meta", "wbr"}


@dataclass
class Read:
    """A page that was read: its text, title, tags, links, the anchors they may lead to, headings.

    `hover` is the text of pictures that is shown where the pointer rests, and is not in `text`.
    """

    text: str = ""
    hover: str = ""
    title: str = ""
    style: str = ""
    policy: str = ""
    tags: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)

    @property
    def words(self) -> set[str]:
        return set(self.text.split())


def read_page(page: str) -> Read:
    """Read a page, and fail where it is not sound or not self-contained."""
    assert page.startswith("<!DOCTYPE html>\n") and page.endswith("</html>\n")
    reader = _Reader()
    reader.feed(page)
    reader.close()
    read = reader.page
    assert not reader.open, f"left open: {reader.open}"
    assert read.tags.count("title") == read.tags.count("h1") == read.tags.count("main") == 1
    assert len(set(read.anchors)) == len(read.anchors), "an id is there twice"
    inside = {link[1:] for link in read.links if link.startswith("#")}
    assert inside <= set(read.anchors), f"links to nothing: {inside - set(read.anchors)}"
    assert all(link.startswith(("#", "https://", "http://")) for link in read.links)
    levels = read.headings
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (
        f"a level is left out: {levels}"
    )
    assert not re.search(r"url\(|@import|expression|</", read.style)
    digest = base64.b64encode(hashlib.sha256(read.style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in read.policy and "default-src 'none'" in read.policy
    return read


def terminal_output(*results: Any, **options: Any) -> Paint:
    """What prints results on a terminal."""
    shown = outline(results, **options)
    return lambda console: print_outline(console, shown)


def pictures(page: str) -> list[ElementTree.Element]:
    """Every picture of a page that screen readers name; each is well-formed XML with a title."""
    found, depth, start = [], 0, 0
    for tag in re.finditer(r"<(/?)svg\b", page):
        if not tag[1] and depth == 0:
            start = tag.start()
        depth += -1 if tag[1] else 1
        if depth == 0:
            found.append(ElementTree.fromstring(f"{page[start : tag.start()]}</svg>"))
    named = [picture for picture in found if picture.get("role") == "img"]
    assert all(picture.findtext("title") for picture in named)
    return named


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Read()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        assert tag in TAGS, f"<{tag}>"
        assert set(values) <= ATTRIBUTES, f"<{tag} {sorted(values)}>"
        assert len(values) == len(attributes), f"<{tag}> has an attribute twice"
        if "href" in values:
            assert tag == "a" and values["href"] is not None, f"<{tag} href>"
            self.page.links.append(values["href"])
        self.page.anchors += [values["id"]] if values.get("id") else []
        self.page.headings += [int(tag[1])] if re.fullmatch(r"h[1-6]", tag) else []
        if values.get("http-equiv"):
            assert values["http-equiv"] == "Content-Security-Policy"
            self.page.policy = values["content"] or ""
        if tag == "svg" and "svg" not in self.open:
            has_name, is_hidden = values.get("role") == "img", values.get("aria-hidden") == "true"
            assert has_name != is_hidden, "a picture is named, or hidden from screen readers"
        if tag == "title" and "svg" in self.open:
            self.page.hover += " "
        elif values.get("class") != "option" and tag != "wbr":  # made of words
            self.page.tags.append(tag)
        self.page.text += "" if tag in INLINE else " "
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}>"
        self.page.text += "" if tag in INLINE else " "

    def handle_data(self, data: str) -> None:
        match self.open[-1:]:
            case ["style"]:
                self.page.style += data
            case ["title" | "desc"] if "svg" in self.open:
                self.page.hover += data
            case ["title"]:
                self.page.title += data
            case []:
                assert not data.strip()
            case _:
                self.page.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")
