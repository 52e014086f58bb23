"""Sizes, counts, layers, releases and outcomes in words, for every medium."""

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap

from eaglectl.drafter.drafter import TRAINING_DEFAULT, AuxLayers, DefaultLayers, Note, are_stated
from eaglectl.engines.behaviour import ranges, unversioned
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES
from eaglectl.judge.judgement import Following
from eaglectl.report.section import Commands, Lines, Section, Table, Tone, Words, grouped
from eaglectl.results import EngineReadiness, OutputServing
from eaglectl.verdicts import ServedAs

# the most reasons under the first line, without -v
MOST_CAUSES = 2
# the most conversions to choose from that are shown
MOST_CHOICES = 12
# the most columns of a command with a comment on its line
MOST_COLUMNS = 100
LONGEST_VALUE = 60
UNITS = ("B", "kB", "MB", "GB", "TB")
PLURALS = {"runs": " run ", "reads": " read ", "does": " do "}
# placeholders in the commands of engines, for files that are not known
PLACEHOLDERS = {
    "TARGET": "TARGET is the target's folder",
    "TARGET.gguf": "TARGET.gguf is the target, converted by llama.cpp's convert_hf_to_gguf.py",
    "DRAFTER.gguf": "DRAFTER.gguf is the drafter, converted",
}
# what engine releases do, in words; for several releases "runs" becomes "run"
ANSWERS = {
    ServedAs.AS_TRAINED: "{} runs it as trained",
    ServedAs.STARTED_SO: "{} runs it as trained, started with {}",
    ServedAs.AS_PUBLISHED: "{} runs it as its authors measured it",
    ServedAs.APPROXIMATE: "{} runs it approximately as trained",
    ServedAs.DIFFERS: "{} runs it differently than it was trained",
    ServedAs.FAILS: "{} does not start with it",
    ServedAs.UNKNOWN: "it is not known whether {} runs it as trained",
}
OUTCOME_TONES: Mapping[ServedAs, Tone] = {
    ServedAs.AS_TRAINED: "good",
    ServedAs.STARTED_SO: "good",
    ServedAs.AS_PUBLISHED: "good",
    ServedAs.APPROXIMATE: "doubt",
    ServedAs.DIFFERS: "bad",
    ServedAs.FAILS: "bad",
    ServedAs.UNKNOWN: "doubt",
}
NOT_SERVED = {
    ServedAs.FAILS: "not served",
    ServedAs.DIFFERS: "not served as trained",
    ServedAs.APPROXIMATE: "served approximately as trained",
    ServedAs.UNKNOWN: "not known to serve it as trained",
}


def answer_line(verdicts: Sequence[Verdict], trained: Sequence[int] | None) -> tuple[str | Words, ...]:
    """Return the first line of a report: what engine releases do, grouped by outcome.

    `trained` are the boundaries that the drafter was trained on, if known.
    """
    parts: list[str | Words] = []
    groups = grouped(
        (
            (
                verdict.outcome,
                " ".join(verdict.start_options),
                verdict.unread,
                verdict.reading and verdict.reading.boundaries,
            ),
            verdict,
        )
        for verdict in verdicts
    )
    for (outcome, options, unread, boundaries), group in groups.items():
        names = engine_names(group)
        text = ANSWERS[outcome].format(names, options)
        if boundaries:
            read, were = (", ".join(map(str, layers)) for layers in (boundaries, trained or ()))
            text = f"{names} reads target layers {read}; trained on {were or 'others'}"
        if " and " in names:
            text = re.sub(r" (runs|reads|does) ", lambda verb: PLURALS[verb[1]], text, count=1)
        text = f"{text}, {unread}" if unread else text
        parts += ["; " * bool(parts), Words(text, OUTCOME_TONES[outcome])]
    return tuple(parts)


def unserved_words(states: Iterable[tuple[ServedAs, Verdict | EngineReadiness]]) -> list[Words]:
    """Return which requested releases do not serve the drafter, for the first line."""
    groups = grouped(state for state in states if not state[0].is_served)
    return [
        Words(f"; {NOT_SERVED[outcome]} by {engine_names(group)}", OUTCOME_TONES[outcome])
        for outcome, group in groups.items()
    ]


def remarks(verdict: Verdict) -> tuple[str, ...]:
    """Return what differs from training in a release, or what the drafter's authors measured."""
    first = {ServedAs.AS_TRAINED: slice(1, None), ServedAs.AS_PUBLISHED: slice(1)}
    return verdict.reasons[first.get(verdict.outcome, slice(None))]


def release_outcome(verdict: Verdict) -> Words:
    """Return what a release does, in its tone."""
    return Words(verdict.words, OUTCOME_TONES[verdict.outcome])


