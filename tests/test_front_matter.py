"""A model card's front matter, as far as eaglectl reads YAML."""

import pytest

from eaglectl.files.front_matter import front_matter


@pytest.mark.parametrize(
    ("card", "facts"),
    [
        ("---\nlicense: mit\n---\n", {"license": ["mit"]}),
        ("---\r\nlicense: 'mit'\r\ntags:\r\n---\r\n", {"license": ["mit"], "tags": []}),
        ('---\ntags: [a, "b"] # two\n---', {"tags": ["a", "b"]}),
        ("---\nbase_model:\n- org/a\n- org/b # the target\n---\n", {"base_model": ["org/a", "org/b"]}),
        ("---\nlicense: mit\n---\nlicense: other\n", {"license": ["mit"]}),
        ("---\n- a\n---\n", {}),
        ("---\nlicense: mit\n", {}),
        ("\n---\nlicense: mit\n---\n", {}),
        ("license: mit\n", {}),
        ("", {}),
    ],
)
def test_only_the_keys_between_the_first_two_lines_of_dashes_are_facts(
    card: str, facts: dict[str, list[str]]
) -> None:
    assert front_matter(card) == facts
