"""Acceptance as rows of text: what the terminal and the page of `smoke` share."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.acceptance.measurement import Estimate
from eaglectl.acceptance.probe import DriftCondition
from eaglectl.acceptance.report import DrafterComparison, SmokeReport
from eaglectl.acceptance.showing import ShownAnswer
from eaglectl.acceptance.significance import p_words
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict

Cells = Iterator[list[str]]
DEFINITION = "length = 1 + accepted / drafts; in brackets 95 % over prompts"
RATIO = "ratio to the stated one, on the same prompts; p of no gain, corrected for the number of readings"
VARIANT_HEAD = ("reading", "length", "ratio", "p", "better")
DRIFT_CELLS = "accepted / RMS of the fed-back state / attention on the first token / on own drafts"
VARIANTS_TITLE = "Other readings of the file"
DRIFT_TITLE = "Drift by depth"


def length(report: SmokeReport) -> str:
    """The acceptance length, with k."""
    return f"acceptance length {estimate(report.measured.length)} at k={report.k}"


def acceptance(report: SmokeReport) -> Cells:
    """Acceptance over each set, where there are several, and over all prompts; the first row is the head."""
    sets = report.by_set if len(report.by_set) > 1 else {}
    yield ["prompts", "number", "drafts", "length", *(f"position {i}" for i in range(report.k))]
    for name, measured in {**sets, "all": report.measured}.items():
        yield [
            name,
            str(measured.prompts),
            str(measured.drafts),
            estimate(measured.length),
            *map(share, measured.per_position),
        ]


def compared(against: DrafterComparison) -> str:
    """The second drafter's figures, and what the ratio must be."""
    rounds = f", of rounds {estimate(against.rounds)}" if against.has_positions else ""
    return (
        f"{against.ending}: ratio {estimate(against.ratio)}{rounds}; its length"
        f" {estimate(against.measured.length)}; on each set the lower bound of the ratio must be at least"
        f" {against.max_regression:g}; {against.meaning}"
    )


def set_ratios(against: DrafterComparison) -> Cells:
    """The ratio to the second drafter on each set; the first row is the head."""
    yield ["set", "prompts", "ratio", "of rounds", "ending"]
    for part in against.sets:
        yield [part.name, str(part.prompts), estimate(part.ratio), estimate(part.rounds), part.ending]


def reasons(report: SmokeReport) -> Iterator[tuple[str, str]]:
    """The kind (FAIL, COULD_NOT_LOOK or "note") and the text of every remark."""
    against = report.against
    yield from (
        (CheckVerdict.FAIL, text) for text in (*report.failures, *(against.failures if against else ()))
    )
    gaps = (*report.gaps, *(against.gaps if against else ()))
    yield from ((CheckVerdict.COULD_NOT_LOOK, text) for text in gaps)
    yield from (("note", text) for text in report.notes)


def variants(report: SmokeReport) -> Iterator[tuple[str, str, str, str, str]]:
    """Results of the sensitivity probe, with "yes" for a variant that drafts better."""
    for variant in report.variants:
        better = "yes" if variant.is_better else "no"
        p_value = p_words(variant.p_value)
        yield variant.name, estimate(variant.measured.length), estimate(variant.ratio), p_value, better


def drift(report: SmokeReport) -> Cells:
    """Results of the drift probe, by depth; the first row is the head."""
    depths = range(len(report.drift_conditions[0].state_growth))
    yield ["condition", "length", *(f"depth {depth}" for depth in depths)]
    for condition in report.drift_conditions:
        cells = [_drift_cell(condition, depth) for depth in depths]
        yield [condition.name, estimate(condition.measured.length), *cells]


def _drift_cell(condition: DriftCondition, depth: int) -> str:
    """The figures that DRIFT_CELLS names."""
    return (
        f"{condition.measured.per_position[depth].value:.0%} / x{condition.state_growth[depth]:.2f}"
        f" / {condition.attention_on_first[depth]:.0%} / {condition.attention_on_own[depth]:.0%}"
    )


def resolved(report: SmokeReport) -> str:
    """The settings that vLLM or SGLang used, or "" for other engines."""
    run = report.run
    if run.engine == "sglang" and not run.resolved:
        return "what sglang resolved could not be seen"
    if not run.resolved.get("class"):
        return ""
    text = f"{run.engine} used {run.resolved['class']}, aux layers {run.resolved.get('aux_layers')}"
    if "runner" in run.resolved:
        text += f", runner {run.resolved['runner']}"
    if "unfilled" in run.resolved:
        text += f"; parameters that nothing fills: {listed(run.resolved['unfilled']) or 'none'}"
    return text


def estimate(value: Estimate) -> str:
    """A value with its interval."""
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def facts(report: SmokeReport) -> list[tuple[str, str]]:
    """The engine, what a run of it proves, losslessness, speed and prompts."""
    run = report.run
    lossless = {
        True: "yes, every output equals plain decoding",
        False: f"{run.equal_outputs} of {len(run.results)} outputs equal plain decoding",
        None: "not measured",
    }
    tokens = report.measured.tokens
    speed = f"{tokens / run.seconds:.1f} tokens/s with the drafter" if run.seconds else "not measured"
    if run.plain and run.plain_seconds:
        speed += f", {sum(map(len, run.plain)) / run.plain_seconds:.1f} without"
    if run.seconds:
        speed += f"; {speed_meaning(report)}"
    others = report.published.lines if report.published else ()
    trust = [("trust", "the target's own code was allowed to run (--trust-remote-code)")]
    return [
        ("engine", f"{run.engine} ({run.version}), {run.device}, {run.dtype}"),
        *([("given", _arguments(run.arguments))] if run.arguments else []),
        ("proves", run.proves),
        *(trust if report.trust_remote_code else []),
        ("lossless", lossless[report.is_lossless]),
        ("speed", speed),
        ("prompts", _prompts(report)),
        *([("others", "; ".join(others))] if others else []),
    ]


def _arguments(arguments: Mapping[str, Any]) -> str:
    """The engine's own arguments that were given."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())


def speed_meaning(report: SmokeReport) -> str:
    """What the tokens per second are a measure of: not of serving, but for a server."""
    run = report.run
    if run.engine == "server":
        return "one request after the other, in this server"
    if run.device == "cpu":
        return "time of this run on a CPU, where a drafter rarely pays: no measure of serving"
    if run.engine == "reference":
        return "time of this run in plain torch: no measure of serving"
    return "one prompt after the other, without CUDA graphs: less than serving gives"


def _prompts(report: SmokeReport) -> str:
    """How many prompts, of which file, and where their answers end."""
    choice, end = report.choice, ", past the end of sequence" if report.ignores_eos else ""
    text = f"{report.measured.prompts}, {report.max_tokens} new tokens each at most{end}"
    if choice is not None and choice.sample is not None:
        text += f", a sample of {choice.total}"
    if choice is not None and choice.sha256 is not None:
        text += f", {choice.file} (SHA-256 {choice.sha256[:12]})"
    return f"{text}, digest {report.prompts_digest[:12]}, seed {report.seed}"


def shown_counts(answer: ShownAnswer) -> str:
    """How many of an answer's tokens were drafted, by position."""
    parts = ", ".join(f"{count} at position {place}" for place, count in enumerate(answer.accepted))
    return f"{sum(answer.accepted)} of {len(answer.tokens)} tokens are accepted draft tokens: {parts}"


def share(value: Estimate) -> str:
    """A share in percent, with its interval."""
    return f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"
