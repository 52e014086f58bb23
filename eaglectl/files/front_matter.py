"""The YAML front matter of a model card, read without a YAML parser."""

import re

# the line before a card's front matter, the front matter, and the line after it
MATTER = r"(?sm)\A(---[ \t]*\r?\n)(.*?)(^---[ \t]*(?:\r?\n|\Z))"


def front_matter(card: str) -> dict[str, list[str]]:
    """Return the top-level keys of a card's YAML front matter, each with its texts.

    These forms are read: `key: text`, `key: [text]`, and a list below the key.
    """
    block = re.match(MATTER, card)
    facts: dict[str, list[str]] = {}
    key = ""
    for line in block[2].split("\n") if block else []:
        if top := re.match(r"([A-Za-z_][\w-]*):(.*)", line):
            key, line = top[1], top[2]
            facts[key] = []
        item = line.strip()
        for text in (
            item[1:].partition("]")[0].split(",") if item.startswith("[") else [item.removeprefix("- ")]
        ):
            if key and (value := text.split(" #")[0].strip().strip("\"'")):
                facts[key].append(value)
    return facts
