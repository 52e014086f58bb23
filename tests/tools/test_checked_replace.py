"""mypy with the project's plugin sees the names and the types that are given to `msgspec.structs.replace`."""

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import FIXTURES

ROOT = FIXTURES.parent

CODE = """from msgspec import Struct
from msgspec.structs import replace


class Plan(Struct, frozen=True):
    name: str
    size: int = 0


def changed(plan: Plan) -> None:
    replace(plan, name="a", size=1)
    replace(plan, sise=1)
    replace(plan, size="1")
"""


def test_a_name_that_no_field_has_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "plan.py"
    file.write_text(CODE)
    config = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path))
    command = [sys.executable, "-m", "mypy", *config, file]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert 'Unexpected keyword argument "sise" for "replace"' in done.stdout
    assert 'Argument "size" to "replace" has incompatible type "str"' in done.stdout
    assert set(re.findall(r":(\d+): error", done.stdout)) == {"12", "13"} and done.returncode == 1
