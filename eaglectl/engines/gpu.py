"""Which release of an engine ran on which GPU, and whether what a user does with it passed there."""

from msgspec import Struct

from eaglectl.engines.data import cached, read


class GpuRun(Struct, frozen=True):
    """A release of an engine on a card, at a commit of eaglectl: how many commands passed, and failed."""

    release: str | None
    card: str
    date: str
    eaglectl: str
    passed: int
    failed: int


@cached
def gpu_runs(engine: str) -> tuple[GpuRun, ...]:
    """The recorded runs of an engine, the newest last (gpu_runs.json, written by tests/gpu)."""
    runs = []
    for run in read("gpu_runs.json")["runs"]:
        results = [row["result"] for row in run["rows"] if row["engine"] == engine]
        passed, skipped = results.count("passed"), results.count("skipped")
        if len(results) > skipped:
            failed = len(results) - passed - skipped
            release = run["packages"].get(engine)
            runs.append(GpuRun(release, run["card"], run["date"], run["eaglectl"], passed, failed))
    return tuple(runs)
