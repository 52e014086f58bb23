"""Every command and every engine in text mode, with each option that changes what is printed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglectl.cli import run
from tests import servers
from tests.servers import METRICS
from tests.tiny import TARGET, TINY

EAGLE3, EAGLE31 = str(TINY / "eagle3"), str(TINY / "eagle3.1")


class VllmPages(dict[str, Any]):
    """The pages of a vLLM server, whose counters grow with each answer."""

    answers = 0

    def get(self, path: str, default: Any = None) -> Any:
        """What the server answers at `path`."""
        if path == "/v1/completions":
            self.answers += 1
            return servers.ANSWER
        if path == "/metrics":
            done = self.answers
            return METRICS.format(tokens=20 * done, drafts=10 * done, first=6 * done, second=4 * done)
        return {"/v1/models": servers.MODELS}.get(path, default)


@pytest.fixture(scope="module", params=["reference", "vLLM server", "SGLang server"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The value of --engine: each engine that runs on any machine."""
    if request.param == "reference":
        pytest.importorskip("torch")
        yield "reference"
        return
    pages = VllmPages() if request.param == "vLLM server" else servers.SGLANG
    with servers.server(pages, []) as url:
        yield url


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one two", "set": "a"}\n{"prompt": "three", "set": "b"}\n', encoding="utf-8")
    return path


# what smoke prints first, and its exit code, where it is not that of two prompts, which are too few
VERDICTS = {"thresholds": ("fail", 1), "enough prompts": ("pass", 0)}
SMOKE_OPTIONS: dict[str, list[str]] = {
    "nothing more": [],
    "enough prompts": ["--prompts", "ENOUGH", "--max-tokens", "32"],
    "a page": ["--page", "PAGE"],
    "sampling": ["--temperature", "0.7", "--seed", "3"],
    "depth": ["-k", "2"],
    "thresholds": ["--min-acceptance-length", "9", "--min-position-0", "0.99"],
    "drift": ["--probe", "drift"],
    "drift on a page": ["--probe", "drift", "--page", "PAGE"],
    "sensitivity": ["--probe", "sensitivity"],
    "quiet": ["--quiet"],
    "verbose": ["--verbose"],
}


