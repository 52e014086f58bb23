"""Time `inspect` of fifty Hub repositories on a loopback Hub in a process of its own.

python -m benchmarks.hub [JOBS]
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
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
    """Print requests, bytes, seconds, and those of the processor, as one line of JSON."""
    from tests.builders import drafter_folder

    jobs = sys.argv[1] if len(sys.argv) > 1 else "8"
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
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", PROGRAM, "inspect", *names, "--jobs", jobs, "--json"],
            env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": place, "HF_TOKEN": ""},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the server was not waited for yet
        server.stdin.write("\n")
        server.stdin.flush()
        requests, nbytes = map(int, server.stdout.readline().split())
        server.wait()
    cpu = used.ru_utime + used.ru_stime
    figures = {"repositories": REPOSITORIES, "jobs": int(jobs), "requests": requests}
    print(json.dumps({**figures, "bytes": nbytes, "seconds": round(seconds, 2), "cpu": round(cpu, 2)}))


if __name__ == "__main__":
    main()
