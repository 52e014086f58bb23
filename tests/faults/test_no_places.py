"""A user without a folder for temporary files, or without a home, as in a container that is locked down."""

import tempfile
from pathlib import Path

import pytest

from tests.builders import call, refusal
from tests.conftest import FIXTURES

TINY = FIXTURES / "tiny/eagle3"
READY = ("ready", FIXTURES / "producers/specforge/gqa-ids", "--target", FIXTURES / "target")


@pytest.fixture(autouse=True)
def no_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", TINY),
        ("validate", TINY),
        ("validate", TINY, "--output", "sarif=OUT/a.sarif"),
        ("diff", TINY, TINY),
        ("convert", TINY, "-o", "OUT/converted"),
        (*READY, "-o", "OUT/ready"),
    ],
    ids=lambda words: words[0],
)
def test_what_needs_neither_asks_for_neither(words: tuple[object, ...], tmp_path: Path) -> None:
    done = call(*(str(word).replace("OUT", str(tmp_path)) for word in words))
    assert (done.code, "temporary" in done.err) == (0, False), done.err


def test_what_needs_a_temporary_folder_says_so_in_a_line() -> None:
    advice = "no temporary folder is writable; mount one at /tmp, or set TMPDIR"
    assert refusal(3, *READY).endswith(advice)
    report = call("validate", FIXTURES / "producers/eagle/bin", "--json").document
    looked = [each["reason"] for each in report["could_not_look"]]
    assert any("pickles that cannot be copied: no temporary folder" in reason for reason in looked)
