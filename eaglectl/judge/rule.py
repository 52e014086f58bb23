"""A rule: its id, name, severity and documentation, the engine releases it concerns, and its check.

Also what a rule finds, all rules by id, name and family, and what a team's policy makes of them, which is
read from eaglectl.toml, or from [tool.eaglectl] of a pyproject.toml.
"""

import datetime
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.structs import asdict, replace

from eaglectl.drafter.drafter import Convention
from eaglectl.engines.registry import read_engine
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.files import current_folder, read_small_file
from eaglectl.files.layout import given_folders, is_foreign
from eaglectl.formats.commands import Complete, Fix, Remedy, read_fix
from eaglectl.formats.format import Answers
from eaglectl.options import TARGET, StrPath, options_of

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
# by the hundreds of a rule's id
FAMILIES = {
    0: "files",
    1: "config",
    2: "weights",
    3: "draft vocabulary",
    4: "aux layers",
    5: "norms",
    6: "rope",
    7: "target",
    8: "quantisation",
    9: "release",
    10: "serving: vLLM",
    11: "serving: SGLang",
    12: "serving: llama.cpp",
    20: "serving: vLLM",  # after EGL1099
}


NO_TARGET = "no target was given; pass --target"


class CannotLook(UnreadableError):
    """A rule cannot check: no target was given, the weights may not be read, or the files are unreadable."""


class Match(Struct, frozen=True):
    """One place where a rule does not hold: "config.json:KEY", "tensor:NAME", a file name, or "" for the
    checkpoint.

    `fix` replaces the rule's own fix as text, `repair` as text with commands. `engines` are the releases
    concerned, like "vllm==0.32.0". `options` are the options in the message that settle it; `why` is the
    message without them. `severity` replaces the rule's, unless the policy states one for the rule.
    `stops_engine`: an engine ends at its start, and serves nothing.
    """

    message: str
    where: str = ""
    fix: str = ""
    engines: tuple[str, ...] = ()
    repair: Fix = Fix()
    options: tuple[str, ...] = ()
    why: str = ""
    key: str = ""
    severity: Severity | None = None
    stops_engine: bool = False


# takes the Subject; its module imports this one
Check = Callable[[Any], Iterator[Match]]


class Rule(Struct, frozen=True):
    """One rule; `summary`, `why` and `fix` document it. `engines` is PEP 508 text, empty for all engines.

    `reported_by` are ids of rules that report the same defect for every engine: only one of two such findings
    is reported. `repair` is the fix with the commands that it runs.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    check: Check
    engines: str = ""
    reported_by: tuple[str, ...] = ()
    repair: Fix = Fix()

    @property
    def number(self) -> int:
        """The number of the id, which orders rules."""
        return int(self.id.removeprefix("EGL"))

    @property
    def family(self) -> str:
        """The family that the hundreds of the id name."""
        return FAMILIES[self.number // 100]


def rule(id: str, name: str, severity: Severity, remedy: Remedy = "") -> Callable[[Check], Rule]:
    """Make a rule of a function that yields matches; its docstring is the rule's documentation."""
    return lambda check: make_rule(
        id, name, severity, check, check.__doc__ or _documentation(check, name), remedy
    )


def _documentation(check: Check, name: str) -> str:
    # PYTHONOPTIMIZE=2 drops docstrings; without the source too (.pyc alone) a rule has only its name
    text = _docstrings(check.__globals__["__loader__"], check.__module__)
    without = f"{name}.\n\nThis installation has no documentation of rules.\n\nFix: see docs/rules.md."
    return text.get(check.__name__, "") if text else without


@cache
def _docstrings(loader: Any, module: str) -> Mapping[str, str]:
    import ast  # late: needed only without docstrings

    nodes = ast.parse(loader.get_source(module) or "").body
    return {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef)}


