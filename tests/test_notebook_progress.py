"""Progress where no terminal shows it: in a notebook a line that is updated, elsewhere nothing."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import eaglectl
from eaglectl import progress
from eaglectl.options import CALLER
from eaglectl.progress import Progress
from tests.conftest import FIXTURES


class Display:
    """A notebook: what each display shows, in the order of its updates."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Display":
        assert raw and display_id and not self.shown
        self.update(data, raw=raw)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data)


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    made, package, module = Display(), ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = made.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(CALLER, "is_command_line", False)
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    return made


def work(on_progress: Any) -> None:
    on_progress(Progress("loading <b>"))
    on_progress(Progress("measuring", 3, 24, "prompts", 90.0))


def test_a_notebook_has_one_line_that_ends_empty(display: Display) -> None:
    with progress.notebook_progress() as line:
        work(line)
    assert [data["text/plain"] for data in display.shown] == [
        "loading <b>",
        "measuring 3 of 24 prompts, about 1.5 min left",
        "",
    ]
    assert display.shown[0]["text/html"] == "<progress></progress> loading &lt;b&gt;"
    assert display.shown[1]["text/html"].startswith('<progress value="3" max="24"></progress> measuring')


def test_a_stage_is_updated_no_more_often_than_it_is_read(
    display: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 60.0)
    with progress.notebook_progress() as line:
        assert line is not None
        for done in range(24):
            line(Progress("measuring", done, 24, "prompts"))
    assert len(display.shown) == 2


def test_a_call_in_a_notebook_shows_its_progress_unless_it_has_a_callback(display: Display) -> None:
    source, target = FIXTURES / "producers/angelslim/ids", FIXTURES / "target"
    steps: list[Progress] = []
    eaglectl.ready(source, target, on_progress=steps.append)
    assert steps and display.shown == []
    eaglectl.ready(source, target)
    assert display.shown[0]["text/plain"] == "reading the files" and display.shown[-1]["text/plain"] == ""


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["Python", "IPython"])
def test_elsewhere_nothing_is_shown(shell: Any, display: Display) -> None:
    sys.modules["IPython"].get_ipython = lambda: shell  # type: ignore[attr-defined]
    with progress.notebook_progress() as line:
        assert line is None
    assert display.shown == []
