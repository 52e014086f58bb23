"""No command ends with a code but 0 without its reason, and its first word is of what happened."""

import json
from pathlib import Path

import pytest
import yaml

import eaglectl
from eaglectl.errors import RefusedError
from tests.builders import Outcome, call, drafter_folder
from tests.conftest import FIXTURES

PRODUCERS = FIXTURES / "producers"
FOLDERS = sorted(path.parent for path in PRODUCERS.glob("*/*/config.json"))
HOOK = yaml.safe_load((FIXTURES.parent / ".pre-commit-hooks.yaml").read_text())[0]["entry"].split()[1:]
UNKNOWN_RELEASE = ("--engine", "vllm==99")


def reasons(outcome: Outcome) -> list[str]:
    """The lines between the first one and the totals, and those of stderr."""
    return [*outcome.out.splitlines()[1:-1], *outcome.err.splitlines()]


@pytest.mark.fast(6)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_quiet_verdict_has_its_reason(folder: Path) -> None:
    for given in (
        HOOK,
        ("-q", "validate"),
        ("-q", "-q", "validate", "--no-engines", "--headers-only"),
        ("-q", "validate", "--engine", "atom", "--headers-only"),
    ):
        done = call(*given, folder)
        assert done.code == 0 or reasons(done), (given, done)


@pytest.mark.parametrize(
    "given", [UNKNOWN_RELEASE, ("--target", "gone"), ("--policy", "old.toml")], ids=" ".join
)
def test_reports_are_there_where_no_rule_could_run(
    given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.toml").write_text('engines = ["vllm==99"]\n')
    folder, names = drafter_folder(tmp_path), ("sarif", "junit", "json", "github", "markdown")
    outputs = [word for name in names for word in ("--output", f"{name}=report.{name}")]
    done = call("validate", folder, *given, *outputs, "-q")
    assert done.code == 3 and done.err.startswith("eaglectl: ") and done.out == ""
    assert json.loads(Path("report.json").read_text())["verdict"] == "could-not-look"
    reason = done.err.removeprefix("eaglectl: ").split(";")[0].strip()
    (run,) = json.loads(Path("report.sarif").read_text())["runs"]
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["level"] == "error" and reason in notification["message"]["text"]
    assert all("could" in Path(f"report.{name}").read_text() for name in names[1:])
    assert "could not look" in call("validate", folder, *given, "--format", "github").out


def test_what_no_rule_reports_of_an_engine_is_in_every_format(tmp_path: Path) -> None:
    text = "captures boundaries"
    source = PRODUCERS / "torchspec/mla"
    for name in ("sarif", "junit", "github", "markdown", "text"):
        done = call("validate", source, "--engine", "atom", "--format", name)
        assert done.code == 1 and text in done.out, name


def test_an_upload_is_refused_with_the_reason_where_no_rule_reports_it(tmp_path: Path) -> None:
    source = PRODUCERS / "torchspec/mla"
    with pytest.raises(RefusedError, match=r"must not be published: .*captures boundaries"):
        eaglectl.upload(source, "org/name", dry_run=True, engines=["atom"])


def test_a_plan_is_planned_and_not_done(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    planned = call("convert", source, "--dry-run")
    assert planned.code == 0 and planned.out.startswith("planned: nothing was written")
    assert call("convert", source, "-o", tmp_path / "out").out.startswith("done: wrote ")


def test_a_key_of_a_fact_that_differs_stands_under_that_heading_alone(tmp_path: Path) -> None:
    keys = {"rms_norm_eps": 0.5, "norm_before_residual": True, "initializer_range": 0.5}
    pair = drafter_folder(tmp_path, "a"), drafter_folder(tmp_path, "b", config=keys)
    for words in ((), ("-v",)):
        done = call(*words, "diff", *pair)
        assert done.code == 1
        meaning, _, spelled = done.out.partition("Written differently")
        assert "initializer_range" in spelled
        for key in ("rms_norm_eps", "norm_before_residual"):
            assert key in meaning and key not in spelled