def release_table(verdicts: Iterable[Verdict]) -> Table:
    """Return the releases of each engine by outcome, the newest of vLLM first, with rules and reasons."""
    rows = [
        (
            engine_names(group),
            release_outcome(group[0]),
            Words(": ".join(filter(None, [", ".join(group[0].rules), "; ".join(group[0].reasons)])), "quiet"),
        )
        for group in grouped(
            ((verdict.engine, verdict.words, remarks(verdict)), verdict) for verdict in reversed([*verdicts])
        ).values()
    ]
    return Table(("releases", "outcome", "why"), rows, is_whole=True)


def engine_names(verdicts: Sequence[Verdict | EngineReadiness]) -> str:
    """Return engines with their releases in words: "vLLM 0.22.0 - 0.33.0 and SGLang 0.5.23"."""
    names = [
        f"{engine_title(name)} {ranges(releases, _known(name, releases))}".strip()
        for name, releases in grouped((verdict.engine, verdict.release) for verdict in verdicts).items()
    ]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def engine_title(name: str) -> str:
    """Return an engine's own name, like "vLLM"; a server's URL."""
    others = unversioned()["engines"]
    return ENGINES[name].title if name in ENGINES else str(others[name]["title"] if name in others else name)


def choice_section(following: Following) -> Section:
    """Return the conversions to choose from, each with its effect on the engine if its answer is true."""
    choices = list(following.choices.items())
    rest = [f"and {len(choices) - MOST_CHOICES} more with --json"] if len(choices) > MOST_CHOICES else []
    lines = [line for choice in choices[:MOST_CHOICES] for line in _choice_lines(*choice)]
    rows = [("" if place else "one of:", line) for place, line in enumerate(lines)]
    return Section("Next", [Commands(rows), Lines(rest)], has_heading=False)


def _choice_lines(command: str, gives: str) -> tuple[str, ...]:
    line = f"{command}  # {gives}"
    above = (f"# {part}" for part in wrap(gives, MOST_COLUMNS - 2))
    return (line,) if len(line) <= MOST_COLUMNS else (*above, command)


def also_line(outcomes: Iterable[tuple[str, str]]) -> list[Words]:
    """Return a line on other engines by outcome; an empty list if there are none."""
    texts = [f"{', '.join(names)} {outcome}" for outcome, names in grouped(outcomes).items()]
    return [Words(f"also: {'; '.join(texts)}", "quiet")] if texts else []


def placeholders(commands: Iterable[str]) -> str:
    """Return what the placeholders in commands of engines stand for; "" if there are none."""
    words = " ".join(commands).split()
    return "; ".join(text for name, text in PLACEHOLDERS.items() if name in words)


def why_not_served(serving: OutputServing, shown: Sequence[Note] = ()) -> str:
    """Return why an engine's release does not run an output as trained, and which of its releases do.

    Doubts that the notes in `shown` state are not repeated.
    """
    verdict = serving.verdict
    others = f" ({serving.serving} serve it)" if serving.serving else ""
    is_shown = verdict.outcome.is_open and are_stated(dict(verdict.keyed_reasons), shown)
    why = "see the warning above" if is_shown else "; ".join(verdict.reasons)
    if not verdict.release:  # an engine whose releases eaglectl does not follow
        return f"{verdict.outcome}: {why}"
    return f"{NOT_SERVED[verdict.outcome]} by {verdict.release}: {why}{others}"


def size(nbytes: int) -> str:
    """Return bytes in decimal units, as disks and the Hub count them."""
    power = min((len(str(nbytes)) - 1) // 3, len(UNITS) - 1)
    return f"{nbytes / 1000**power:.{2 if power else 0}f} {UNITS[power]}"


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: "1 rule", "2 rules"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortened(text: str) -> str:
    """Return text cut to LONGEST_VALUE characters."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def layers(boundaries: Sequence[int] | None, default: DefaultLayers | None) -> str:
    """Return boundaries as a list in words."""
    if boundaries is not None:
        return ", ".join(map(str, boundaries))
    return default.terms if default else "unknown"


def trained_layers(aux: AuxLayers) -> str:
    """Return the trained aux layers and how they are known."""
    return f"{layers(aux.boundaries, TRAINING_DEFAULT if aux.is_default else None)} ({aux.how})"


def engine_ranges(releases: Sequence[str]) -> str:
    """Return engine releases, each as "vllm==0.32.0", as ranges: "vllm 0.22.0 - 0.24.0, sglang 0.5.23".

    An engine without a release is named alone.
    """
    pairs = (text.partition("==") for text in releases)
    releases_by_engine = grouped((engine, release) for engine, _, release in pairs)
    return ", ".join(
        f"{engine} {ranges(list(filter(None, numbers)), _known(engine, numbers))}".strip()
        for engine, numbers in releases_by_engine.items()
    )


def _known(engine: str, named: Sequence[str]) -> Sequence[str]:
    releases = ENGINES[engine].releases if engine in ENGINES else ()
    return [*releases, *(release for release in named if release not in releases)]
