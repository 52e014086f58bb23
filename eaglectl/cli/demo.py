"""`eaglectl demo`."""

import typer


def demo_command(context: typer.Context) -> None:
    """Run the main job on the fixtures of a checkout, end to end."""
    from eaglectl.cli import run
    from eaglectl.demo import run_demo

    run_demo(context.obj.console(), run)
