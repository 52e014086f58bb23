"""What convert writes reads back as the drafter that went in, in every layout, or is refused."""

from pathlib import Path

import pytest

from eaglectl import api
from eaglectl.api.converting import ConvertOptions
from eaglectl.errors import EaglectlError, RefusedError
from eaglectl.formats.catalogue import writable
from tests.cases import CASES, Case
from tests.conftest import FIXTURES

TARGET = str(FIXTURES / "target")
PRODUCERS = FIXTURES / "producers"
OF_OTHER_TARGETS = ("eagle/wide-target", "modelopt-megatron/deep-unsorted-ids")


def test_layers_that_marks_would_move_are_refused(tmp_path: Path) -> None:
    source = PRODUCERS / "modelopt/hf-ids"
    words = (
        r"its modelopt marks make the layers \[4, 6, 8\], and \[3, 5, 7\] were trained on; write it"
        " --for vllm"
    )
    with pytest.raises(RefusedError, match=words):
        api.convert(str(source), tmp_path / "out", ConvertOptions("lightseekorg", target=TARGET))
    assert not (tmp_path / "out").exists()


def test_a_layout_of_mla_heads_takes_no_others(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no class for this drafter's attention; write it --for vllm"):
        api.convert(str(PRODUCERS / "vllm/native"), tmp_path / "out", ConvertOptions("torchspec-vllm"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_every_output_is_the_same_drafter(case: Case, tmp_path: Path) -> None:
    written = 0
    for layout in writable():
        out = tmp_path / layout
        try:
            done = api.convert(
                str(case.folder),
                out,
                ConvertOptions(layout, target=TARGET, target_name="org/name", answers=case.answered()),
            )
        except EaglectlError as error:
            assert "could not be read back" not in str(error)
            continue
        (out / "eaglectl.json").unlink()  # what another's output would not have
        meant, found = done.plan.drafter, api.inspect(str(out), target=TARGET).drafter
        assert found.dims == meant.dims
        assert (
            None in (found.aux.boundaries, meant.aux.boundaries)
            or found.aux.boundaries == meant.aux.boundaries
        )
        assert found.norms.norm_output in (None, meant.norms.norm_output)
        written += 1
    assert written or case.path in OF_OTHER_TARGETS
