"""What `validate` costs: start-up and headers for one checkpoint and for a hundred, and the pass over the
weights (see README.md).
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from measure import WEIGHTS, Child, alternating, eaglectl, make_drafter, report

BLOCK = 4 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--scratch", type=Path, help="a folder on the disk to measure; 3 GB are written and removed"
    )
    parser.add_argument("--repeat", type=int, default=7, help="how often each call is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eaglectl-benchmark-", dir=options.scratch) as name:
        folder = Path(name).resolve()
        if shutil.disk_usage(folder).free < 4e9:
            sys.exit(f"{folder}: less than 4 GB are free; give another --scratch")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
        print(f"{'':<48}{'median':>9}{'min':>9}{'max':>9}  budget")
        small = finite(make_drafter(folder / "small", 8, 24, 2, has_embedding=False))
        measure_headers(small, folder, 3 * options.repeat)
        large = finite(make_drafter(folder / "large", 5120, 17408, 128, has_embedding=True))
        measure_weights(large, small, options.repeat)
        print(f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


def measure_headers(source: Path, folder: Path, repeat: int) -> None:
    hundred = [shutil.copytree(source, folder / "hundred" / f"{index:03}") for index in range(100)]
    validate(source, "--headers-only")  # makes the bytecode
    pairs = alternating(
        repeat, lambda: eaglectl(code="import typer"), lambda: validate(source, "--headers-only")
    )
    report("headers only, 1 checkpoint, s", [run.seconds for _, run in pairs], 0.3)
    report("the same - import typer, s", [run.seconds - base.seconds for base, run in pairs])
    report("the same, CPU s", [run.cpu for _, run in pairs])
    runs = [validate(*hundred, "--headers-only") for _ in range(max(repeat // 3, 3))]
    report("headers only, 100 checkpoints, s", [run.seconds for run in runs], 3)
    report("the same, CPU s", [run.cpu for run in runs])


def measure_weights(large: Path, small: Path, repeat: int) -> None:
    size = (large / WEIGHTS).stat().st_size / 1e9
    validate(small)  # makes the bytecode
    # each after an untimed read: some machines soon take back the page cache of what nobody uses
    pairs = alternating(repeat, lambda: read(large) and read(large), lambda: read(large) and validate(large))
    others = [validate(small) for _ in range(repeat)]
    print(f"a file of {size:.2f} GB in the page cache")
    report("reading it, s/GB", [base.seconds / size for base, _ in pairs])
    report("validate, s/GB", [run.seconds / size for _, run in pairs], 0.4)
    report("validate, CPU s/GB", [run.cpu / size for _, run in pairs], 0.4)
    base = min(run.cpu for run in others)
    report("validate without its start-up, CPU s/GB", [(run.cpu - base) / size for _, run in pairs])
    report("validate, peak MB", [run.peak for _, run in pairs], 150)
    report("validate of 2 MB, peak MB", [run.peak for run in others], 150)


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


def finite(folder: Path) -> Path:
    """The drafter with the random bits of its weights made numbers of the size of weights, as trained ones
    are.
    """
    path, noise = folder / WEIGHTS, random.Random(1)
    exponents = bytes(0x3C | byte & 0x81 for byte in range(256))
    block = bytearray(BLOCK)
    block[0::2], block[1::2] = noise.randbytes(BLOCK // 2), noise.randbytes(BLOCK // 2).translate(exponents)
    with path.open("r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little") + 32_000 * 8
        end = path.stat().st_size - 128_256
        file.seek(start)
        while left := end - file.tell():
            file.write(block[: min(BLOCK, left)])
    os.sync()
    return folder


if __name__ == "__main__":
    main()