def note_rule(
    id: str,
    name: str,
    severity: Severity,
    documentation: str,
    remedy: Remedy = "",
    *,
    is_fault: bool = False,
    needs: str = "",
) -> Rule:
    """Make a rule of the reader's reports on the topic that the rule's name is.

    With `is_fault`, an open question is a finding. `needs` is the field of Target that the rule needs.
    """

    def check(subject: Any) -> Iterator[Match]:
        yield from subject.reported(name, is_fault=is_fault)
        if needs and getattr(subject.target.known, needs) is None:
            raise CannotLook(NO_TARGET)

    return make_rule(id, name, severity, check, documentation, remedy)


def make_rule(
    id: str, name: str, severity: Severity, check: Check, documentation: str, remedy: Remedy = ""
) -> Rule:
    """Make a rule with its documentation.

    The documentation has one sentence that states what must hold, a paragraph on why, and a last paragraph
    that begins with `Fix:`. `remedy` is the kind of repair: without it, no command in the documentation is
    run. Raises TypeError if one of the three parts is missing.
    """
    parts = [" ".join(part.split()) for part in documentation.split("\n\n")]
    if len(parts) < 3 or not parts[-1].startswith("Fix: "):
        raise TypeError(
            f"{id}: the docstring needs a sentence, a paragraph on why, and one that begins with Fix:"
        )
    fix = parts[-1].removeprefix("Fix: ")
    why = " ".join(parts[1:-1])
    return Rule(id, name, severity, parts[0], why, fix, check, repair=read_fix(fix, remedy))


class Finding(Struct, frozen=True):
    """A match with its rule, at the severity that the policy gives the rule."""

    rule: Rule
    severity: Severity
    match: Match

    def __repr__(self) -> str:
        return f"<Finding: {self.severity} {self.rule.id} {self.rule.name}: {self.match.message}>"

    @property
    def level(self) -> int:
        """The severity as a number, the highest for errors."""
        return SEVERITIES.index(self.severity)

    def fails(self, fail_on: Severity | None) -> bool:
        """Whether it fails a checkpoint if findings of `fail_on` and above do; with None, nothing fails."""
        return fail_on is not None and self.level >= SEVERITIES.index(fail_on)

    @property
    def fix(self) -> str:
        """What to do, as text: the match's own fix, else the rule's."""
        return self.repair.text

    @property
    def repair(self) -> Fix:
        """The fix with the commands in it."""
        match_fix = self.match.repair or read_fix(self.match.fix)
        return match_fix or self.rule.repair or read_fix(self.rule.fix)

    def completed(self, complete: Complete) -> "Finding":
        """Complete the commands in the message and the fix."""
        message, repair = complete(self.match.message), self.repair.completed(complete)
        return replace(self, match=replace(self.match, message=message, repair=repair))


class Suppression(Struct, frozen=True, forbid_unknown_fields=True):
    """Findings that may pass, each with the reason."""

    rule: Annotated[str, Meta(description="A rule's id or name.")]
    reason: Annotated[str, Meta(description="Why its findings may pass.", pattern=r"\S")]
    until: Annotated[datetime.date | None, Meta(description="The last day on which they may.")] = None
    where: Annotated[str, Meta(description="Only places that begin with this text.")] = ""

    def covers(self, finding: Finding) -> bool:
        """Whether it allows a finding."""
        return self.rule in (finding.rule.id, finding.rule.name) and finding.match.where.startswith(
            self.where
        )


