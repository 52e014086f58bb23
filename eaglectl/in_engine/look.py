"""The judgement of a drafter at an engine's start, and what the engine resolved beside what was trained."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from eaglectl.api.inspect import inspect_files
from eaglectl.api.options import InspectOptions
from eaglectl.conversion.readings import draft_vocabulary
from eaglectl.engines.behaviour import StartOption
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES, EngineRequest, known_release
from eaglectl.errors import EaglectlError, RefusedError
from eaglectl.files.files import is_folder
from eaglectl.files.hub import open_cached
from eaglectl.formats.format import Answers
from eaglectl.in_engine.hooks import MODE, MODES, RefusedStart, Start, logger, mode, stated_mode
from eaglectl.judge.rule import read_policy
from eaglectl.project import repository
from eaglectl.report.inspection import inspection_outline
from eaglectl.report.section import plain
from eaglectl.results import Inspection
from eaglectl.run.resolved import meant_settings, unlike
from eaglectl.target.choice import TargetChoice
from eaglectl.text import listed

POLICY = "EAGLECTL_POLICY"
# the process that has spoken of a start, and that start, for the processes that it starts
SPOKEN = "EAGLECTL_IN_ENGINE_SPOKEN"
MOST_LINES = 4
ANSWER = f"; answer it under [defaults] of eaglectl.toml in the server's folder, or of the file in {POLICY}"


class Judged(NamedTuple):
    """The inspection of a drafter, the file that its answers come from in words, and those answers."""

    inspection: Inspection
    origin: str
    answers: Answers


def before(start: Start, *, is_refused: bool = False) -> None:
    """Report what this engine does with the drafter, before any weight is loaded.

    `is_refused`: the engine refuses it already, and its own error follows. Raises RefusedStart for a finding
    if EAGLECTL_IN_ENGINE is refuse.
    """
    log, key = logger(start.engine), f"{start.drafter} {start.target}"
    process, _, spoken = os.environ.get(SPOKEN, "").partition(" ")
    if spoken == key and process != str(os.getpid()):
        return
    os.environ[SPOKEN] = f"{os.getpid()} {key}"
    if stated_mode() not in MODES:
        log.warning("%s=%s: expected %s; taken as %s", MODE, stated_mode(), listed(MODES), MODES[0])
    try:
        inspection, origin, _ = judge(start)
    except RefusedError as error:
        _report(start, [str(error)], is_finding=not is_refused)
        return
    except EaglectlError as error:
        log.warning("eaglectl: it is not known whether the drafter runs as it was trained: %s", error)
        return
    outline, verdict = inspection_outline(inspection), inspection.requested[0]
    lead = plain(outline.lead) + origin
    if missing := [option.words for option in verdict.options if not _is_set(start.arguments, option)]:
        causes = [*map(plain, outline.cause)][: MOST_LINES - 2]
        advice = f"this start does not have {' '.join(missing)}"
        _report(start, [lead, *causes, advice], is_finding=not is_refused)
    elif verdict.outcome.is_served:
        log.info("eaglectl: %s", lead)
    elif verdict.outcome.is_open:
        advice = ANSWER if inspection.drafter.notes_at("question") else ""
        log.warning("eaglectl: %s%s", ": ".join([lead, *map(plain, outline.cause[:1])]), advice)
    else:
        following = [f"next:  {outline.next}"] if outline.next else []
        causes = [*map(plain, outline.cause)][: MOST_LINES - 1 - len(following)]
        _report(start, [lead, *causes, *following], is_finding=not is_refused)


def _is_set(arguments: Any, option: StartOption) -> bool:
    # whether the engine was started with the option, or with a value of it that does as well
    name, needed = option.argument
    value = getattr(arguments, name, None)
    if isinstance(needed, str):  # a dtype: any that both models have
        return value not in (None, "auto")
    return value == needed or (option.is_limit and isinstance(value, int) and value < needed)


def after(start: Start, resolved: Mapping[str, Any]) -> None:
    """Report what the engine resolved beside what was trained, once the drafter is loaded.

    Raises RefusedStart for a difference if EAGLECTL_IN_ENGINE is refuse.
    """
    log = logger(start.engine)
    try:
        inspection, _, answers = judge(start)
    except EaglectlError as error:
        log.warning("eaglectl: what was loaded is not compared with what was trained: %s", error)
        return
    verdict, title = inspection.requested[0], ENGINES[start.engine].title
    meant = meant_settings(inspection.drafter, _draft_tokens(inspection, answers))
    seen = [key for key, value in meant.items() if None not in (value, resolved.get(key))]
    engine = f"{title} {verdict.release}"
    if different := list(unlike(title, resolved, meant)):
        lead = f"{engine} has loaded the drafter differently than it was trained: {different[0]}"
        _report(start, [lead, *different[1:], *_disagreement(verdict, is_served=False)][:MOST_LINES])
        return
    parts = [_words(key, meant[key]) for key in seen]
    facts = ", ".join(filter(None, parts)) or "nothing"
    hidden = [key for key in meant if key not in seen]
    facts += f"; not seen: {', '.join(hidden)}" if hidden else ""
    if verdict.release not in ENGINES[start.engine].releases:
        log.warning(
            "eaglectl: %s is not known to eaglectl; what it resolved is what was trained: %s", engine, facts
        )
    elif disagreement := _disagreement(verdict, is_served=True):
        _report(start, [f"{engine} resolved what was trained: {facts}", *disagreement], is_finding=False)
    else:
        what = "these as trained" if verdict.outcome.is_known_wrong else "what was trained"
        log.info("eaglectl: %s resolved %s: %s", engine, what, facts)


def judge(start: Start) -> Judged:
    """Return the inspection of a drafter for this start.

    Reads headers and tables of local files, or of those in the Hub client's cache. Raises EaglectlError.
    """
    drafter = _folder(start.drafter, start.drafter_revision)
    target = _folder(start.target, start.target_revision)
    policy = read_policy(os.environ.get(POLICY), judged=[drafter, target])
    keys = policy.defaults
    answers = Answers(keys.aux_layers, keys.aux_convention, dict(keys.source_semantics), assume=keys.assume)
    engine = ENGINES[start.engine]
    release = known_release(engine, str(sys.modules[start.engine].__version__))
    is_known = release in engine.releases
    request = EngineRequest(
        start.engine,
        (release,) if is_known else (),
        unknown="" if is_known else release,
        text=start.engine,
        runner=start.runner,
    )
    options = InspectOptions(target=TargetChoice(target, target), engines=(request,), answers=answers)
    origin = "" if answers == Answers() else f" (answers from {policy.origin})"
    return Judged(inspect_files(drafter, options, beside=()), origin, answers)


def _folder(name: str, revision: str | None) -> str:
    if is_folder(Path(name)):
        return name
    return str(open_cached(f"{name}@{revision}" if revision else name).root)


def _draft_tokens(inspection: Inspection, answers: Answers) -> Sequence[int] | None:
    # a broken table is a finding of its own
    with suppress(EaglectlError):
        return draft_vocabulary(inspection.checkpoint, inspection.drafter, answers, None).targets
    return None


def _words(key: str, value: Any) -> str:
    """Return a setting that is as trained in words: a norm switch by its name, "" if it is off."""
    match key:
        case "aux_layers":
            return f"layers {', '.join(map(str, value))}"
        case "unfilled":
            return "no parameter unfilled"
        case "vocabulary":
            return "vocabulary of {} of {}".format(*value)
        case "draft_tokens":
            return "d2t"
    return key if value else ""


def _disagreement(verdict: Verdict, *, is_served: bool) -> list[str]:
    """Return what to do where the engine shows otherwise than the data on its release says."""
    is_misreading = verdict.reading is not None
    if is_misreading if is_served else verdict.outcome.is_served:
        place = f" at {repository()}" if repository() else ""
        return [f"eaglectl's data on {verdict.engine} {verdict.release} says otherwise; report this{place}"]
    return []


def _report(start: Start, lines: Sequence[str], *, is_finding: bool = True) -> None:
    """Log the lines; raise RefusedStart with them for a finding if EAGLECTL_IN_ENGINE is refuse."""
    text = "\n".join(lines)
    logger(start.engine).warning("eaglectl: %s", text)
    if is_finding and mode() == "refuse":
        raise RefusedStart(f"{MODE}=refuse ends this start; {MODE}=warn would go on\neaglectl: {text}")
