"""`make gpu-kit`: parts below the limit, what is left out of vLLM's wheel, and the scripts that run it."""

import io
import os
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
RUN_KIT = ROOT / "tests/gpu/run_kit.sh"


def grouped(*sizes: int, limit: int = 100) -> list[list[str]]:
    files = [(Path(str(number)), size) for number, size in enumerate(sizes)]
    return [[path.name for path in group] for group in kit.parts(files, limit)]


def test_files_keep_their_order_and_fill_each_part_below_the_limit() -> None:
    assert grouped(60, 39, 1, 40, 99) == [["0", "1"], ["2", "3"], ["4"]]


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
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path / "out")) for path in files} == {
        "vllm/_C_stable_libtorch.abi3.so",
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        "vllm/third_party/deep_gemm/__init__.py",
        "vllm-0.26.0.dist-info/METADATA",
    }


@pytest.mark.parametrize("path", kit.LISTS, ids=lambda path: path.name)
def test_every_requirement_is_exact(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 20 and all(line.count("==") == 1 and ">" not in line for line in lines)


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
    command = ["bash", RUN_KIT, parts, work, "vllm smoke"]
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(tmp_path / "out")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{work}/site {work}/real 1 0 1", f"--out {tmp_path}/out vllm smoke"]
    assert (work / "site/vllm/__init__.py").exists() and (work / "project/COMMIT").read_text() == "abc"
    assert (work / "real/model.gguf").read_text() == "piece 1\npiece 2\n"
    assert sorted(path.name for path in (work / "real").iterdir()) == ["model.gguf", "packages"]
