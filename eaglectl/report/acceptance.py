"""What `smoke` measured, as sections."""

import json
from collections.abc import Sequence
from itertools import groupby

from eaglectl.report.section import (
    TONES,
    Line,
    Lines,
    Marked,
    Outline,
    Pairs,
    Remark,
    Remarks,
    Section,
    Table,
    Words,
    toned,
)
from eaglectl.report.speed import speed_section
from eaglectl.run.measurement import Estimate, p_words
from eaglectl.run.process import INSTALLED
from eaglectl.run.report import DrafterComparison, SmokeReport
from eaglectl.run.showing import ShownAnswer
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict

DEFINITION = "length = 1 + accepted / drafts; in brackets 95 % over prompts"
RATIO = "ratio to the stated one, on the same prompts; p of no gain, corrected for the number of readings"
VARIANT_HEAD = ("reading", "length", "ratio", "p", "better")
DRIFT_CELLS = "accepted / RMS of the fed-back state / attention on the first token / on own drafts"
VARIANTS_TITLE = "Other readings of the file"


def smoke_outline(report: SmokeReport) -> Outline:
    """What one run measured: acceptance, the second drafter, probes, and the reasons of a failure."""
    verdict = toned(report.verdict)
    reasons = _reasons(report)
    settings = _resolved(report)
    sections = [
        Section("Findings", [reasons] if reasons.rows else [], only="markdown"),
        Section("Run", [Pairs(facts(report))], has_heading=False),
        Section("Acceptance", [_acceptance(report)], DEFINITION),
        *([speed_section(report.speed)] if report.speed else []),
        *([_shown(report.shown)] if report.shown else []),
        *([_against(report.against)] if report.against else []),
        *([_variants(report)] if report.variants else []),
        *([_drift(report)] if report.drift_conditions else []),
        Section("", [reasons] if reasons.rows else [], only="terminal", has_heading=False),
        Section("", [Lines([Words(settings, "quiet")])] if settings else [], has_heading=False),
    ]
    head = (verdict, f"  {report.source}: {length(report)}")
    lead = Words(length(report), "strong")
    return Outline("smoke", verdict, report.source, lead, head, sections)


def length(report: SmokeReport) -> str:
    """The acceptance length, with k."""
    return f"acceptance length {estimate(report.measured.length)} at k={report.k}"


def _acceptance(report: SmokeReport) -> Table:
    """Acceptance over each set, where there are several, and over all prompts."""
    sets = report.by_set if len(report.by_set) > 1 else {}
    head = ("prompts", "number", "drafts", "length", *(f"position {i}" for i in range(report.k)))
    rows = [
        (
            name,
            str(measured.prompts),
            str(measured.drafts),
            estimate(measured.length),
            *map(share, measured.per_position),
        )
        for name, measured in {**sets, "all": report.measured}.items()
    ]
    return Table(head, rows)


def _against(against: DrafterComparison) -> Section:
    """The second drafter's figures, what the ratio must be, and the ratio on each set."""
    rounds = f", of rounds {estimate(against.rounds)}" if against.has_positions else ""
    text = (
        f"{against.ending}: ratio {estimate(against.ratio)}{rounds}; its length"
        f" {estimate(against.measured.length)}; on each set the lower bound of the ratio must be at least"
        f" {against.max_regression:g}; {against.meaning}"
    )
    rows = [
        (
            part.name,
            str(part.prompts),
            estimate(part.ratio),
            estimate(part.rounds),
            Words(part.ending, TONES[part.outcome]),
        )
        for part in against.sets
    ]
    table = Table(("set", "prompts", "ratio", "of rounds", "ending"), rows)
    return Section(f"against {against.source}", [Lines([text]), table])


def _reasons(report: SmokeReport) -> Remarks:
    """Why it failed or could not be judged, and notes."""
    against = report.against
    failures = (*report.failures, *(against.failures if against else ()))
    gaps = (*report.gaps, *(against.gaps if against else ()))
    kinds: tuple[tuple[str, Sequence[str]], ...] = (
        (CheckVerdict.FAIL, failures),
        (CheckVerdict.COULD_NOT_LOOK, gaps),
        ("note", report.notes),
    )
    rows = [Remark(toned(kind), text) for kind, texts in kinds for text in texts]
    return Remarks(rows)


def _variants(report: SmokeReport) -> Section:
    """Results of the sensitivity probe, the best reading first."""
    order = sorted(report.variants, key=lambda variant: variant.ratio.value, reverse=True)
    rows = [
        (
            variant.name,
            estimate(variant.measured.length),
            estimate(variant.ratio),
            p_words(variant.p_value),
            Words("yes", "good") if variant.is_better else Words("no", "quiet"),
        )
        for variant in order
    ]
    return Section(VARIANTS_TITLE, [Table(VARIANT_HEAD, rows)], RATIO)


