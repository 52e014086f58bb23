"""What runs a model says what to install where torch or transformers is absent."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from eaglectl.run.process import VLLM
from tests.tiny import TARGET, TINY

EAGLE3 = TINY / "eagle3"
RUN = """import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *more: None if name in sys.argv[1].split(",") else found(name, *more)
from eaglectl.cli import run
sys.exit(run(sys.argv[2:]))"""


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate", EAGLE3, "--target", TARGET, "-o"),
        ("convert", EAGLE3, "--to", "3.1", "--target", TARGET, "-o"),
        ("smoke", EAGLE3, "--target", TARGET, "--run-in", "reference", "--page"),
    ],
)
def test_a_run_of_the_target_says_what_to_install(arguments: tuple[str | Path, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, "torch,transformers", *map(str, arguments), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "needs torch and transformers; install eaglectl's torch extra" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_an_answer_with_what_json_alone_writes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "answer.json").write_text(r'{"answer": {"error": "\udcff", "loss": Infinity}}')
    (tmp_path / "child.py").write_text(
        "import sys\n"
        "from multiprocessing.connection import Connection\n"
        "pipe = Connection(int(sys.argv[2]))\n"
        "pipe.recv_bytes()\n"
        f"pipe.send_bytes(open({str(tmp_path / 'answer.json')!r}, 'rb').read())\n"
    )
    with replace(VLLM, child="child").started(10.0) as process:
        process.send({})
        assert process.receive() == {"error": "\udcff", "loss": float("inf")}
