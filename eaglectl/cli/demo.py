"""`eaglectl demo`."""

import typer


def demo_command(context: typer.Context) -> None:
    """Run the main commands on the fixtures of a checkout, each with its output."""
    from eaglectl.cli import run
    from eaglectl.demo import run_demo

    run_demo(context.obj.show, run)
