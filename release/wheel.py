"""Build the wheel as two unlike machines would; dist/ gets it if both are the same bytes: `make wheel`."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
# not in the first releases of Python 3.11; the archive is our own
FILTER: Mapping[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
DIST = ROOT / "dist"
SUMS = DIST / "SHA256SUMS"
SCHEMA = re.compile(r"schemas/[\w.-]+\.schema\.json")
PACKAGED = re.compile(
    rf"eaglectl/(?:{SCHEMA.pattern}"
    r"|(?:\w+/)*(?:[\w.]+\.json|\w+\.(?:pyi?|jsonl|css)|py\.typed))"
)
TEST = re.compile(r"/(?:tests?/|test_\w+\.py$|conftest\.py$)")
METADATA = re.compile(
    r"eagle_drafter_tools-[\w.]+\.dist-info/(?:METADATA|WHEEL|RECORD|entry_points\.txt|licenses/(?:.+/)?LICENSE[\w.]*)"
)
# what must not change the wheel: rights and times of files, time zone, language, the order of sets
FIRST = (0o022, 1_000_000_000, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"})
SECOND = (0o077, 2_000_000_000, {"TZ": "Asia/Kolkata", "LC_ALL": "C", "PYTHONHASHSEED": "2"})


def tree() -> list[str]:
    """The files of the checkout that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in names if (ROOT / name).is_file()]


def expected(names: Iterable[str]) -> set[str]:
    """What the wheel of a checkout with these files must hold besides its metadata."""
    names = set(names)
    schemas = {f"eaglectl/{name}" for name in names if SCHEMA.fullmatch(name)}
    return schemas | {name for name in names if name.startswith("eaglectl/")}


def faults(held: Iterable[str], names: Iterable[str]) -> list[str]:
    """What is wrong with a wheel that holds the files `held`, of a checkout with the files `names`."""
    content = {name for name in held if not METADATA.fullmatch(name)}
    wanted = expected(names)
    strays = {name for name in content if TEST.search(name) or not PACKAGED.fullmatch(name)}
    return [
        *(f"missing: {name}" for name in sorted(wanted - content)),
        *(f"not of the package: {name}" for name in sorted((content - wanted) | strays)),
    ]


def build(kind: str, place: Path, out: Path, machine: tuple[int, int, Mapping[str, str]]) -> Path:
    """Build a wheel or an sdist of the files in `place` with the installed hatchling."""
    umask, mtime, env = machine
    for path in place.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (mtime, mtime))
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"} | dict(env)
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    process = subprocess.run(command, cwd=place, capture_output=True, text=True, env=env, umask=umask)
    if process.returncode:
        sys.exit(process.stdout + process.stderr)
    (built,) = out.iterdir()
    return built


def two_wheels(names: Iterable[str], place: Path) -> tuple[Path, Path]:
    """One wheel of a copy of the checkout, and one of the sdist of another copy."""
    for name in names:
        for copy in (place / "a" / name, place / "elsewhere/b" / name):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
    first = build("wheel", place / "a", place / "first", FIRST)
    sdist = build("sdist", place / "elsewhere/b", place / "sdist", SECOND)
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", **FILTER)
    (unpacked,) = (place / "unpacked").iterdir()
    return first, build("wheel", unpacked, place / "second", SECOND)


def record(path: Path) -> str:
    """The line of a file in SHA256SUMS."""
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"


def main() -> int:
    """Write the wheel and SHA256SUMS; 1 if it is not reproducible, or holds too much or too little."""
    names = tree()
    with TemporaryDirectory() as folder:
        first, second = two_wheels(names, Path(folder))
        wrong = faults(zipfile.ZipFile(first).namelist(), names)
        if record(first) != record(second):
            wrong += [f"of the checkout: {record(first)}", f"of its sdist:    {record(second)}"]
        if wrong:
            print(f"{first.name}:", *wrong, sep="\n  ")
            return 1
        DIST.mkdir(exist_ok=True)
        for old in DIST.glob("eagle_drafter_tools-*"):
            old.unlink()
        shutil.copyfile(first, DIST / first.name)
    SUMS.write_text(record(DIST / first.name) + "\n")
    print(f"{record(DIST / first.name)}: the same of the checkout and of its sdist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
