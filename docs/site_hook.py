"""mkdocs' hook: README.md as the first page, and links to files outside of docs/ as plain text."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

README = Path(__file__).parent.parent / "README.md"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add README.md as index.md."""
    files.append(File.generated(config, "index.md", content=first_page(README.read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave out the links to files that the site does not have."""
    folder = posixpath.dirname(page.file.src_uri)

    def kept(link: re.Match[str]) -> str:
        is_outside = posixpath.normpath(posixpath.join(folder, link[2])).startswith("../")
        return link[1] if is_outside else link[0]

    return LINK.sub(kept, markdown)


def first_page(text: str) -> str:
    """README.md with links as from docs/."""
    inside = re.sub(r"\]\(docs/", "](", text)
    names = "CONTRIBUTING|CHANGELOG|SECURITY|benchmarks|fixtures|schemas|tests"
    return re.sub(rf"\]\((?=(?:{names})\b)", "](../", inside)
