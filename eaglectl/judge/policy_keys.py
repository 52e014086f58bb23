"""The keys of eaglectl.toml, each declared once: checks, its schema and docs/configuration.md follow."""

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from eaglectl.formats.format import Answers
from eaglectl.judge.rule import SEVERITIES
from eaglectl.options import TARGET, options_of

Kind = Literal["text", "texts", "flag", "layers", "date", "choice", "table", "tables"]
# what is written for a value of each kind, and how a message names it
EXPECTED: Mapping[Kind, str] = {
    "text": "a text",
    "texts": "a list of texts",
    "flag": "true or false",
    "layers": "whole numbers, as [2, 16, 29]",
    "date": "a date without quotes, as 2027-01-31",
    "table": "a table",
}


def _is_list(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_item, value))


# whether a value is of a kind; no name has a null byte
CHECKS: Mapping[Kind, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str) and "\0" not in value,
    "texts": lambda value: _is_list(value, lambda item: isinstance(item, str)),
    "flag": lambda value: isinstance(value, bool),
    "layers": lambda value: _is_list(value, lambda item: type(item) is int and item >= 0) and bool(value),
    "date": lambda value: isinstance(value, datetime.date) and not isinstance(value, datetime.datetime),
    "table": lambda value: isinstance(value, dict),
    "tables": lambda value: _is_list(value, lambda item: isinstance(item, dict)),
}


class Key(Struct, frozen=True):
    """A key: what it is for, an example of its value, and the kind of it.

    A choice is one of `choices`. `keys` are those of a table; `each` is what every key of a table holds whose
    keys are free. `needed`: an entry without it is refused.
    """

    help: str
    kind: Kind
    example: str = ""
    choices: tuple[str, ...] = ()
    keys: Mapping[str, "Key"] = field(default_factory=dict)
    each: "Key | None" = None
    is_needed: bool = False

    @property
    def expected(self) -> str:
        """What a value is, in words."""
        return f"one of {', '.join(self.choices)}" if self.kind == "choice" else EXPECTED[self.kind]

    @property
    def empty(self) -> Any:
        """What an absent key is."""
        return {"text": "", "flag": False, "texts": [], "table": {}, "tables": []}.get(self.kind)

    def takes(self, value: Any) -> bool:
        """Whether a value is of its kind."""
        if self.kind == "choice":
            return value in self.choices
        return CHECKS[self.kind](value)


def _defaults() -> Mapping[str, Key]:
    """The keys of [defaults], from the options whose values they are."""
    answers = {
        option.name: Key(option.option.help, "text", choices=option.option.choices)
        for option in options_of(Answers).values()
    }
    return {
        "target": Key(TARGET.help + " A path begins at this file.", "text", '"models/my-target"'),
        "aux-layers": Key(answers["aux_layers"].help, "layers", "[2, 16, 29]"),
        "aux-convention": Key(
            answers["aux_convention"].help, "choice", '"boundary"', answers["aux_convention"].choices
        ),
        "source-semantics": Key(
            "Facts about the trainer that a file cannot state.",
            "table",
            '{ specforge = "pre-879" }',
            each=Key("", "text"),
        ),
        "assume": Key(answers["assume"].help, "flag", "true"),
    }


VERIFY: Mapping[str, Key] = {
    "require-record": Key("Whether a download without eaglectl.json fails.", "flag", "true"),
}
ALLOW: Mapping[str, Key] = {
    "architectures": Key("Its classes; others are found (EGL120).", "texts", '["LlamaForCausalLMEagle3"]'),
    "dtypes": Key("Of its tensors; others are found.", "texts", '["BF16"]'),
    "licences": Key("In its card; others are found (EGL907).", "texts", '["apache-2.0", "mit"]'),
    "files": Key("Beside those that are known.", "texts", '["*.log"]'),
    "quantisation": Key("Methods; others are found (EGL806), and all for an empty list.", "texts", '["fp8"]'),
    "base-models": Key("In its card; others are found (EGL908).", "texts", '["my-org/*"]'),
}
SUPPRESSION: Mapping[str, Key] = {
    "rule": Key("A rule's id or name.", "text", '"EGL701"', is_needed=True),
    "reason": Key("Why its findings may pass.", "text", '"checked by another job"', is_needed=True),
    "until": Key("The last day on which they may.", "date", "2027-01-31"),
    "where": Key("Only places that begin with this text.", "text", '"config.json:"'),
}
KEYS: Mapping[str, Key] = {
    "engines": Key("What is judged for where no --engine names any.", "texts", '["vllm>=0.22", "sglang"]'),
    "required": Key(
        "Rules that must have looked: without it a checkpoint does not pass. Ids, names or families.",
        "texts",
        '["EGL003"]',
    ),
    "forbidden": Key("Rules whose findings are errors, whatever their severity.", "texts", '["EGL005"]'),
    "severities": Key(
        "The severity of a rule's findings, or off: it does not run.",
        "table",
        '{ unknown-file = "error", EGL705 = "off" }',
        each=Key("", "choice", choices=(*SEVERITIES, "off")),
    ),
    "fail-on": Key("The lowest severity that fails.", "choice", '"warning"', (*SEVERITIES, "never")),
    "allow": Key(
        "Lists of patterns, as of file names, of what a checkpoint may have.",
        "table",
        keys=ALLOW,
    ),
    "suppress": Key("Findings that may pass, each with the reason.", "tables", keys=SUPPRESSION),
    "verify": Key("What `verify` requires of a download.", "table", keys=VERIFY),
    "defaults": Key("What commands take where their command line says nothing.", "table", keys=_defaults()),
}
# the file, as a table
POLICY = Key("", "table", keys=KEYS)
