"""Rules on files: every bad case is a good drafter, a patch, and exactly the findings it must give."""

from pathlib import Path

import pytest

from tests.validation.patches import Patch, check

BAD = (Patch("a pickle beside the weights", ("EGL002",), files={"pytorch_model.bin": b"x"}, says="pytorch_model.bin"),)


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_a_bad_file_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)
