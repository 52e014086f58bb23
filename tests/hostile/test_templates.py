"""Chat templates without an end: a target's template is a program, and is given a time and a size."""

import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eaglectl.run import tokens
from eaglectl.run.tokens import TemplateLimitError, rendered

jinja2 = pytest.importorskip("jinja2")
pytest.importorskip("transformers")
from transformers.utils.chat_template_utils import _compile_jinja_template  # noqa: E402

from tests.builders import call  # noqa: E402
from tests.tiny import TARGET, TINY  # noqa: E402

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "loops": (LOOPS, "takes more than"),
    "loops that write": (LOOPS.replace("{% endfor %}", "x{% endfor %}", 1), "takes more than"),
    "pieces": ("{% for i in range(99999) %}{{ x * 9999999 }}{% endfor %}", None),
    "a piece": ("{{ x * 99999999999 }}", None),
    "a long text": ("{{ x * 17000000 }}", "writes 17000000 characters"),
}


def written(template: str) -> str:
    """What the template writes, in the sandbox that transformers runs it in."""
    return rendered(lambda: _compile_jinja_template(template).render(x="x"))


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_an_end_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template, words = ENDLESS[name]
    monkeypatch.setattr(tokens, "SECONDS", 0.5)
    monkeypatch.setattr(tokens, "MAX_MEMORY", 256 << 20)
    limits, start = resource.getrlimit(resource.RLIMIT_AS), time.monotonic()
    with pytest.raises((TemplateLimitError, MemoryError), match=words):
        written(template)
    assert time.monotonic() - start < 5
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_arithmetic_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(TemplateLimitError):
        written("{% set n = x | length + 8 %}{{ n ** 99999999 > 1 }}")
    assert time.monotonic() - start < 5
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.mark.parametrize("is_alarm_taken", [False, True])
def test_a_thread_and_a_taken_alarm_have_a_deadline_too(
    monkeypatch: pytest.MonkeyPatch, is_alarm_taken: bool
) -> None:
    monkeypatch.setattr(tokens, "SECONDS", 0.5)

    def outcome() -> BaseException | None:
        try:
            written(LOOPS)
        except TemplateLimitError as error:
            return error
        return None

    if not is_alarm_taken:
        with ThreadPoolExecutor(1) as pool:
            assert isinstance(pool.submit(outcome).result(5), TemplateLimitError)
        return
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        assert isinstance(outcome(), TemplateLimitError)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_template_that_ends_is_rendered_and_leaves_no_thread() -> None:
    assert written("{% for i in range(3) %}{{ i }}{% endfor %}") == "012"
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.mark.slow
def test_the_command_ends_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SECONDS", 1.0)
    target = tmp_path / "target"
    target.mkdir()
    for path in TARGET.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    (target / "chat_template.jinja").write_text(LOOPS)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one two three four", "chat": true}\n' * 3)
    options = ("--prompts", prompts, "--run-in", "reference", "--device", "cpu", "--max-tokens", "4")
    done = call("smoke", TINY / "eagle3", "--target", target, *options)
    assert done.code == 3 and "fails on prompt 1" in done.err and "it takes more than" in done.err


def test_code_can_be_traced_after_a_template_was_rendered() -> None:
    code = (
        "import sys; from eaglectl.run.tokens import rendered\n"
        "def called(): return 'x'\n"
        "rendered(called); trace = lambda *given: trace; sys.settrace(trace); called(); sys.settrace(None)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=True).returncode == 0