class VerifyPolicy(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What `verify` requires of a download."""

    require_record: Annotated[bool, Meta(description="Whether a download without eaglectl.json fails.")] = (
        False
    )


FILES = POLICY_FILE, PYPROJECT = ("eaglectl.toml", "pyproject.toml")
# bounds on the time of tomllib, which is quadratic in the parts of a key
MAX_POLICY, MAX_PARTS = 256 << 10, 32
PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = rf"(?<![\w-]){PART}(?:[ \t]*+\.[ \t]*+{PART}){{{MAX_PARTS}}}"
HELP = {option.name: option.option.help for option in options_of(Answers).values()}

Patterns = tuple[str, ...] | None
# no name has a null byte
Text = Annotated[str, Meta(pattern=r"^[^\0]*$")]
Layer = Annotated[int, Meta(ge=0, le=2**31)]


class AllowTable(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", omit_defaults=True):
    """Lists of what a checkpoint may have, as patterns like those of file names."""

    architectures: Annotated[Patterns, Meta(description="Classes in the config; EGL120 reports others.")] = (
        None
    )
    dtypes: Annotated[Patterns, Meta(description="Dtypes of tensors; EGL213 reports others.")] = None
    licences: Annotated[Patterns, Meta(description="Licences in the card; EGL907 reports others.")] = None
    files: Annotated[Patterns, Meta(description="Files besides the known ones.")] = None
    quantisation: Annotated[
        Patterns,
        Meta(description="Quantisation methods; EGL806 reports others, with an empty list every method."),
    ] = None
    start_options: Annotated[
        Patterns,
        Meta(
            description="Options of engines, like --max-model-len, that a drafter may need to run as trained;"
            " the rules of engines report others as errors."
        ),
    ] = None
    base_models: Annotated[Patterns, Meta(description="Base models in the card; EGL908 reports others.")] = (
        None
    )


class DefaultsTable(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Defaults of commands, which their command line overrides."""

    target: Annotated[Text, Meta(description=f"{TARGET.help} A path begins at this file.")] = ""
    aux_layers: Annotated[
        Annotated[tuple[Layer, ...], Meta(min_length=1)] | None, Meta(description=HELP["aux_layers"])
    ] = None
    aux_convention: Annotated[Convention | None, Meta(description=HELP["aux_convention"])] = None
    source_semantics: Annotated[
        Mapping[str, Text], Meta(description="Facts about the training that no file states.")
    ] = {}
    assume: Annotated[bool, Meta(description=HELP["assume"])] = False


class PolicyTable(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The keys of eaglectl.toml: what a folder requires of its checkpoints, and defaults of commands."""

    engines: Annotated[
        tuple[str, ...], Meta(description="Engine releases to judge for, without --engine.")
    ] = ()
    required: Annotated[
        frozenset[str],
        Meta(
            description="Rules (ids, names or families) that must run: if one cannot look, the checkpoint"
            " does not pass."
        ),
    ] = frozenset()
    severities: Annotated[
        Mapping[str, Literal[Severity, "off"]],
        Meta(description="The severity of a rule's findings, or off: it does not run."),
    ] = {}
    fail_on: Annotated[
        Literal[Severity, "never"] | None, Meta(description="The lowest severity that fails.")
    ] = None
    approximate: Annotated[
        float,
        Meta(
            description="The largest measured change of a state's size (0.05: 5 %) with which an output"
            " that is served approximately as trained passes. Default: none passes.",
            ge=0,
            le=1,
        ),
    ] = 0.0
    allow: AllowTable = AllowTable()
    suppress: tuple[Suppression, ...] = ()
    verify: VerifyPolicy = VerifyPolicy()
    defaults: DefaultsTable = DefaultsTable()


class Policy(PolicyTable, frozen=True):
    """A team's requirements of its checkpoints; the empty policy requires nothing. Rules are named by id.

    `origin` is the policy's file; paths in it are relative to `folder`. A checkpoint does not pass if a
    `required` rule could not look.
    """

    origin: str = "built in"
    folder: Path = Path()

    @property
    def off(self) -> frozenset[str]:
        """The rules that do not run."""
        return frozenset(rule for rule, level in self.severities.items() if level == "off")

    @property
    def allowed(self) -> Mapping[str, Sequence[str]]:
        """The keys of [allow], with their patterns."""
        patterns: Mapping[str, Sequence[str]] = to_builtins(self.allow)
        return patterns

    @property
    def target(self) -> str:
        """The target of [defaults], a folder relative to the current one; "" if there is none."""
        target = self.defaults.target
        is_here = bool(target) and os.path.lexists(self.folder / target)
        return os.path.relpath(self.folder / target) if is_here else target

    def severity(self, rule: Rule, match: Match | None = None) -> Severity:
        """Return the severity of a rule's findings, or of one."""
        severity = (match and match.severity) or rule.severity
        level = self.severities.get(rule.id, severity)
        return severity if level == "off" else level

    def refusal(self, key: str, value: str, spelled: Callable[[str], str] = str) -> str:
        """Return why a key of [allow] refuses a value, else "". `spelled` writes patterns as values are."""
        allowed = self.allowed.get(key)
        if allowed is None or any(fnmatchcase(value, spelled(pattern)) for pattern in allowed):
            return ""
        return f"is not among {', '.join(allowed) or 'none'}"


@cache
def rules(without: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Return the rules of all modules in judge/rules/ but those in `without`, ordered by id."""
    from eaglectl.judge import rules as package  # late: its modules import this one

    names = [info.name for info in pkgutil.iter_modules(package.__path__) if info.name not in without]
    modules = [import_module(f"{package.__name__}.{name}") for name in names]
    # functions that `@rule` made rules of, and the rules that a module makes from data, in its RULES
    values = [
        value for module in modules for value in (*vars(module).values(), *getattr(module, "RULES", ()))
    ]
    return tuple(sorted((value for value in values if isinstance(value, Rule)), key=lambda rule: rule.number))


def find_rule(text: str) -> Rule:
    """Find the rule with the id or name `text`. Raises UsageError with similar names."""
    by_name = {rule.id: rule for rule in rules()} | {rule.name: rule for rule in rules()}
    if text in by_name or text.upper() in by_name:
        return by_name.get(text) or by_name[text.upper()]
    similar = get_close_matches(text.upper() if text.upper().startswith("EGL") else text, by_name, 3)
    hint = f"near it: {', '.join(similar)}" if similar else "`eaglectl rules` lists them"
    raise UsageError(f"{text} is no rule; {hint}")


def select_rules(policy: Policy, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> tuple[Rule, ...]:
    """Return the rules to run: those in `select` (all if it is empty) without those in `ignore`.

    Rules that the policy switches off do not run; rules that it requires always run. Raises UsageError for an
    unknown rule, and for a required rule in `ignore`.
    """
    ignored = rule_ids(ignore)
    if refused := sorted(policy.required & ignored):
        raise UsageError(
            f"--ignore {refused[0]}: the policy {policy.origin} requires it", options=("--ignore",)
        )
    selected = rule_ids(select) or {rule.id for rule in rules()}
    ids = selected - ignored - policy.off | policy.required
    return tuple(rule for rule in rules() if rule.id in ids)


def rule_ids(texts: Iterable[str]) -> frozenset[str]:
    """Return the ids of the rules that ids, names and families' prefixes name. Raises UsageError."""
    ids: set[str] = set()
    for text in texts:
        families = {name for hundreds, name in FAMILIES.items() if text.upper() in ("EGL", f"EGL{hundreds}")}
        of_families = {rule.id for rule in rules() if rule.family in families}
        ids |= of_families or {find_rule(text).id}
    return frozenset(ids)


def read_policy(
    path: StrPath | None = None, start: StrPath | None = None, *, judged: Iterable[StrPath] = ()
) -> Policy:
    """Return the policy of the file `path`, or of the nearest one in `start` (the current folder) or above.

    A file in or below a checkpoint, a download or one of `judged` (folders, or files in them) is used only if
    `path` names it. Without a file, the policy is empty. Raises UsageError with the file, the key and what
    was expected.
    """
    policy = find_policy(path, start, judged)
    return Policy() if policy is None else _resolved(policy)


def parse_policy(values: Mapping[str, Any], origin: str) -> Policy:
    """Read a policy from a TOML table; `origin` names its file in messages and reports."""
    return _resolved(_parsed(values, origin, Path()))


def _parsed(values: Any, origin: str, folder: Path) -> Policy:
    try:
        keys = convert(values, PolicyTable, builtin_types=(datetime.date, datetime.datetime, datetime.time))
        for text in keys.engines:
            read_engine(text)
    except (ValidationError, UsageError) as error:
        raise UsageError(f"{origin}: {error}") from None
    return Policy(**asdict(keys), origin=origin, folder=folder)


def _resolved(policy: Policy) -> Policy:
    """Return the policy with rule ids in place of names and families."""
    try:
        required = rule_ids(policy.required)
        levels = {rule: level for key, level in policy.severities.items() for rule in rule_ids([key])}
        suppress = tuple(
            replace(entry, rule=find_rule(entry.rule).id, reason=entry.reason.strip())
            for entry in policy.suppress
        )
    except UsageError as error:
        raise UsageError(f"{policy.origin}: {error}") from None
    resolved = replace(policy, required=required, severities=levels, suppress=suppress)
    if conflicts := sorted(required & resolved.off):
        raise UsageError(f"{policy.origin}: {conflicts[0]} is both required and off; remove one of the two")
    return resolved


def ignored_file(judged: Iterable[str] = ()) -> str | None:
    """Return the nearest policy file, from the current folder upwards, that is ignored for its place."""
    here = current_folder()
    taken = _folders(here, judged)
    paths = (folder / name for folder in (here, *here.parents) if folder not in taken for name in FILES)
    return next((os.path.relpath(path, here) for path in paths if path.is_file()), None)


def _folders(start: Path, judged: Iterable[StrPath]) -> Sequence[Path]:
    """Return the folder and its parents that may hold a policy, the nearest first.

    Folders in a checkpoint, in a download of the Hub's client and in `judged` may not.
    """
    folders, judged_folders = (start, *start.parents), given_folders(judged)
    places = [Path(os.path.realpath(folder)) for folder in folders]
    foreign = [number for number, place in enumerate(places, 1) if is_foreign(place, judged_folders)]
    return folders[max(foreign, default=0) :]


def find_policy(
    path: StrPath | None = None, start: StrPath | None = None, judged: Iterable[StrPath] = ()
) -> Policy | None:
    """Return the policy that `read_policy` reads, with rules as its file names them; None without a file.

    `origin` is its path relative to `start`. Raises UsageError.
    """
    if path is None:
        here = current_folder() if start is None else Path(start)
        paths = (folder / name for folder in _folders(here, judged) for name in FILES)
        files = (_read_file(path, os.path.relpath(path, here)) for path in paths if path.is_file())
        return next(filter(None, files), None)
    path = os.fspath(path)
    if "://" in path:
        raise UsageError(
            f"--policy {path}: the policy must be a local file; download it and pass its path",
            options=("--policy",),
        )
    if file := _read_file(Path(path), path):
        return file
    raise UsageError(f"{path} has no [tool.eaglectl]; write the policy there, or pass an {POLICY_FILE}")


def _read_file(path: Path, label: str) -> Policy | None:
    # the policy in a file; None for a pyproject.toml without one
    try:
        text = read_small_file(path, MAX_POLICY, "the policy", UsageError).decode()
        if re.search(LONG_KEY, text):
            raise UsageError(f"{label} has a key of more than {MAX_PARTS} parts")
        if path.name == PYPROJECT and "eaglectl" not in text:
            return None
        import tomllib  # late: most folders have no policy

        values: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not valid TOML: {error}") from None
    if path.name == PYPROJECT:
        tool = values.get("tool")
        values = tool.get("eaglectl") if isinstance(tool, dict) else None
    return None if values is None else _parsed(values, label, path.parent)
