"""The screen of `smoke`: the verdict first, then the numbers that it rests on."""

from rich.console import Console
from rich.text import Text

from eaglectl.acceptance.measurement import Estimate, Measurement
from eaglectl.acceptance.report import SmokeReport
from eaglectl.reports.text import indented, pairs, table


def print_smoke(console: Console, report: SmokeReport) -> None:
    """What the drafter did, and on which engine."""
    run, found = report.run, report.measured
    style = "green" if report.verdict == "pass" else "red"
    console.print(
        Text.assemble(
            (report.verdict.upper(), f"bold {style}"),
            f"  {report.source}: acceptance length {estimate(found.length)} at k={report.k}",
        )
    )
    console.print(indented(pairs(_facts(report))))
    console.print(
        Text("\nAcceptance", style="bold"),
        Text("length = 1 + accepted / drafts; in brackets 95 % by bootstrap over prompts", style="dim"),
        sep="  ",
    )
    rows = table("prompts", "number", "drafts", "length", *(f"position {i}" for i in range(report.k)))
    for name, measured in {**(report.by_set if len(report.by_set) > 1 else {}), "all": found}.items():
        rows.add_row(name, str(measured.prompts), str(measured.drafts), *(Text(cell) for cell in _cells(measured)))
    console.print(indented(rows))
    if report.against:
        console.print(
            Text.assemble(
                "\n",
                (f"against {report.against.source}", "bold"),
                f"  ratio {estimate(report.against.ratio)}; its length {estimate(report.against.measured.length)}",
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
    if run.resolved.get("runner"):
        console.print(
            Text(
                f"{run.engine} used {run.resolved.get('class')}, aux layers {run.resolved.get('aux_layers')}, runner"
                f" {run.resolved['runner']}",
                style="dim",
            )
        )


def _print_readings(console: Console, report: SmokeReport) -> None:
    console.print(
        Text("\nOther readings of the file", style="bold"),
        Text("ratio to the stated one, on the same prompts", style="dim"),
        sep="  ",
    )
    rows = table("reading", "length", "ratio", "better")
    for one in report.readings:
        word = Text("yes", style="red") if one.is_better else Text("no", style="green")
        rows.add_row(one.name, estimate(one.measured.length), estimate(one.ratio), word)
    console.print(indented(rows))


def _print_drifts(console: Console, report: SmokeReport) -> None:
    console.print(
        Text("\nDrift by depth", style="bold"),
        Text("accepted / RMS of the fed-back state / attention on the first token / on own drafts", style="dim"),
        sep="  ",
    )
    depths = range(len(report.drifts[0].state_growth))
    rows = table("condition", "length", *(f"depth {depth}" for depth in depths))
    for one in report.drifts:
        cells = [
            f"{one.measured.per_position[d].value:.0%} / x{one.state_growth[d]:.2f} / {one.on_first[d]:.0%} /"
            f" {one.on_own[d]:.0%}"
            for d in depths
        ]
        rows.add_row(one.name, estimate(one.measured.length), *cells)
    console.print(indented(rows))


def estimate(found: Estimate) -> str:
    """A value with its interval."""
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _facts(report: SmokeReport) -> list[tuple[str, str]]:
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


def _cells(found: Measurement) -> list[str]:
    return [estimate(found.length), *(f"{p.value:.1%} [{p.low:.1%}, {p.high:.1%}]" for p in found.per_position)]
