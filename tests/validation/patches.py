"""A bad case: the good drafter of tests/builders.py, a patch, and exactly the findings it must give."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.validation.judging import Report
from tests.builders import drafter_folder


@dataclass(frozen=True)
class Patch:
    """Changes to the good drafter: config keys (ABSENT: gone), tensors (None: gone), files (bytes), or a function of the folder.

    `finds` are the rules that must report, each as often as it is listed; `blind` those that must say that they could not look.
    `given` are arguments of eaglectl.validate; a `target` of True is made beside the drafter with `target_config`.
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

    def build(self, parent: Path) -> Path:
        """The patched folder."""
        folder = drafter_folder(parent, config=self.config, tensors=self.tensors)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        if self.also:
            self.also(folder)
        return folder

    def report(self, parent: Path) -> Report:
        """What validate says of the patched folder."""
        given = dict(self.given)
        if self.target_config is not None:
            (parent / "target").mkdir()
            (parent / "target/config.json").write_text(json.dumps(self.target_config))
            given["target"] = str(parent / "target")
        return eaglectl.validate(str(self.build(parent)), **given)


def check(patch: Patch, parent: Path) -> None:
    """Hold validate to a patch: exactly its findings, and its words in one of them."""
    report = patch.report(parent)
    assert sorted(one.rule.id for one in report.findings) == sorted(patch.finds), [
        (one.rule.id, one.hit.message) for one in report.findings
    ]
    if patch.blind is not None:
        assert sorted(one.rule.id for one in report.unlooked) == sorted(patch.blind)
    if patch.says:
        assert any(patch.says in one.hit.message for one in report.findings), [
            one.hit.message for one in report.findings
        ]
