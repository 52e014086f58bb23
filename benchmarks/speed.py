"""How fast eaglectl is, beside what the machine needs for the same work: a table of ratios with limits.

    python -m benchmarks.speed [--scratch DIR] [--repeat 5]

Writes about 8 GB below DIR and removes them. It is a report, not a test: it always exits with 0.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import (
    BLOCK,
    WEIGHTS,
    Child,
    alternating,
    eaglectl,
    finite_block,
    make_drafter,
    print_head,
    python,
    remove,
    report,
)

CHECKPOINTS = 1000
# bytes of each file of the table of dtypes
SAMPLE = 256 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to measure; 8 GB are written")
    parser.add_argument("--repeat", type=int, default=5, help="how often each conversion is measured")
    options = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="eaglectl-benchmark-", dir=options.scratch) as name:
        folder = Path(name).resolve()
        if shutil.disk_usage(folder).free < 8e9:
            sys.exit(f"{folder}: less than 8 GB are free; give another --scratch")
        # installed packages have their bytecode; the checkout's is made by the first run, outside of it
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
        # for Llama 3.1 8B: 1.9 GB
        large = make_drafter(folder / "large", 4096, 14336, 128, has_embedding=True)
        small = make_drafter(folder / "small", 8, 24, 2, has_embedding=False)
        print(describe_machine())
        print_head()
        measure_start(small, 5 * options.repeat)
        measure_convert(large, folder / "out", options.repeat)
        measure_ready(large, folder / "eagle", folder / "out", options.repeat)
        measure_weights(large, small, options.repeat)
        measure_many(small, folder / "many", max(options.repeat // 2, 1))
        measure_dtypes(folder)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load average at the end: {load}; {time.perf_counter() - start:.0f} s in all")


def describe_machine() -> str:
    """The machine, its load and the releases that the figures depend on, in one line."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("typer", "rich", "numpy"))
    return (
        f"{os.cpu_count()} cores of {_processor()}, {memory:.0f} GiB, Python {platform.python_version()},"
        f" {packages}; load average at the begin {os.getloadavg()[0]:.1f}\n"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")


def measure_start(source: Path, repeat: int) -> None:
    """Start-up as a multiple of typer's, in seconds of the processor, each run beside one of typer."""
    calls: dict[tuple[str, ...], float] = {
        ("--help",): 1.2,
        ("inspect", str(source)): 2.5,
        ("validate", "--headers-only", str(source)): 2.5,
    }
    for arguments, limit in calls.items():
        eaglectl(*arguments)  # makes the bytecode
        pairs = alternating(
            repeat, lambda: python("-c", "import typer"), lambda run=arguments: eaglectl(*run)
        )
        what = f"CPU of `{' '.join(arguments).removesuffix(str(source)).strip()}` / `import typer`"
        report(what, [run.cpu / base.cpu for base, run in pairs], most=limit)


def measure_convert(large: Path, out: Path, repeat: int) -> None:
    # each after an untimed copy: the source is in the page cache, and memory and disk are in the same state
    pairs = alternating(
        repeat,
        lambda: copy(large, out) and copy(large, out),
        lambda: copy(large, out) and convert(large, out),
    )
    size = f"{(large / WEIGHTS).stat().st_size / 1e9:.2f} GB"
    report(f"copy_file_range and fsync of {size}, s", [base.seconds for base, _ in pairs])
    report(f"`convert` of {size}, s", [run.seconds for _, run in pairs])
    report("`convert` / copy and fsync", [run.seconds / base.seconds for base, run in pairs], most=1.1)
    report("`convert`, CPU s less those of the copy", [run.cpu - base.cpu for base, run in pairs])
    report("`convert`, peak MB", [run.peak for _, run in pairs], most=80)


def convert(source: Path, out: Path) -> Child:
    """Convert SpecForge's spelling into vLLM's, and remove the output."""
    child = eaglectl("-q", "convert", source, "-o", out)
    if (out / WEIGHTS).stat().st_size < (source / WEIGHTS).stat().st_size - 1e5:
        sys.exit("convert did not do its work")
    remove(out)
    return child


def measure_ready(large: Path, stored: Path, out: Path, repeat: int) -> None:
    """`ready` without a target, of a file that SGLang does not start with, beside the three commands."""
    stored.mkdir()
    # the rope base that its trainer's code takes
    config = json.loads((large / "config.json").read_text()) | {
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": 10000.0,
    }
    (stored / "config.json").write_text(json.dumps(config))
    (stored / WEIGHTS).hardlink_to(large / WEIGHTS)
    engine = ("--engine", "sglang")
    pairs = alternating(
        repeat,
        lambda: three_commands(stored, out, engine),
        lambda: written(out, eaglectl("-q", "ready", stored, *engine, "-o", out)),
    )
    what = "`ready` / `inspect`, `convert` and `validate`"
    report(f"{what}, s", [run.seconds / base.seconds for base, run in pairs], most=1.0)
    report(f"{what}, CPU", [run.cpu / base.cpu for base, run in pairs], most=1.0)
    report("`ready`, peak MB less theirs", [run.peak - base.peak for base, run in pairs])
    remove(stored)


def three_commands(source: Path, out: Path, engine: tuple[str, ...]) -> Child:
    """What `ready` does without a target, one command after the other."""
    runs = [
        eaglectl("-q", "inspect", source),
        eaglectl("-q", "convert", source, "--for", "sglang", *engine, "-o", out),
        validate(out, *engine),
    ]
    sums = (sum(run.seconds for run in runs), sum(run.cpu for run in runs))
    return written(out, Child(*sums, max(run.peak for run in runs)))


def written(out: Path, child: Child) -> Child:
    """What a process took that wrote `out`, which is removed."""
    if not (out / WEIGHTS).is_file():
        sys.exit("nothing was converted")
    remove(out)
    return child


def copy(source: Path, out: Path) -> Child:
    """The least that any conversion can do: the same bytes into a new file, and on to the disk."""
    out.mkdir()
    start, cpu = time.perf_counter(), time.process_time()
    with (source / WEIGHTS).open("rb") as reader, (out / WEIGHTS).open("wb") as writer:
        while os.copy_file_range(reader.fileno(), writer.fileno(), 1 << 30):
            pass
        os.fsync(writer.fileno())
    child = Child(time.perf_counter() - start, time.process_time() - cpu)
    remove(out)
    return child


def measure_weights(large: Path, small: Path, repeat: int) -> None:
    """What `validate` takes for the weights: the same call on 2 MB is its start."""
    size = (large / WEIGHTS).stat().st_size / 1e9
    validate(small)
    runs = alternating(
        repeat, lambda: read(large) and validate(small), lambda: read(large) and validate(large)
    )
    report(f"`validate` of {size:.2f} GB, GB a CPU second", [size / run.cpu for _, run in runs])
    rates = [size / max(run.cpu - base.cpu, 1e-3) for base, run in runs]
    report("  the same less its start, GB a CPU second", rates, least=5)
    report("  peak MB", [run.peak for _, run in runs], most=150)


def measure_many(source: Path, folder: Path, repeat: int) -> None:
    """A thousand folders with the same files, by hard links."""
    many = [folder / f"{index:04}" for index in range(CHECKPOINTS)]
    for copied in many:
        copied.mkdir(parents=True)
        for file in source.iterdir():
            (copied / file.name).hardlink_to(file)
    limits: dict[tuple[str, ...], float | None] = {("--headers-only",): 4, (): None}
    for options, limit in limits.items():
        runs = [validate(*many, *options) for _ in range(repeat)]
        what = f"`{' '.join(('validate', *options))}` of {CHECKPOINTS} checkpoints, s"
        report(what, [run.seconds for run in runs], most=limit)
        report("  the same, CPU s", [run.cpu for run in runs])
        report("  the same, peak MB", [run.peak for run in runs], most=150)


def validate(*arguments: Path | str) -> Child:
    """Judge checkpoints; what is found does not matter here, but that they could be read does."""
    return eaglectl("-q", "validate", "--fail-on", "never", *arguments)


def read(source: Path) -> Child:
    """The least that any look at all bytes can do: from the page cache into one buffer."""
    buffer = memoryview(bytearray(BLOCK))
    start, cpu = time.perf_counter(), time.process_time()
    with (source / WEIGHTS).open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return Child(time.perf_counter() - start, time.process_time() - cpu)


def measure_dtypes(folder: Path) -> None:
    """The pass over the numbers of each dtype in this process, beside one copy of the same bytes."""
    from eaglectl.files.header import StoredTensor
    from eaglectl.files.source import FolderSource
    from eaglectl.judge.samples import FLOAT_FORMATS
    from eaglectl.judge.scanning import scan

    path = folder / WEIGHTS
    block = finite_block(0)
    for dtype in ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"):
        if dtype.startswith("F8"):  # words up to 0x3F are finite in both
            block = block.translate(bytes(byte & 0xBF for byte in range(256)))
        path.write_bytes(block * (SAMPLE // BLOCK))
        count = SAMPLE // FLOAT_FORMATS[dtype].width
        tensor = StoredTensor("w", dtype, (count,), WEIGHTS, 0, SAMPLE)
        rates, ratios = [], []
        for _ in range(5):
            base = read(folder).cpu
            start = time.process_time()
            scan(FolderSource(folder), [tensor])
            took = time.process_time() - start
            rates.append(SAMPLE / 1e9 / took)
            ratios.append(took / base)
        report(f"the pass over {dtype}, GB a CPU second", rates, least=5)
        report("  its CPU / reading the bytes into a buffer", ratios)


if __name__ == "__main__":
    main()