def _drift(report: SmokeReport) -> Section:
    """Results of the drift probe, by depth."""
    conditions = report.drift_conditions
    depths = range(len(conditions[0].state_growth))
    head = ("condition", "length", *(f"depth {depth}" for depth in depths))
    rows = [
        (
            condition.name,
            estimate(condition.measured.length),
            *(
                f"{condition.measured.per_position[depth].value:.0%} / x{condition.state_growth[depth]:.2f}"
                f" / {condition.attention_on_first[depth]:.0%} / {condition.attention_on_own[depth]:.0%}"
                for depth in depths
            ),
        )
        for condition in conditions
    ]
    return Section("Drift by depth", [Table(head, rows)], DRIFT_CELLS)


def _resolved(report: SmokeReport) -> str:
    """The settings that vLLM or SGLang used, or "" for other engines."""
    run = report.run
    if not run.resolved.get("class"):
        return f"what {run.engine} resolved could not be seen" if run.engine in INSTALLED else ""
    text = f"{run.engine} used {run.resolved['class']}, aux layers {run.resolved.get('aux_layers')}"
    if "runner" in run.resolved:
        text += f", runner {run.resolved['runner']}"
    if "unfilled" in run.resolved:
        text += f"; parameters that nothing fills: {listed(run.resolved['unfilled']) or 'none'}"
    return text


def estimate(value: Estimate) -> str:
    """A value with its interval."""
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def facts(report: SmokeReport) -> list[tuple[str, Line]]:
    """The engine, what a run of it proves, losslessness, how long it took, and prompts."""
    run = report.run
    lossless = {
        True: "yes, every output equals plain decoding",
        False: f"{run.equal_outputs} of {len(run.results)} outputs equal plain decoding",
        None: "not measured",
    }
    times = f"{run.seconds:.1f} s with the drafter" if run.seconds else ""
    if run.plain and run.plain_seconds:
        times += f", {run.plain_seconds:.1f} s without"
    given = [f"{name}={json.dumps(value)}" for name, value in run.arguments.items()]
    others = report.published.lines if report.published else ()
    trust = [("trust", "the target's own code was allowed to run (--trust-remote-code)")]
    return [
        ("engine", f"{run.engine} ({run.version}), {run.device}, {run.dtype}"),
        *([("given", ", ".join(given))] if given else []),
        ("proves", run.proves),
        *(trust if report.trust_remote_code else []),
        ("lossless", lossless[report.is_lossless]),
        *([("time", f"{times}; {speed_meaning(report)}")] if times else []),
        ("prompts", _prompts(report)),
        *([("vocabulary", f"holds {report.coverage.words}")] if report.coverage else []),
        *([("as these files", report.match.words)] if report.match else []),
        *([("others", "; ".join(others))] if others else []),
    ]


def speed_meaning(report: SmokeReport) -> str:
    """What the seconds of the prompts are a measure of: of no serving."""
    run = report.run
    if run.engine == "server":
        return "one request after the other, in this server: no measure of serving, which --speed is"
    if run.device == "cpu":
        return "time of this run on a CPU: no measure of serving"
    if run.engine == "reference":
        return "time of this run in plain torch: no measure of serving"
    return "one prompt after the other, without CUDA graphs: no measure of serving, which --speed is"


def _prompts(report: SmokeReport) -> str:
    """How many prompts, of which file, and where their answers end."""
    choice, end = report.choice, ", past the end of sequence" if report.ignores_eos else ""
    text = f"{report.measured.prompts}, {report.max_tokens} new tokens each at most{end}"
    if choice is not None and choice.sample is not None:
        text += f", a sample of {choice.total}"
    if choice is not None and choice.sha256 is not None:
        text += f", {choice.file} (SHA-256 {choice.sha256[:12]})"
    return f"{text}, digest {report.prompts_digest[:12]}, seed {report.seed}"


def _shown(answer: ShownAnswer) -> Section:
    """The prompt and its answer, accepted draft tokens marked, and how many there are by position."""
    parts = ", ".join(f"{count} at position {place}" for place, count in enumerate(answer.accepted))
    counts = f"{sum(answer.accepted)} of {len(answer.tokens)} tokens are accepted draft tokens: {parts}"
    runs = groupby(answer.tokens, lambda token: token.position is not None)
    marked = [("".join(token.text for token in tokens), is_draft) for is_draft, tokens in runs]
    prompt = [Words(line, "quiet") for line in answer.prompt.split("\n")]
    return Section("An answer", [Lines(prompt), Marked(marked)], counts)


def share(value: Estimate) -> str:
    """A share in percent, with its interval."""
    return f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"
