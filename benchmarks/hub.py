"""Time `inspect` of fifty Hub repositories, and of one, on a loopback Hub in a process of its own.

python -m benchmarks.hub [JOBS]
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORIES = 50
PROGRAM = "from eaglectl.cli import main; main()"
SERVER = """
import sys
from pathlib import Path
from tests.hub import LoopbackHub
folder = Path(sys.argv[1])
files = {path.name: path.read_bytes() for path in folder.iterdir()}
with LoopbackHub() as hub:
    for number in range(int(sys.argv[2])):
        hub.add_repo(f"org/drafter-{number}", files)
    print(hub.endpoint, flush=True)
    sys.stdin.readline()
    print(len(hub.requests), hub.traffic, flush=True)
"""


def main() -> None:
    """Print requests, bytes, seconds, and those of the processor, as one line of JSON; all requests count."""
    from tests.builders import drafter_folder

    with tempfile.TemporaryDirectory() as place:
        folder = drafter_folder(Path(place), "drafter")
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder), str(REPOSITORIES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin and server.stdout
        endpoint = server.stdout.readline().strip()
        names = [f"org/drafter-{number}" for number in range(REPOSITORIES)]
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": place, "HF_TOKEN": ""}
        single = time_inspect(names[:1], environment)
        seconds, cpu = time_inspect(names, environment)
        server.stdin.write("\n")
        server.stdin.flush()
        requests, nbytes = map(int, server.stdout.readline().split())
        server.wait()
    figures = {"repositories": REPOSITORIES, "requests": requests, "bytes": nbytes}
    times = {
        "seconds": seconds,
        "cpu": cpu,
        "seconds of one repository": single[0],
        "cpu of one repository": single[1],
    }
    print(json.dumps({**figures, **{name: round(value, 2) for name, value in times.items()}}))


def time_inspect(names: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds, and seconds of the processor, that `inspect` takes with its start-up."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", PROGRAM, "inspect", *names, "--json"],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the server was not waited for yet
    return seconds, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
