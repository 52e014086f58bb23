"""Progress: a bar on a terminal, a line in a notebook and for long work elsewhere, nothing with -q."""

import io
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import eaglectl
from eaglectl.api.diagnose import STAGES
from eaglectl.files import writer
from eaglectl.options import CALLER
from eaglectl.progress import Progress, StagedWork, TimedWork, notebook_progress, notify, set_notices
from eaglectl.publish import upload as upload_files
from eaglectl.run.answering import TRYING
from eaglectl.terminal import OutputSettings, ProgressBar, say
from tests.builders import STATED, drafter_folder
from tests.conftest import FIXTURES


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, steps: list[Progress], *, is_on: bool = True) -> str:
    """What a terminal shows for these steps."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(OutputSettings(no_color=True), is_on=is_on) as bar:
        for step in steps:
            bar(step)
        assert bar.bar is None or steps[-1].done < (steps[-1].total or 0)
    assert bar.bar is None
    return stream.getvalue()


def hashing(done: int, total: int) -> Progress:
    return Progress("hashing", done, total, "bytes")


def test_a_terminal_gets_a_bar_until_all_is_hashed_and_a_quiet_call_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = shown(monkeypatch, [hashing(1, 4), hashing(2, 4), hashing(4, 4)])
    assert "hashing" in text and text.endswith("\x1b[2K")
    assert shown(monkeypatch, [hashing(1, 4), hashing(4, 4)], is_on=False) == ""


def test_without_a_terminal_long_work_is_told_and_again_where_that_was_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    with ProgressBar(OutputSettings(), is_on=True) as bar:
        bar.clock = lambda: now[0]
        for at, seconds in [(0, 59.0), (10, 600.0), (110, 520.0), (210, 90.0), (250, 55.0)]:
            now[0] = at
            bar(Progress("measuring", 1, 9, "prompts", float(seconds)))
        bar(Progress("measuring", 2, 9, "prompts"))
        bar(Progress("measuring", 2, 9, "prompts", 7200.0, "diagnose"))
    lines = ["measuring takes about 10 min more", "measuring takes about 1.5 min more"]
    assert capsys.readouterr().err.splitlines() == [*lines, "diagnose takes about 2 h more"]


def test_a_notice_stands_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    former = set_notices(lambda text: say(f"eaglectl: {text}", sys.stderr))
    try:
        with ProgressBar(OutputSettings(no_color=True), is_on=True) as bar:
            notify("before the bar")
            bar(Progress("measuring", 1, 9, "prompts"))
            notify("beside the bar")
        notify("after the bar")
    finally:
        set_notices(former)
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]|.*\r", "", line) for line in stream.getvalue().split("\n")]
    assert [line for line in lines if "the bar" in line] == [
        f"eaglectl: {place} the bar" for place in ("before", "beside", "after")
    ]


@pytest.mark.parametrize("slow", [1, 20])
@pytest.mark.parametrize("taken", [(30, 28, 9), (30, 32, 25), (30, 20, 22)])
def test_the_rest_of_a_command_is_told_over_its_stages(
    slow: float, taken: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`diagnose` said "about 30 s more" of its first stage, and took six minutes."""
    now, steps = [50.0], list[tuple[float, Progress]]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    work = StagedWork(lambda step: steps.append((now[0], step)), "diagnose", STAGES)
    work(Progress("loading the target", 5, 10, "bytes"))
    for stage, seconds in zip(("measuring", "probing", TRYING), taken, strict=True):
        for done in range(21 if seconds else 0):
            now[0] += seconds * slow / 20 if done else 0.0
            work(Progress(stage, done, 20, "steps"))
    told = [(step.seconds, now[0] - at) for at, step in steps if step.seconds is not None]
    assert len(told) > 20 and steps[0][1].whole == ""
    assert {step.whole for _, step in steps[1:]} == {"diagnose"}
    for seconds, rest in told[: len(told) // 2]:
        assert rest / 1.5 <= seconds <= rest * 1.5, (seconds, rest)


def test_a_large_file_is_told_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    folder, dry = str(drafter_folder(tmp_path, card=STATED)), eaglectl.UploadOptions(dry_run=True)
    download = tmp_path / "download"
    download.mkdir()
    for file in eaglectl.upload(folder, "org/drafter", dry).plan.files:
        (download / file.name).write_bytes(bytes(file.content))  # type: ignore[arg-type]
    for module, name in ((upload_files, "MAX_KEPT"), (upload_files, "BLOCK"), (writer, "BLOCK")):
        monkeypatch.setattr(module, name, 1000)
    reports: list[Progress] = []
    for call_command in (
        lambda: eaglectl.upload(folder, "org/drafter", dry, on_progress=reports.append),
        lambda: eaglectl.verify(str(download), on_progress=reports.append),
    ):
        reports.clear()
        call_command()
        counted = [progress for progress in reports if progress.unit == "bytes"]
        assert {progress.stage for progress in counted} == {"hashing"}
        assert counted[-1].done == counted[-1].total and len(counted) > 10
        assert all(0 < after.done - before.done <= 4000 for before, after in pairwise(counted))


@pytest.mark.parametrize("slow", [1, 10, 300])
@pytest.mark.parametrize("later", [0.7, 1.0, 1.4])
def test_the_rest_is_told_within_a_factor_of_1_5_on_any_machine(
    slow: float, later: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    steps: list[tuple[float, Progress]] = []
    work = TimedWork(lambda step: steps.append((now[0], step)), "measuring", 40)
    now[0] += 5 * slow  # the target loads
    work.start()
    for place in range(40 * 8):  # a prompt is counted by its parts
        now[0] += 0.1 * slow * (1 if place < 80 else later)
        work.add(1 / 8)
    told = [(step.seconds, now[0] - at) for at, step in steps if step.seconds is not None]
    assert all(seconds == pytest.approx(rest, rel=0.5, abs=0.1) for seconds, rest in told)
    assert all(seconds >= rest / 1.5 for seconds, rest in told)
    # by its first seconds, whatever its pace
    first = next(at for at, step in steps if step.seconds is not None)
    assert first - 1000.0 - 5 * slow == pytest.approx(max(2.0, 16 * 0.1 * slow), rel=0.11)
    assert (steps[-1][1].done, steps[-1][1].seconds) == (40, 0.0)


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
    monkeypatch.setattr("eaglectl.progress.PAUSE", 0.0)
    return made


def test_a_notebook_has_one_line_that_ends_empty(display: Display) -> None:
    with notebook_progress() as line:
        assert line is not None
        line(Progress("loading <b>"))
        line(Progress("measuring", 3, 24, "prompts", 90.0))
    assert [data["text/plain"] for data in display.shown] == [
        "",
        "loading <b>",
        "measuring 3 of 24 prompts, about 1.5 min left",
        "",
    ]
    assert display.shown[1]["text/html"] == "<progress></progress> loading &lt;b&gt;"
    assert display.shown[2]["text/html"].startswith('<progress value="3" max="24"></progress> measuring')


def test_a_call_in_a_notebook_shows_its_progress_unless_it_has_a_callback(display: Display) -> None:
    source, target = FIXTURES / "producers/angelslim/ids", FIXTURES / "target"
    steps: list[Progress] = []
    eaglectl.ready(source, target, on_progress=steps.append)
    assert steps and display.shown == []
    eaglectl.ready(source, target)
    assert display.shown[1]["text/plain"] == "reading the files" and display.shown[-1]["text/plain"] == ""


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["Python", "IPython"])
def test_elsewhere_nothing_is_shown(shell: Any, display: Display) -> None:
    sys.modules["IPython"].get_ipython = lambda: shell  # type: ignore[attr-defined]
    with notebook_progress() as line:
        assert line is None
    assert display.shown == []
