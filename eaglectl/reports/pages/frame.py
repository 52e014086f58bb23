"""The frame of every page: head, verdict and the only style sheet; nothing is loaded from elsewhere."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

import eaglectl
from eaglectl.reports.pages.markup import Content, Markup, element
from eaglectl.reports.pages.report import body, lead, title
from eaglectl.reports.section import Outline


def frame(outline: Outline) -> str:
    """Return the whole document; the same outline gives the same bytes."""
    head = element("head", *_head(outline))
    made = element("p", _made_by(outline), class_="about")
    header = element("header", made, element("h1", title(outline)), lead(outline))
    shown = element("body", header, element("main", body(outline)))
    return f"<!DOCTYPE html>\n{element('html', head, shown, lang='en')}\n"


def _head(outline: Outline) -> tuple[Content, ...]:
    subject = f": {outline.subject}" if outline.subject else ""
    return (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_security_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{outline.verdict.text}{subject} - {_made_by(outline)}"),
        element("style", style_sheet()),
    )


def _made_by(outline: Outline) -> str:
    return f"eaglectl {eaglectl.__version__} {outline.command}"


@cache
def style_sheet() -> Markup:
    """Return the rules for pages and pictures, light and dark."""
    return Markup(files("eaglectl.reports.pages").joinpath("page.css").read_text(encoding="utf-8"))


def _security_policy() -> str:
    """Return a content security policy that allows this one style sheet and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
