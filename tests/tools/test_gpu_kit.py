"""`make gpu-kit`: parts below the limit, what is left out of vLLM's wheel, and the scripts that run it."""

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.tools.fat import OTHERS, OURS, fat
from tools.gpu import kit

ROOT = FIXTURES.parent
RUN, RUN_KIT = ROOT / "tests/gpu/run.sh", ROOT / "tests/gpu/run_kit.sh"
NEEDS_XZ = pytest.mark.skipif(shutil.which("xz") is None, reason="xz is not installed")


def grouped(*sizes: int, limit: int = 100) -> list[list[str]]:
    files = [(Path(str(number)), size) for number, size in enumerate(sizes)]
    return [[path.name for path in group] for group in kit.parts(files, limit)]


def test_files_keep_their_order_and_fill_each_part_below_the_limit() -> None:
    assert grouped(60, 39, 1, 40, 99) == [["0", "1"], ["2", "3"], ["4"]]


def test_a_part_of_exactly_the_limit_is_too_large() -> None:
    assert grouped(60, 40) == [["0"], ["1"]]


def test_a_file_larger_than_a_part_ends_in_its_name_and_size() -> None:
    with pytest.raises(SystemExit, match="0: 100 bytes are more than a part may have"):
        grouped(100)


def test_no_files_are_no_parts() -> None:
    assert grouped() == []


@pytest.mark.parametrize("size", [100, 101, 198, 199, 1000])
def test_the_pieces_of_a_large_file_are_below_the_limit_and_are_the_file(size: int, tmp_path: Path) -> None:
    whole = tmp_path / "model.gguf"
    whole.write_bytes(bytes(number % 251 for number in range(size)))
    cut = kit.pieces(whole, tmp_path / "pieces", limit=100)
    assert all(piece.stat().st_size < 100 for piece in cut)
    assert b"".join(piece.read_bytes() for piece in cut) == whole.read_bytes()
    assert cut[0].name == f"model.gguf.1-of-{len(cut)}"


def test_a_file_that_fits_is_its_only_piece(tmp_path: Path) -> None:
    whole = tmp_path / "model.gguf"
    whole.write_bytes(bytes(99))
    assert kit.pieces(whole, tmp_path / "pieces", limit=100) == [whole]


def test_a_kit_takes_the_place_of_the_last_and_each_part_has_the_script(tmp_path: Path) -> None:
    limit = kit.SCRIPT.stat().st_size + 100
    files = [tmp_path / name for name in "abc"]
    for path in files:
        path.write_bytes(bytes(60))
    (tmp_path / "kit/part-4").mkdir(parents=True)
    folders = kit.write_kit(tmp_path / "kit", files, limit)
    assert [folder.name for folder in folders] == ["part-1", "part-2", "part-3"]
    assert sorted(path.name for path in (tmp_path / "kit").iterdir()) == ["part-1", "part-2", "part-3"]
    assert all({path.name for path in folder.iterdir()} > {"run_kit.sh"} for folder in folders)
    assert all(kit.megabytes(folder) * 1e6 < limit for folder in folders)


def wheel(folder: Path) -> Path:
    """A wheel with a library of three architectures and what is left out."""
    path = folder / "vllm-0.26.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/_C_stable_libtorch.abi3.so", b"host" + fat(*OTHERS, OURS))
        archive.writestr("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", b"host code alone")
        archive.writestr("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", b"large")
        archive.writestr("vllm/vllm-rs", b"a server")
        archive.writestr("vllm/third_party/deep_gemm/include/cute/arch.hpp", b"a header")
        archive.writestr("vllm/third_party/deep_gemm/__init__.py", b"")
        archive.writestr("vllm-0.26.0.dist-info/METADATA", b"Name: vllm\nVersion: 0.26.0\n")
    return path


def test_a_wheel_is_unpacked_without_what_the_tests_do_not_use(tmp_path: Path) -> None:
    kit.unpack(wheel(tmp_path), tmp_path / "out", 90)
    names = {
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert names == {
        "vllm/_C_stable_libtorch.abi3.so",
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        "vllm/third_party/deep_gemm/__init__.py",
        "vllm-0.26.0.dist-info/METADATA",
    }


def test_the_libraries_of_a_wheel_keep_one_architecture(tmp_path: Path) -> None:
    kit.unpack(wheel(tmp_path), tmp_path / "out", 90)
    stored = (tmp_path / "out/vllm/_C_stable_libtorch.abi3.so").read_bytes()
    assert b"ours  90" in stored and b"eighty!!" not in stored and b"newer!!!" not in stored
    assert (tmp_path / "out/vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so").read_bytes() == b"host code alone"


@NEEDS_XZ
def test_vllm_is_packed_once_and_its_unpacked_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "vllm-0.26.0").mkdir()
    source = wheel(tmp_path / "vllm-0.26.0")
    packed = kit.vllm(tmp_path, "3.12", "0.26.0", 90)
    with tarfile.open(packed) as archive:
        assert "./vllm/_C_stable_libtorch.abi3.so" in archive.getnames()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vllm-0.26.0", "vllm-0.26.0-sm90.tar.xz"]
    source.unlink()
    assert kit.vllm(tmp_path, "3.12", "0.26.0", 90) == packed  # nothing is asked for it again


