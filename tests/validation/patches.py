"""A bad case: the good drafter of tests/builders.py, a patch, and exactly the findings it must give."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.judge.judgement import Report
from tests.builders import ABSENT, drafter_folder
from tests.conftest import FIXTURES


@dataclass(frozen=True)
class Patch:
    """Changes to the good drafter, and the findings that they must give.

    `config` sets keys (ABSENT removes one), `tensors` and `files` add (None removes a tensor), `also` changes
    the folder. `fixture` names a folder of fixtures/producers to change in place of the good drafter. `finds`
    are the rules that must report, each as often as it is listed, and `says` is text of one of their
    messages; `blind` are the rules that must report that they could not look. `given` are options of
    validate, which judges for no engine but those among them; `target_config` makes a target beside the
    drafter.
    """

    why: str
    finds: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    also: Callable[[Path], None] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    target_config: Mapping[str, Any] | None = None
    blind: tuple[str, ...] | None = None
    says: str = ""
    fixture: str = ""

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
        config = json.loads((folder / "config.json").read_text()) | dict(self.config)
        stated = {key: value for key, value in config.items() if value is not ABSENT}
        (folder / "config.json").write_text(json.dumps(stated))
        return folder

    def report(self, parent: Path) -> Report:
        """The report of validate on the changed folder."""
        given = {"has_engines": "engines" in self.given, **self.given}
        if self.target_config is not None:
            (parent / "target").mkdir()
            (parent / "target/config.json").write_text(json.dumps(self.target_config))
            given["target"] = str(parent / "target")
        return eaglectl.validate(str(self.build(parent)), eaglectl.ValidateOptions(**given))


def check(patch: Patch, parent: Path) -> None:
    """Assert that validate reports exactly the findings of a patch."""
    report = patch.report(parent)
    assert sorted(one.rule.id for one in report.findings) == sorted(patch.finds), [
        (one.rule.id, one.match.message) for one in report.findings
    ]
    if patch.blind is not None:
        assert sorted(one.rule.id for one in report.unchecked) == sorted(patch.blind)
    if patch.says:
        assert any(patch.says in one.match.message for one in report.findings), [
            one.match.message for one in report.findings
        ]
