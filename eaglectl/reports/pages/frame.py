"""The frame of every page: head, verdict and the only style sheet; nothing is loaded from elsewhere."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from msgspec import Struct

import eaglectl
from eaglectl.reports.pages.markup import Content, Markup, element, filled, mark, name


class Page(Struct, frozen=True):
    """A page before it is framed; `subject` is the source, `lead` a summary, `body` the sections."""

    command: str
    verdict: str
    tone: str
    subject: str
    lead: Markup
    body: Markup


def frame(page: Page) -> str:
    """Return the whole document; the same page gives the same bytes."""
    head = element("head", *_head(page))
    subject = filled("span", name(page.subject), class_="subject")
    title = element("h1", mark(page.verdict, page.tone), " ", subject)
    header = element("header", element("p", _made_by(page), class_="about"), title, page.lead)
    body = element("body", header, element("main", page.body))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _head(page: Page) -> tuple[Content, ...]:
    subject = f": {page.subject}" if page.subject else ""
    return (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_security_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{page.verdict}{subject} - {_made_by(page)}"),
        element("style", _style()),
    )


def _made_by(page: Page) -> str:
    return f"eaglectl {eaglectl.__version__} {page.command}"


@cache
def _style() -> Markup:
    return Markup(files("eaglectl.reports.pages").joinpath("page.css").read_text(encoding="utf-8"))


def _security_policy() -> str:
    """Return a content security policy that allows this one style sheet and nothing else."""
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
