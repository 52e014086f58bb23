"""A bad case: the good drafter of tests/builders.py, a patch, and exactly the findings it must give."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.judge.judgement import Report
from tests.builders import ABSENT, drafter_folder
from tests.conftest import FIXTURES


@dataclass(frozen=True)
class Patch:
    """Changes to the good drafter, and the findings that they must give.

    `config` sets keys (ABSENT removes one), `tensors` and `files` add (None removes a tensor), `also` changes
    the folder. `fixture` names a folder of fixtures/producers to change in place of the good drafter. `finds`
    are the rules that must report, each as often as it stands there, and `says` is text of one of their
    messages; `blind` are the rules that must report that they could not look, and `says` is of their reasons
    where none reports. `given` are options of validate, which judges for no engine but those among them;
    `target_config` makes a target beside the drafter.
    """

    why: str
    finds: str
    config: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    also: Callable[[Path], None] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    target_config: Mapping[str, Any] | None = None
    blind: tuple[str, ...] | None = None
    fixture: str = ""

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that must report."""
        return tuple(self.finds.split())

    def build(self, parent: Path) -> Path:
        """The changed folder."""
        if self.fixture:
            folder = self._copy(parent / "drafter")
        else:
            folder = drafter_folder(parent, config=self.config, tensors=self.tensors)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        if self.also:
            self.also(folder)
        return folder

    def _copy(self, folder: Path) -> Path:
        assert not self.tensors, "a fixture keeps its tensors"
        shutil.copytree(FIXTURES / "producers" / self.fixture, folder)
        config_json = folder / "config.json"
        config = json.loads(config_json.read_text()) | dict(self.config)
        config_json.write_text(json.dumps({k: v for k, v in config.items() if v is not ABSENT}))
        return folder

    def report(self, parent: Path) -> Report:
        """The report of validate on the changed folder."""
        given = {"has_engines": "engines" in self.given, **self.given}
        if self.target_config is not None:
            (parent / "target").mkdir()
            (parent / "target/config.json").write_text(json.dumps(self.target_config))
            given["target"] = str(parent / "target")
        return eaglectl.validate(self.build(parent), **given)


def only(*rules: str) -> dict[str, list[str]]:
    """The option of validate that takes these rules alone."""
    return {"select": [*rules]}


def without(*rules: str) -> dict[str, list[str]]:
    """The option of validate that leaves these rules out."""
    return {"ignore": [*rules]}


def store(why: str, finds: str, tensors: Mapping[str, Any], says: str = "", **more: Any) -> Patch:
    """A patch of tensors alone."""
    return Patch(why, finds, says=says, tensors=tensors, **more)


def add(why: str, finds: str, files: Mapping[str, bytes], says: str = "", **more: Any) -> Patch:
    """A patch of other files alone."""
    return Patch(why, finds, says=says, files=files, **more)


def aim(why: str, finds: str, target_config: Mapping[str, Any], says: str = "", **more: Any) -> Patch:
    """The good drafter beside this target."""
    return Patch(why, finds, says=says, target_config=target_config, **more)


def check(patch: Patch, parent: Path) -> None:
    """Assert that validate reports exactly the findings of a patch."""
    report = patch.report(parent)
    messages = [(one.rule.id, one.match.message) for one in report.findings]
    assert sorted(rule for rule, _ in messages) == sorted(patch.rules), messages
    if patch.blind is not None:
        assert sorted(one.rule.id for one in report.unchecked) == sorted(patch.blind)
    said = [message for _, message in messages] or [one.reason for one in report.unchecked]
    assert not patch.says or any(patch.says in text for text in said), said


def exact(patches: Iterable[Patch]) -> Callable[[Patch, Path], None]:
    """The test that each of these gives exactly its findings; the first patch of each rule is fast."""
    cases, shown = [], set[str]()
    for patch in patches:
        marks = [pytest.mark.slow] if patch.rules and shown.issuperset(patch.rules) else []
        cases.append(pytest.param(patch, id=patch.why, marks=marks))
        shown.update(patch.rules)

    @pytest.mark.parametrize("patch", cases)
    def test_exactly(patch: Patch, tmp_path: Path) -> None:
        check(patch, tmp_path)

    return test_exactly
