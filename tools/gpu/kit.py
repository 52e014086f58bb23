"""Make what runs tests/gpu on a machine with a GPU and without a network: `make gpu-kit`.

    python -m tools.gpu.kit OUT [--cache CACHE] [--python 3.12] [--vllm 0.26.0] [--arch 90] [--with-target]

OUT then has the folders part-1, part-2 and so on, each below 64 MB, and in each `run_kit.sh`, which installs
the parts that it is given and runs the tests. They hold the project of the last commit, wheels of
tests/gpu/requirements*.txt, vLLM with the code of one GPU architecture, and with --with-target the GGUF file
of the real target. What is downloaded and packed is kept in CACHE and made once.
"""

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.gpu.strip import MAGIC, strip
from tools.real.target import fetch_gguf

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 64_000_000
SCRIPT = ROOT / "tests/gpu/run_kit.sh"
LISTS = (ROOT / "tests/gpu/requirements.txt", ROOT / "tests/gpu/requirements-vllm.txt")
# of vLLM's wheel: FlashAttention 2 (3 is there), the server in Rust, headers for compiling at run time
LEFT_OUT = re.compile(r"_vllm_fa2_C|vllm/vllm-rs$|third_party/[^/]+/include/")
GLIBC = (35, 34, 31, 28, 17)  # of Ubuntu 22.04, and older
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in GLIBC), "manylinux2014_x86_64", "any")


def pip_download(folder: Path, python: str, packages: Sequence[str]) -> None:
    """Download wheels of exactly these packages, for another Python than this."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["-qq", "--no-deps", "--only-binary", ":all:", "--implementation", "cp", *platforms]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options]
    subprocess.run([*command, "--python-version", python, "--dest", folder, *packages], check=True)


def wheels(cache: Path, python: str) -> list[Path]:
    """The wheels of the lists, in their order; those that the cache has are not downloaded again."""
    folder = cache / f"wheels-{python}"
    pins = [pin for path in LISTS for pin in path.read_text().splitlines() if pin and not pin.startswith("#")]
    if lacking := [pin for pin in pins if not wheel_of(folder, pin)]:
        pip_download(folder, python, lacking)
    return [wheel for pin in pins if (wheel := wheel_of(folder, pin))]


def wheel_of(folder: Path, pin: str) -> Path | None:
    """The wheel of `name==version` in a folder."""
    name, _, version = pin.partition("==")
    start = f"{name.replace('-', '_')}-{version}-".lower()
    return next((path for path in sorted(folder.glob("*.whl")) if path.name.lower().startswith(start)), None)


def project(cache: Path) -> Path:
    """The last commit as an archive, in which COMMIT names it."""
    commit = git("rev-parse", "--short=10", "HEAD").decode().strip()
    path = cache / f"project-{commit}.tar.xz"
    if not path.exists():
        archive = git("archive", "--format=tar", f"--add-virtual-file=COMMIT:{commit}", "HEAD")
        compress(archive, path, level=6)
    return path


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, *words], check=True, stdout=subprocess.PIPE).stdout


def compress(data: bytes, path: Path, level: int) -> None:
    """Write `data` as a file of xz that is there whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        subprocess.run(["xz", f"-{level}", "--threads=2", "--stdout"], input=data, stdout=file, check=True)
    part.rename(path)


def vllm(cache: Path, python: str, release: str, arch: int) -> Path:
    """vLLM's wheel without what the tests do not use, with the GPU code of one architecture."""
    path = cache / f"vllm-{release}-sm{arch}.tar.xz"
    if path.exists():
        return path
    unpacked = cache / f"vllm-{release}-unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    folder = cache / f"vllm-{release}"
    if not list(folder.glob("vllm-*.whl")):
        pip_download(folder, python, [f"vllm=={release}"])
    (wheel,) = folder.glob("vllm-*.whl")
    unpack(wheel, unpacked, arch)
    order = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    tar = subprocess.run(["tar", "-C", unpacked, *order, "-cf", "-", "."], check=True, stdout=subprocess.PIPE)
    compress(tar.stdout, path, level=3)
    shutil.rmtree(unpacked)
    return path


def unpack(wheel: Path, folder: Path, arch: int) -> None:
    """Unpack a wheel without what is left out; GPU code of other architectures is zeros."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not LEFT_OUT.search(name)]
        archive.extractall(folder, names)
    for library in sorted(folder.rglob("*.so")):
        data = bytearray(library.read_bytes())
        if MAGIC in data and strip(data, arch):
            library.write_bytes(data)


def pieces(path: Path, folder: Path, limit: int = LIMIT) -> list[Path]:
    """A file as it is; one larger than a part as pieces `NAME.1-of-N` of about equal size in `folder`."""
    size = path.stat().st_size
    if size < limit:
        return [path]
    count = -(-size // (limit - 1))
    folder.mkdir(parents=True, exist_ok=True)
    cut = []
    with path.open("rb") as file:
        for number in range(1, count + 1):
            piece = folder / f"{path.name}.{number}-of-{count}"
            piece.write_bytes(file.read(-(-size // count)))
            cut.append(piece)
    return cut


def parts(files: Iterable[tuple[Path, int]], limit: int = LIMIT) -> list[list[Path]]:
    """Files with their sizes, in this order, in as few groups as that allows, each below `limit` bytes."""
    groups: list[list[Path]] = []
    room = 0
    for path, size in files:
        if size >= limit:
            raise SystemExit(f"{path}: {size} bytes are more than a part may have ({limit})")
        if not groups or size >= room:
            groups.append([])
            room = limit
        groups[-1].append(path)
        room -= size
    return groups


def write_kit(out: Path, files: Sequence[Path], limit: int = LIMIT) -> list[Path]:
    """Write the parts of a kit, which take the place of those that are there."""
    script = SCRIPT.stat().st_size
    for old in out.glob("part-*"):
        shutil.rmtree(old)
    folders = []
    for number, group in enumerate(parts(((path, path.stat().st_size) for path in files), limit - script), 1):
        folder = out / f"part-{number}"
        folder.mkdir(parents=True)
        for path in (*group, SCRIPT):
            shutil.copy(path, folder)
        folders.append(folder)
    return folders


def megabytes(folder: Path) -> float:
    """The size of all files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def main() -> None:
    """Make the kit and print each part's size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("gpu-kit-cache"))
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    parser.add_argument("--vllm", default="0.26.0", help="the release whose wheel pins that machine's torch")
    parser.add_argument("--arch", type=int, default=90, help="90: H100, H200")
    parser.add_argument("--with-target", action="store_true", help="add the real target's GGUF file, 95 MB")
    words = parser.parse_args()
    words.cache.mkdir(parents=True, exist_ok=True)
    files = [project(words.cache), *wheels(words.cache, words.python)]
    files.append(vllm(words.cache, words.python, words.vllm, words.arch))
    if words.with_target:
        files += pieces(fetch_gguf(words.cache), words.cache / "pieces")
    for folder in write_kit(words.out, files):
        print(f"{folder}: {megabytes(folder):.1f} MB, {len(list(folder.iterdir()))} files")
    print(f"on the machine with the GPU: bash {words.out}/part-1/run_kit.sh {words.out}")


if __name__ == "__main__":
    main()