@pytest.mark.parametrize(
    ("file", "pin"),
    [
        ("msgspec-0.22.0-cp312-cp312-manylinux_2_28_x86_64.whl", "msgspec==0.22.0"),
        ("annotated_types-0.8.0-py3-none-any.whl", "annotated-types==0.8.0"),
        ("Jinja2-3.1-py3-none-any.whl", "jinja2==3.1"),
    ],
)
def test_the_wheel_of_a_pin_is_found_by_its_normal_name(file: str, pin: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    assert kit.wheel_of(tmp_path, pin) == tmp_path / file
    assert kit.wheel_of(tmp_path, f"{pin}.1") is None


@pytest.mark.parametrize("path", kit.LISTS, ids=lambda path: path.name)
def test_every_requirement_is_exact(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 20 and all(line.count("==") == 1 and ">" not in line for line in lines)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def bash(*words: object, **environment: object) -> "subprocess.CompletedProcess[str]":
    given = {name: str(value) for name, value in environment.items()}
    command = ["bash", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | given)


# a Python that lacks what `answers` says until pip has run, writes down what pip is told, and prints its path
PYTHON = """cd "$(dirname "$0")"
case "$1 $2" in
"- ") cat > /dev/null; cat answers ;;
"-m pip") echo "$@" > pip-words; : > answers ;;
"-m tests.gpu") echo "$PYTHONPATH"; shift 2; echo "$@" ;;
esac
"""


def test_the_path_under_which_packages_were_found_is_kept(tmp_path: Path) -> None:
    (tmp_path / "answers").touch()
    python = script(tmp_path / "python", PYTHON)
    done = bash(RUN, "vllm smoke", PYTHON=python, SITE=tmp_path / "site", PYTHONPATH="/given:/too")
    assert done.stdout.splitlines() == [f"{tmp_path}/site:{ROOT}:/given:/too", "vllm smoke"]
    assert done.returncode == 0 and not (tmp_path / "pip-words").exists()


def test_packages_that_are_lacking_are_installed_into_a_folder_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("msgspec\n")
    python = script(tmp_path / "python", PYTHON)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/msgspec-1-py3-none-any.whl").touch()
    done = bash(RUN, PYTHON=python, SITE=tmp_path / "site", WHEELS=tmp_path / "wheels")
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "pip-words").read_text()
    assert f"--no-index --no-deps --no-compile --upgrade --target {tmp_path}/site" in words
    assert words.endswith("wheels/msgspec-1-py3-none-any.whl\n") and "venv" not in words


def test_packages_that_nothing_has_are_named_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("msgspec typer\n")
    python = script(tmp_path / "python", PYTHON)
    done = bash(RUN, PYTHON=python, SITE=tmp_path / "site", WHEELS=tmp_path / "no-wheels")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{python} lacks msgspec typer: run `make gpu-kit`" in done.stderr


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A kit of two parts, whose project prints what it is run with."""
    for number in (1, 2):
        (tmp_path / f"kit/part-{number}").mkdir(parents=True)
        (tmp_path / f"kit/part-{number}/model.gguf.{number}-of-2").write_text(f"piece {number}\n")
    told = (
        'echo "$SITE $EAGLECTL_REAL $HF_HUB_OFFLINE $VLLM_USE_FLASHINFER_SAMPLER $PIP_NO_INDEX"; echo "$@"\n'
    )
    pack(tmp_path / "kit/part-1/project-abc.tar.xz", {"tests/gpu/run.sh": told, "COMMIT": "abc"})
    pack(tmp_path / "kit/part-2/vllm-0.26.0-sm90.tar.xz", {"vllm/__init__.py": ""})
    return tmp_path / "kit"


def pack(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:xz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def test_a_kit_is_installed_and_run_with_its_own_environment(parts: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    done = bash(RUN_KIT, parts, work, "vllm smoke", PYTHON=sys.executable, OUT=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{work}/site {work}/real 1 0 1", f"--out {tmp_path}/out vllm smoke"]
    assert (work / "site/vllm/__init__.py").exists() and (work / "project/COMMIT").read_text() == "abc"
    assert (work / "real/model.gguf").read_text() == "piece 1\npiece 2\n"
    assert sorted(path.name for path in (work / "real").iterdir()) == ["model.gguf", "packages"]


def test_parts_that_come_one_after_another_make_the_same(parts: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for number, only in ((2, "1"), (1, "")):
        assert not (work / "real/model.gguf").exists()
        done = bash(RUN_KIT, parts / f"part-{number}", work, PYTHON=sys.executable, INSTALL_ONLY=only)
        assert done.returncode == 0, done.stderr
    assert (work / "real/model.gguf").read_text() == "piece 1\npiece 2\n"
    assert (work / "site/vllm/__init__.py").exists() and "--out" in done.stdout


def test_a_kit_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = bash(RUN_KIT, tmp_path / "no-kit", tmp_path / "work", PYTHON=sys.executable)
    assert done.returncode != 0 and "no-kit" in done.stderr
    assert not (tmp_path / "work").exists()
