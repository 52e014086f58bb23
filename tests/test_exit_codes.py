"""How calls end: the exit codes of right and wrong ones."""

import shlex
from pathlib import Path

import pytest

from tests.builders import call
from tests.conftest import FIXTURES

TINY, TARGET = "fixtures/tiny/eagle3", "fixtures/tiny/target"
ASKS = "fixtures/producers/specforge/eagle3.1"
# calls by their exit code; OUT is a folder of the test
CALLS = {
    0: (
        "--help",
        "--version",
        f"inspect {TINY} --target {TARGET}",
        f"inspect {ASKS} --assume-defaults",
        f"convert {TINY} --dry-run",
        f"convert {TINY} --out OUT/b --for sglang --json",
        f"validate {TINY} --headers-only",
        f"validate {TARGET} --headers-only --skip-others",
        f"diff {TINY} {TINY} --headers-only",
        "rules EGL201",
    ),
    1: (
        f"validate {TARGET} --headers-only",
        f"diff {TINY} {ASKS} --headers-only",
    ),
    2: (
        "",
        "nonsense",
        "inspect",
        f"inspect {TINY} --jsn",
        f"convert {TINY} --dry-run --to 3.1",
        f"convert {TINY} --dry-run --token-counts x.json",
        f"convert {TINY} --dry-run --fix-reading nonsense",
        f"convert {TINY} --dry-run --tolerance x",
        f"convert {TINY} --dry-run --target-rotation x",
        f"convert {TINY} my-target",
        f"convert {ASKS} --dry-run",
        f"calibrate {TINY}",
        f"calibrate {TINY} -o OUT/s --answer-tokens 0",
        f"calibrate {TINY} -o OUT/s --device tpu",
        f"calibrate {TINY} -o OUT/s --target {TARGET} --tensor-parallel-size 0",
        f"calibrate {TINY} -o OUT/s --target {TARGET} --engine-arg x",
        f"calibrate {TINY} -o OUT/s --target {TARGET} --engine-arg dtype=float16",
        f"calibrate {TINY} -o OUT/s --target {TARGET} --sample 3",
        f"validate {TINY} --headers-only --format sarif --json",
        f"validate {TINY} --headers-only --no-engines --engine vllm",
        f"validate {TINY} --headers-only --policy nowhere.toml",
        "validate",
        f"smoke {TINY} --target {TARGET} --run-in reference -k 0",
        f"smoke {TINY} --target {TARGET} --run-in reference --temperature -1",
        f"smoke {TINY} --target {TARGET} --run-in reference --max-regression 0.9",
        f"smoke {TINY} --target {TARGET} --run-in reference --against {TINY} --max-regression 0",
        f"smoke {TINY} --target {TARGET} --run-in reference --probe nonsense",
        f"smoke {TINY} --target {TARGET} --run-in reference --engine-arg a=1",
        f"smoke {TINY} --target {TARGET} --run-in reference --tensor-parallel-size 2",
        f"smoke {TINY} --target {TARGET} --run-in sglang --load-only",
        f"smoke {TINY} --target {TARGET} --load-only --page x.html",
        f"diagnose {TINY} --target {TARGET} --expected 9",
        f"diff {TINY}",
        f"upload {TINY} nonsense --dry-run",
        f"upload {TINY}",
        f"upload {TINY} org/name --dry-run --license other",
        f"upload {TINY} org/name --dry-run --base-model nonsense",
        f"upload {TINY} org/name --dry-run --revision 'a b'",
        f"upload {TINY} org/name --dry-run --tag -x",
        f"upload {TINY} org/name --dry-run --policy nowhere.toml",
        f"verify {TINY} --against nonsense",
    ),
    3: (
        "inspect nowhere",
        f"smoke {TINY} --target {TARGET} --load-only",
        f"upload {TINY} org/name --dry-run --smoke nowhere",
        f"verify {TINY}",
    ),
}


@pytest.mark.fast(10)
@pytest.mark.parametrize(("code", "text"), [(code, text) for code, texts in CALLS.items() for text in texts])
def test_a_call_ends_in_its_exit_code(
    code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FIXTURES.parent)
    done = call(*shlex.split(text.replace("OUT", str(tmp_path))))
    assert done.code == code, done.err
    # a reason, and no traceback
    assert bool((done.out + done.err).strip()) and "Traceback" not in done.err
