"""The screen of `smoke`: the verdict first, then the numbers that it rests on."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from eaglectl.acceptance.measurement import Estimate
from eaglectl.acceptance.report import Against, SmokeReport
from eaglectl.reports.text import indented, pairs, table

Cells = Iterator[list[str]]
DEFINITION = "length = 1 + accepted / drafts; in brackets 95 % by bootstrap over prompts"
RATIO = "ratio to the stated one, on the same prompts"
READING_HEAD = ("reading", "length", "ratio", "better")
DRIFT_CELLS = "accepted / RMS of the fed-back state / attention on the first token / on own drafts"


def print_smoke(console: Console, report: SmokeReport) -> None:
    """What the drafter did, and on which engine."""
    style = "green" if report.verdict == "pass" else "red"
    console.print(
        Text.assemble(
            (report.verdict.upper(), f"bold {style}"),
            f"  {report.source}: {length(report)}",
        )
    )
    console.print(indented(pairs(facts(report))))
    console.print(
        Text("\nAcceptance", style="bold"),
        Text(DEFINITION, style="dim"),
        sep="  ",
    )
    console.print(indented(_table(acceptance(report))))
    if report.against:
        console.print(
            Text.assemble(
                "\n",
                (f"against {report.against.source}", "bold"),
                f"  {compared(report.against)}",
            )
        )
    if report.readings:
        _print_readings(console, report)
    if report.drifts:
        _print_drifts(console, report)
    for text in report.failures:
        console.print(Text.assemble(("fail     ", "red"), text))
    for text in report.notes:
        console.print(Text.assemble(("note     ", "dim"), text))
    if used := resolved(report):
        console.print(Text(used, style="dim"))


def _print_readings(console: Console, report: SmokeReport) -> None:
    console.print(
        Text("\nOther readings of the file", style="bold"),
        Text(RATIO, style="dim"),
        sep="  ",
    )
    rows = table(*READING_HEAD)
    for name, measured, ratio, better in readings(report):
        rows.add_row(name, measured, ratio, Text(better, style="red" if better == "yes" else "green"))
    console.print(indented(rows))


def _print_drifts(console: Console, report: SmokeReport) -> None:
    console.print(
        Text("\nDrift by depth", style="bold"),
        Text(DRIFT_CELLS, style="dim"),
        sep="  ",
    )
    console.print(indented(_table(drifts(report))))


def _table(cells: Cells) -> RenderableType:
    head, *body = cells
    rows = table(*head)
    for row in body:
        rows.add_row(*(Text(cell) for cell in row))
    return rows


def length(report: SmokeReport) -> str:
    """The figure that it is about."""
    return f"acceptance length {estimate(report.measured.length)} at k={report.k}"


def acceptance(report: SmokeReport) -> Cells:
    """The measurement by set of prompts, where there are several, and over all; a head and a row each."""
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


def compared(against: Against) -> str:
    """The second drafter's figures."""
    return f"ratio {estimate(against.ratio)}; its length {estimate(against.measured.length)}"


def readings(report: SmokeReport) -> Iterator[tuple[str, str, str, str]]:
    """Other readings of the file; of each whether it drafts better."""
    for one in report.readings:
        yield one.name, estimate(one.measured.length), estimate(one.ratio), "yes" if one.is_better else "no"


def drifts(report: SmokeReport) -> Cells:
    """Conditions of the drift probe, by depth; a head and a row each."""
    depths = range(len(report.drifts[0].state_growth))
    yield ["condition", "length", *(f"depth {depth}" for depth in depths)]
    for one in report.drifts:
        cells = [
            f"{one.measured.per_position[d].value:.0%} / x{one.state_growth[d]:.2f} / {one.on_first[d]:.0%} /"
            f" {one.on_own[d]:.0%}"
            for d in depths
        ]
        yield [one.name, estimate(one.measured.length), *cells]


def resolved(report: SmokeReport) -> str:
    """What an engine made of the file, where it says."""
    run = report.run
    if not run.resolved.get("runner"):
        return ""
    return (
        f"{run.engine} used {run.resolved.get('class')}, aux layers {run.resolved.get('aux_layers')}, runner"
        f" {run.resolved['runner']}"
    )


def estimate(found: Estimate) -> str:
    """A value with its interval."""
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def facts(report: SmokeReport) -> list[tuple[str, str]]:
    """What ran, and what that proves."""
    run = report.run
    lossless = {
        True: "yes, every output equals plain decoding",
        False: f"{run.equal} of {len(run.results)} outputs equal plain decoding",
        None: "not measured",
    }
    tokens = report.measured.tokens
    speed = f"{tokens / run.seconds:.1f} tokens/s with the drafter"
    if run.plain and run.plain_seconds:
        speed += f", {sum(map(len, run.plain)) / run.plain_seconds:.1f} without"
    return [
        ("engine", f"{run.engine} ({run.version}), {run.device}, {run.dtype}"),
        ("proves", run.proves),
        ("lossless", lossless[report.is_lossless]),
        ("speed", speed),
        (
            "prompts",
            (
                f"{report.measured.prompts}, {report.max_tokens} new tokens each at most, digest"
                f" {report.prompts_digest[:12]}, seed {report.seed}"
            ),
        ),
    ]


def share(found: Estimate) -> str:
    """A share with its interval."""
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
