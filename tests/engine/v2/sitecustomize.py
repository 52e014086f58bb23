"""On PYTHONPATH: vLLM takes its V2 runner, by Triton's interpreter; lines are counted where asked."""

import os

if os.environ.get("EAGLECTL_TEST_RUNNER") == "V2":
    import tests.engine.interpreted  # noqa: F401

if "COVERAGE_PROCESS_START" in os.environ:
    import coverage

    coverage.process_startup()
    from eaglectl.run import process

    send = process._send

    def save_and_send(message: object) -> None:
        """A child is killed once it has answered."""
        counted = coverage.Coverage.current()
        assert counted is not None
        counted.save()
        send(message)

    process._send = save_and_send
