"""mkdocs' hook: README.md as the first page, and links to files outside of docs/ as plain text."""

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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave out the links to files that the site does not have."""
    return LINK.sub(lambda link: link[1] if link[2].startswith("../") else link[0], markdown)


def first_page(text: str) -> str:
    """README.md with links as from docs/."""
    inside = re.sub(r"\]\(docs/", "](", text)
    names = "CONTRIBUTING|CHANGELOG|SECURITY|benchmarks|fixtures|schemas|tests"
    return re.sub(rf"\]\((?=(?:{names})\b)", "](../", inside)