@pytest.mark.parametrize("name", SMOKE_OPTIONS)
def test_smoke_prints_its_report(
    name: str, engine: str, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, enough = tmp_path / "page.html", tmp_path / "enough.txt"
    enough.write_text("one two\nthree\nfour five\nsix\nseven eight\nnine\n", encoding="utf-8")
    places = {"PAGE": str(page), "ENOUGH": str(enough)}
    options = [places.get(option, option) for option in SMOKE_OPTIONS[name]]
    arguments = ["smoke", EAGLE3, "--target", str(TARGET), "--prompts", str(prompts), "--engine", engine]
    code = run([*arguments, "--max-tokens", "20", "--device", "cpu", *options])
    printed = capsys.readouterr()
    word, expected = VERDICTS.get(name, ("could-not-look", 3))
    assert (code, printed.out.split()[0]) == (expected, word), printed.err
    assert ("too few to judge by" in printed.out) is (code == 3)
    assert "acceptance length" in printed.out
    assert "lossless" in printed.out
    assert ("not measured" in printed.out) is (engine != "reference" or name == "sampling")
    assert page.exists() is ("PAGE" in SMOKE_OPTIONS[name])


def test_against_prints_both(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    arguments = ["smoke", EAGLE3, "--target", str(TARGET), "--prompts", str(prompts), "--max-tokens", "8"]
    code = run([*arguments, "--run-in", "reference", "--device", "cpu", "--against", EAGLE31])
    printed = capsys.readouterr()
    # 3: two prompts, of two sets, are too few for the drafter, and for the ratio on each set
    assert code == 3, printed.err
    assert printed.out.startswith("could-not-look  acceptance length ")
    assert "against eagle3.1\n  too few prompts: ratio " in printed.out
    assert 'set "a": ratio ' in printed.out and 'set "b": ratio ' in printed.out


def test_plain_decoding_that_was_not_run_is_equal_to_nothing(prompts: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = servers.smoke(tmp_path, servers.SGLANG)
    assert report.run.equal_outputs is None
    assert report.is_lossless is None


COMMANDS: dict[str, list[str]] = {
    "inspect": ["inspect", EAGLE3],
    "inspect tensors": ["inspect", EAGLE3, "--tensors"],
    "inspect target": ["inspect", EAGLE3, "--target", str(TARGET)],
    "inspect engine": ["inspect", EAGLE3, "--engine", "vllm"],
    "inspect aux layers": ["inspect", EAGLE3, "--aux-layers", "2,4,5"],
    "inspect page": ["inspect", EAGLE3, "--page", "PAGE"],
    "inspect two": ["inspect", EAGLE3, EAGLE31],
    "inspect two page": ["inspect", EAGLE3, EAGLE31, "--page", "PAGE"],
    "inspect verbose": ["inspect", EAGLE3, "--verbose"],
    "convert plan": ["convert", EAGLE3, "-o", "OUT", "--dry-run"],
    "convert": ["convert", EAGLE3, "-o", "OUT"],
    "convert quiet": ["convert", EAGLE3, "-o", "OUT", "--quiet"],
    "convert verbose": ["convert", EAGLE3, "-o", "OUT", "--verbose"],
    "convert dtype": ["convert", EAGLE3, "-o", "OUT", "--dtype", "float32"],
    "convert shards": ["convert", EAGLE3, "-o", "OUT", "--max-shard-size", "200KB"],
    "convert layout": ["convert", EAGLE3, "-o", "OUT", "--for", "speculators", "--target-name", "a/b"],
    "convert init only": ["convert", EAGLE3, "-o", "OUT", "--to", "3.1", "--init-only"],
    "convert counts": ["convert", EAGLE3, "-o", "OUT", "--draft-vocab", "8", "--token-counts", "COUNTS"],
    "ready": ["ready", EAGLE3],
    "ready engine": ["ready", EAGLE3, "--engine", "sglang"],
    "validate": ["validate", EAGLE3],
    "validate target": ["validate", EAGLE3, "--target", str(TARGET)],
    "validate engine": ["validate", EAGLE3, "--engine", "sglang"],
    "validate headers": ["validate", EAGLE3, "--headers-only"],
    "validate select": ["validate", EAGLE3, "--select", "EGL0", "--ignore", "EGL005"],
    "validate fail on": ["validate", EAGLE3, "--fail-on", "note"],
    "validate policy": ["validate", EAGLE3, "--policy", "POLICY"],
    "validate page": ["validate", EAGLE3, "--page", "PAGE"],
    "validate two": ["validate", EAGLE3, EAGLE31, "--quiet"],
    "validate verbose": ["validate", EAGLE3, "--verbose"],
    **{
        f"validate {name}": ["validate", EAGLE3, "--format", name]
        for name in ("text", "markdown", "github", "junit", "sarif", "json")
    },
    "diff": ["diff", EAGLE3, EAGLE31],
    "diff itself": ["diff", EAGLE3, EAGLE3],
    "diff headers": ["diff", EAGLE3, EAGLE31, "--headers-only"],
    "diff page": ["diff", EAGLE3, EAGLE31, "--page", "PAGE"],
    "verify": ["verify", EAGLE3],
    "a rule": ["rules", "EGL101"],
    "rules": ["rules"],
    "engines": ["engines"],
    "calibrate": ["calibrate", EAGLE3, "--target", str(TARGET), "--prompts", "PROMPTS", "-o", "OUT"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_result(
    name: str, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "calibrate":
        pytest.importorskip("torch")
    (tmp_path / "policy.toml").write_text("[severities]\nEGL005 = 'warning'\n", encoding="utf-8")
    (tmp_path / "counts.json").write_text(json.dumps([1] * 100), encoding="utf-8")
    places = {
        "OUT": tmp_path / "out",
        "PAGE": tmp_path / "page.html",
        "PROMPTS": prompts,
        "POLICY": tmp_path / "policy.toml",
        "COUNTS": tmp_path / "counts.json",
    }
    code = run([str(places.get(argument, argument)) for argument in COMMANDS[name]])
    printed = capsys.readouterr()
    # 3 where a folder of the fixtures lacks what is looked at: then the reason is a sentence
    assert code in (0, 1) or (code == 3 and printed.err.startswith("eaglectl: ")), printed.err
    assert "Traceback" not in printed.err
    assert places["PAGE"].exists() is ("PAGE" in COMMANDS[name])


def test_every_command_is_here_or_has_its_own_test(capsys: pytest.CaptureFixture[str]) -> None:
    from eaglectl.cli.commands import COMMANDS as every

    here = {arguments[0] for arguments in COMMANDS.values()} | {"smoke"}
    # test_upload.py prints every plan, test_diagnose.py runs diagnose
    own = {"upload", "diagnose"}
    assert set(every) - here - {"engines"} == own
