"""Progress: a bar on a terminal, a line for large amounts elsewhere, nothing with -q."""

import io
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

import eaglectl
from eaglectl import terminal
from eaglectl.files import digests
from eaglectl.operations.diagnosing import STAGES
from eaglectl.progress import Progress, StagedWork, TimedWork, notify, set_notices
from eaglectl.publish import plan as upload_files
from eaglectl.run.answering import TRYING
from eaglectl.terminal import OutputSettings, ProgressBar, say
from tests.builders import STATED, call, drafter_folder
from tests.conftest import FIXTURES

TARGET = FIXTURES / "tiny/target"


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return drafter_folder(tmp_path, card=STATED)


@pytest.fixture
def download(folder: Path, tmp_path: Path) -> Path:
    """The files as `upload` would publish them."""
    path = tmp_path / "download"
    path.mkdir()
    for file in eaglectl.upload(str(folder), "org/drafter", eaglectl.UploadOptions(dry_run=True)).plan.files:
        (path / file.name).write_bytes(bytes(file.content))  # type: ignore[arg-type]
    return path


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


def test_a_terminal_gets_a_bar_that_goes_when_all_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, [hashing(1, 4), hashing(2, 4), hashing(4, 4)])
    assert "hashing" in text and text.endswith("\x1b[2K")


def test_a_bar_ends_with_the_call_where_hashing_stops_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hashing" in shown(monkeypatch, [hashing(1, 4)])


@pytest.mark.parametrize("step", [hashing(4, 4), hashing(0, 0)])
def test_what_is_hashed_in_one_step_needs_no_bar(monkeypatch: pytest.MonkeyPatch, step: Progress) -> None:
    assert shown(monkeypatch, [step]) == ""


def test_a_new_stage_replaces_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Progress("before, k=3", 1, 4, "prompts"), Progress("after, k=3", 1, 5, "prompts")
    text = shown(monkeypatch, [before, after])
    assert text.index("before, k=3") < text.index("1/4") < text.index("after, k=3") < text.index("1/5")


@pytest.mark.parametrize(("unit", "amount"), [("bytes", "2.0/4.0 MB"), ("prompts", "2000000/4000000")])
def test_bytes_are_shown_as_sizes_and_all_else_as_counts(
    monkeypatch: pytest.MonkeyPatch, unit: str, amount: str
) -> None:
    assert amount in shown(monkeypatch, [Progress("work", 2_000_000, 4_000_000, unit)])


def test_work_of_unknown_length_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(OutputSettings(no_color=True), is_on=True) as bar:
        bar(Progress("loading the target"))
        assert bar.bar is not None
    assert "loading" in stream.getvalue()


def test_a_step_without_an_amount_shows_its_time_and_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [Progress("loading the target"), Progress("loading the target")]
    text = shown_alone(monkeypatch, steps)
    assert "loading the target" in text and "0:00:00" in text and "/?" not in text


def test_the_time_left_is_known_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(OutputSettings(no_color=True), is_on=True) as bar:
        bar.clock = lambda: now[0]
        for done, text in [(0, "-:--:--"), (1, "0:00:30"), (2, "0:00:20"), (3, "0:00:10")]:
            bar(Progress("measuring", done, 4, "prompts"))
            assert bar.bar is not None
            bar.bar.refresh()
            assert text in stream.getvalue(), text
            now[0] += 10


def test_a_time_that_was_measured_is_shown_before_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown_alone(monkeypatch, [Progress("calibrating", 0, 9, "prompts", 3725.0)])
    assert re.search(r"0/9 1:02:0[45]", text)


def shown_alone(monkeypatch: pytest.MonkeyPatch, steps: list[Progress]) -> str:
    """What a terminal shows of steps that do not end."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(OutputSettings(no_color=True), is_on=True) as bar:
        for step in steps:
            bar(step)
    return stream.getvalue()


def test_threads_share_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich refuses a second bar on the same console, and two would leave lines behind."""
    started: list[str] = []
    start = ProgressBar._start

    def slow_start(bar: ProgressBar, progress: Progress) -> None:
        started.append(progress.stage)
        time.sleep(0.05)
        start(bar, progress)

    monkeypatch.setattr(ProgressBar, "_start", slow_start)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with ProgressBar(OutputSettings(no_color=True), is_on=True) as bar, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda done: bar(Progress("checkpoints", done, 9, "checkpoints")), range(1, 5)))
    assert started == ["checkpoints"]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (Progress("hashing", 1, 2_000_000_000, "bytes"), "hashing 2.0 GB\n"),
        (Progress("hashing", 1, 499_999_999, "bytes"), ""),
        (Progress("prompts", 1, 2_000_000_000, "prompts"), ""),
    ],
)
def test_without_a_terminal_only_large_bytes_get_a_line(
    step: Progress, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar(OutputSettings(), is_on=True) as bar:
        bar(step)
        bar(step)
    assert capsys.readouterr().err == line


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


def test_a_terminal_has_the_time_in_its_bar_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "takes about" not in shown_alone(monkeypatch, [Progress("measuring", 1, 9, "prompts", 600.0)])


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


# how many times as slow as ours a machine is, and what its later prompts take beside the first ones
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


def test_a_quiet_call_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, [hashing(1, 4), hashing(4, 4)], is_on=False) == ""


@pytest.mark.parametrize("command", ["upload", "verify"])
def test_elsewhere_large_files_get_one_line(
    command: str, folder: Path, download: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (folder, "org/drafter", "--dry-run") if command == "upload" else (download,)
    few = call(command, *arguments)
    monkeypatch.setattr(terminal, "LARGE", 1000)
    many = call(command, *arguments)
    quiet = call("-q", command, *arguments)
    json = call(command, *arguments, "--json")
    assert (few.code, many.code, quiet.code, json.code) == (0, 0, 0, 0)
    assert "hashing" not in few.err and many.err.count("hashing 0.0 GB") == 1 and quiet.err == ""
    assert many.out == few.out
    assert json.document["schema"] == f"eaglectl/{command}/1"


def test_a_large_file_is_told_in_pieces(
    folder: Path, download: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Progress] = []
    monkeypatch.setattr(upload_files, "MAX_KEPT", 1000)
    monkeypatch.setattr(upload_files, "BLOCK", 1000)
    monkeypatch.setattr(digests, "BLOCK", 1000)
    dry = eaglectl.UploadOptions(dry_run=True)
    for call_command in (
        lambda: eaglectl.upload(str(folder), "org/drafter", dry, on_progress=reports.append),
        lambda: eaglectl.verify(str(download), on_progress=reports.append),
    ):
        reports.clear()
        call_command()
        counted = [progress for progress in reports if progress.unit == "bytes"]
        assert {progress.stage for progress in counted} == {"hashing"}
        total = counted[-1].total
        assert counted[-1].done == total and len(counted) > 10
        heard = [(progress.done, progress.total) for progress in counted]
        steps = [after - before for (before, _), (after, _) in pairwise(heard)]
        assert all(0 < step <= 4000 for step in steps)


def test_the_weights_of_a_target_are_counted_while_it_loads() -> None:
    pytest.importorskip("transformers", "5")
    from eaglectl.reference.target import load_target

    seen: list[Progress] = []
    load_target(TARGET, (1,), dtype="float32", device="cpu", on_progress=seen.append)
    assert {(step.stage, step.unit) for step in seen} == {("loading the target", "weights")}
    assert [step.done for step in seen] == list(range(len(seen)))
    assert seen[-1].done == seen[-1].total
