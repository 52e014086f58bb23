"""mypy with the project's plugin sees the names and the types that are given to `msgspec.structs.replace`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES

ROOT = FIXTURES.parent

CODE = """from msgspec import Struct
from msgspec.structs import replace


class Plan(Struct, frozen=True):
    name: str
    size: int = 0


def changed(plan: Plan) -> Plan:
    return replace(plan, {given})
"""


@pytest.mark.parametrize(
    "given, error",
    [
        ("name='a', size=1", None),
        ("sise=1", 'Unexpected keyword argument "sise" for "replace"'),
        ("size='1'", 'Argument "size" to "replace" has incompatible type "str"'),
    ],
)
def test_a_name_that_no_field_has_is_an_error(tmp_path: Path, given: str, error: str | None) -> None:
    file = tmp_path / "plan.py"
    file.write_text(CODE.format(given=given))
    config = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *config, file], capture_output=True, text=True, cwd=ROOT
    )
    assert (error or "Success") in done.stdout, done.stdout + done.stderr
    assert bool(error) == (done.returncode == 1)
