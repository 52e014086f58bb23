"""Chat templates without an end: a target's template is a program, and is given a time and a size."""

import resource
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eaglectl.run import job
from eaglectl.run.job import TemplateLimitError, rendered

pytest.importorskip("jinja2")
pytest.importorskip("transformers")
from transformers.utils.chat_template_utils import _compile_jinja_template

from tests.builders import call
from tests.processor import within
from tests.tiny import TARGET, TINY

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "loops": (LOOPS, "takes more than"),
    "loops that write": (LOOPS.replace("{% endfor %}", "x{% endfor %}", 1), "takes more than"),
    "pieces": ("{% for i in range(99999) %}{{ x * 9999999 }}{% endfor %}", None),
    "a piece": ("{{ x * 99999999999 }}", None),
    "a long text": ("{{ x * 17000000 }}", "writes 17000000 characters"),
    "arithmetic": ("{% set n = x | length + 8 %}{{ n ** 99999999 > 1 }}", "takes more than"),
}


def written(template: str) -> str:
    """What the template writes, in the sandbox that transformers runs it in."""
    return rendered(lambda: _compile_jinja_template(template).render(x="x"))


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SECONDS", 0.5)
    monkeypatch.setattr(job, "MAX_MEMORY", 256 << 20)


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_an_end_is_stopped(name: str) -> None:
    template, words = ENDLESS[name]
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with within(100), pytest.raises((TemplateLimitError, MemoryError), match=words):
        written(template)
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_thread_has_a_deadline_too() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(TemplateLimitError):
        pool.submit(written, LOOPS).result(5)


def test_an_alarm_that_is_taken_is_left_to_its_owner() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        with pytest.raises(TemplateLimitError):
            written(LOOPS)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_template_that_ends_is_rendered_and_leaves_no_thread() -> None:
    assert written("{% for i in range(3) %}{{ i }}{% endfor %}") == "012"
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.mark.slow
def test_the_command_ends_in_words(tmp_path: Path) -> None:
    target = Path(shutil.copytree(TARGET, tmp_path / "target"))
    (target / "chat_template.jinja").write_text(LOOPS)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one two three four", "chat": true}\n' * 3)
    options = ("--prompts", prompts, "--run-in", "reference", "--device", "cpu", "--max-tokens", "4")
    done = call("smoke", TINY / "eagle3", "--target", target, *options)
    assert done.code == 3 and "fails on prompt 1" in done.err and "it takes more than" in done.err
