"""`eaglectl smoke`."""

from typing import Annotated

import typer

from eaglectl.api.options import ADVANCED, SmokeOptions
from eaglectl.commands.arguments import (
    Json,
    Page,
    RunTarget,
    Source,
    exit_by,
    page_file,
    print_result,
    print_trust,
)
from eaglectl.errors import check
from eaglectl.terminal import OutputSettings, ProgressBar, emit, say
from eaglectl.text import listed
from eaglectl.verdicts import first_word

LoadOnly = Annotated[
    bool,
    typer.Option(
        "--load-only",
        help="Only load the drafter in vLLM, and list the parameters that the file does not fill.",
        rich_help_panel=ADVANCED,
    ),
]


def smoke_command(
    context: typer.Context,
    source: Source,
    *,
    target: RunTarget = None,
    options: SmokeOptions,
    is_load_only: LoadOnly = False,
    json_: Json = False,
    page: Page = None,
) -> None:
    """Run a drafter with its target and measure how many draft tokens are accepted."""
    from eaglectl.api.smoke import smoke

    settings: OutputSettings = context.obj
    if is_load_only:
        _load_only(source, target, options, page, is_json=json_)
        return
    file = page_file(page)
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        report = smoke(source, target, options, on_progress=bar)
    print_result(settings, report, is_json=json_, page=file)
    exit_by(report.verdict)


def _load_only(
    source: str, target: str | None, options: SmokeOptions, page: str | None, *, is_json: bool
) -> None:
    # load the drafter in vLLM without generating; exit 1 if parameters stay unfilled
    from eaglectl.api.smoke import load_only

    check(
        (
            page is not None,
            "--load-only measures nothing to show on a page; leave --page out",
            ("--load-only",),
        ),
        (
            options.speed,
            "--load-only generates nothing to time; leave --speed out",
            ("--load-only",),
        ),
        (
            options.run_in not in ("auto", "vllm"),
            f"--load-only is for vLLM, and --run-in is {options.run_in}; smoke --run-in sglang also lists the"
            " parameters that the file does not fill, without --load-only",
            ("--load-only",),
        ),
        (
            options.engine_arguments or options.tensor_parallel_size != 1,
            "--load-only loads only the drafter; leave --tensor-parallel-size and --engine-arg out",
            ("--load-only",),
        ),
    )
    trust = options.trust_remote_code
    result = load_only(source, target, timeout=options.timeout, trust_remote_code=trust)
    if is_json:
        emit(result.to_json())
    else:
        word = first_word("fail" if result.unfilled else "pass")
        say(
            f"{word}: vLLM {result.version} loads it as {result.resolved['class']}; parameters that the file"
            f" does not fill: {listed(result.unfilled) or 'none'}"
            + (f"; from the target: {listed(result.shared)}" if result.shared else "")
        )
        print_trust(trust)
    if result.unfilled:
        raise typer.Exit(1)
