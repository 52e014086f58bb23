"""smoke in text mode, in every engine that runs anywhere, with each option that changes what is printed."""

from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.builders import call
from tests.servers import METRICS, MODELS, SGLANG
from tests.tiny import TARGET, TINY

pytest.importorskip("torch")

SERVERS: dict[str, dict[str, Any]] = {
    "vLLM server": {
        "/v1/models": MODELS,
        "/v1/completions": servers.ANSWER,
        "/metrics": lambda answers: METRICS.format(
            tokens=20 * answers, drafts=10 * answers, first=6 * answers, second=4 * answers
        ),
    },
    "SGLang server": SGLANG,
}
FEW = '{"prompt": "one two", "set": "a"}\n{"prompt": "three", "set": "b"}\n'
ENOUGH = "one two\nthree\nfour five\nsix\nseven eight\nnine\n"
# what smoke prints first, and its exit code, where it is not that of two prompts, which are too few
VERDICTS = {"thresholds": ("fail", 1), "enough prompts": ("pass", 0)}
CASES: dict[str, tuple[str, ...]] = {
    "nothing more": (),
    "enough prompts": ("--max-tokens", "32"),
    "sampling": ("--temperature", "0.7", "--seed", "3"),
    "depth": ("-k", "2"),
    "thresholds": ("--min-acceptance-length", "9", "--min-position-0", "0.99"),
    "drift on a page": ("--probe", "drift", "--page", "page.html"),
    "sensitivity": ("--probe", "sensitivity"),
    "quiet": ("--quiet",),
    "verbose": ("--verbose",),
}


# what an option prints does not depend on the engine but for the drift, which no server measures
@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        *(("vLLM server", name) for name in ("nothing more", "drift on a page")),
        *(("SGLang server", name) for name in ("nothing more", "thresholds")),
        *(("reference", name) for name in CASES),
    ],
)
def test_smoke_prints_its_report(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, (word, code) = CASES[name], VERDICTS.get(name, ("could not look", 3))
    Path("prompts.jsonl").write_text(ENOUGH if name == "enough prompts" else FEW)
    given = ("--target", TARGET, "--prompts", "prompts.jsonl", "--device", "cpu", "--max-tokens", "20")
    with servers.server(SERVERS.get(engine, {}), []) as url:
        done = call(
            "smoke", TINY / "eagle3", *given, *options, "--engine", url if engine in SERVERS else engine
        )
    assert (done.code, done.out.partition(":")[0]) == (code, word), done.err
    assert ("too few to judge by" in done.out) is (code == 3)
    assert "acceptance length" in done.out and "lossless" in done.out
    assert ("not measured" in done.out) is (engine != "reference" or name == "sampling")
    assert Path("page.html").exists() is ("--page" in options)


def test_against_prints_both(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(FEW)
    given = ("--target", TARGET, "--prompts", tmp_path / "prompts.jsonl", "--max-tokens", "8")
    older = ("--run-in", "reference", "--device", "cpu", "--against", TINY / "eagle3.1")
    done = call("smoke", TINY / "eagle3", *given, *older)
    # 3: two prompts, of two sets, are too few for the drafter, and for the ratio on each set
    assert done.code == 3, done.err
    assert done.out.startswith("could not look: acceptance length ")
    assert "against eagle3.1\n  too few prompts: ratio " in done.out
    assert 'set "a": ratio ' in done.out and 'set "b": ratio ' in done.out
