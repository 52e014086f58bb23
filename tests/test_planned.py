"""A plan ends as the conversion does: what `convert` does not write, `convert --dry-run` does not plan."""

import json
import re
import shutil
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import EaglectlError, RefusedError
from tests.builders import (
    HIDDEN,
    Outcome,
    call,
    drafter_folder,
    floats,
    read_safetensors,
    write_safetensors,
)
from tests.conftest import FIXTURES, sampled
from tests.tiny import TARGET, TINY
from tests.validation import test_plausible, test_rotation, test_values, test_vocabulary, test_weights
from tests.validation.judging import every_patch
from tests.validation.patches import Patch

MODULES = (test_values, test_plausible, test_weights, test_vocabulary, test_rotation)
PATCHES = [patch for module in MODULES for patch in module.BAD]


BROKEN = re.compile(r"the output would be broken: (EGL\d+)|no \w+ of .* as trained")


def refusal_of(folder: Path, out: Path, patch: Patch, *, dry_run: bool) -> str:
    target = str(TARGET) if patch in test_plausible.BAD else None
    try:
        eaglectl.convert(folder, out, target=target, dry_run=dry_run)
    except RefusedError as error:
        refusal = BROKEN.search(str(error))
        return refusal[1] or "unserved" if refusal else str(error)
    except EaglectlError as error:
        return str(error)
    return ""


@pytest.mark.fast(6)
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.why)
def test_a_plan_is_refused_where_the_conversion_is(patch: Patch, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    folder, out = patch.build(tmp_path), tmp_path / "out"
    planned = refusal_of(folder, out, patch, dry_run=True)
    assert not out.exists()
    assert planned == refusal_of(folder, out, patch, dry_run=False)


# those of rules that read configs, headers and the target: what was wrong of the source may be mended, and
# what is wrong of the output must be seen
OTHERS = [patch for patch in every_patch("") if patch not in PATCHES]
ASKED = ("--engine", "vllm", "--engine", "sglang", "--assume-defaults", "--no-measure")


def without_next(outcome: Outcome) -> tuple[int, str]:
    """The exit code, and what the first line says of the engines."""
    first, _, engines = (outcome.out or outcome.err).splitlines()[0].partition("; ")
    return outcome.code, engines if outcome.out else first


@pytest.mark.parametrize("patch", sampled(OTHERS, 40), ids=lambda patch: patch.why)
def test_a_plan_says_of_the_engines_what_the_conversion_says(patch: Patch, tmp_path: Path) -> None:
    check_plan(patch, tmp_path)


@pytest.mark.parametrize(
    "why", ["input_norm unstated", "no token past a smaller target", "another drafter", "untrained"]
)
def test_a_plan_says_so_where_the_output_differs_from_the_source(why: str, tmp_path: Path) -> None:
    (patch,) = (patch for patch in OTHERS if patch.why == why)
    check_plan(patch, tmp_path)


def check_plan(patch: Patch, place: Path) -> None:
    target: list[str | Path] = []
    if patch.target_config is not None:  # before the drafter: some patches change the target's files
        (place / "target").mkdir()
        (place / "target/config.json").write_text(json.dumps(patch.target_config))
        target = ["--target", place / "target"]
    given = ["convert", patch.build(place), *target, *ASKED, "-o", place / "out"]
    planned = call(*given, "--dry-run")
    assert without_next(planned) == without_next(call(*given))


@pytest.mark.parametrize("options", [(), ("--for", "sglang"), ("--for", "eagle")], ids=" ".join)
def test_a_plan_without_engines_says_of_the_same_ones_what_the_conversion_says(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    given = ("convert", TINY / "eagle3", *options, "-o", tmp_path / "out")
    planned = call(*given, "--dry-run")
    assert "SGLang" in planned.out.splitlines()[0]
    assert without_next(planned) == without_next(call(*given))


@pytest.mark.parametrize("is_pickle", [False, True])
def test_a_dry_run_of_a_number_that_is_not_finite_is_no_plan(is_pickle: bool, tmp_path: Path) -> None:
    stored = floats("norm", HIDDEN)
    broken = (stored[0], stored[1], b"\xc0\x7f" + stored[2][2:])
    if is_pickle:
        pytest.importorskip("torch")
        from tests.pickles import pickled_folder, state

        value = state()
        value["norm.weight"][0] = float("nan")
        folder = pickled_folder(tmp_path, value)
    else:
        folder = drafter_folder(tmp_path, tensors={"norm.weight": broken})
    planned = call("convert", folder, "--dry-run")
    assert planned.code == 1 and "EGL205 norm.weight holds NaN" in planned.err and not planned.out
    assert call("convert", folder, "--dry-run", "--force-unserved").code == 0


def test_a_dry_run_of_a_good_drafter_is_a_plan(tmp_path: Path) -> None:
    planned = call("convert", drafter_folder(tmp_path), "--dry-run")
    assert planned.code == 0 and planned.out.startswith("planned: ")


@pytest.mark.parametrize("options", [(), ("-q",)], ids=" ".join)
def test_the_first_line_says_what_validate_cannot_tell(options: tuple[str, ...], tmp_path: Path) -> None:
    given, out = ("--target", FIXTURES / "target", "--engine", "vllm"), tmp_path / "out"
    written = call(*options, "convert", FIXTURES / "producers/modelopt/hf-mla", *given, "-o", out)
    assert written.code == 0 and call("validate", out, *given).code == 3
    assert "it is not known whether vLLM" in written.out.splitlines()[0]


@pytest.mark.parametrize("layout", ["modelopt", "llama.cpp"])
def test_a_dtype_of_a_tensor_that_is_split_is_looked_at_in_a_plan(layout: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "producers/vllm/fused", tmp_path / "drafter")
    tensors = read_safetensors(folder / "model.safetensors")
    name = "layers.0.mlp.gate_up_proj.weight"
    tensors[name] = ("I64", tensors[name][1], tensors[name][2] * 4)
    write_safetensors(folder / "model.safetensors", tensors)
    given = ("convert", folder, "--for", layout, "-o", tmp_path / "out")
    planned = call(*given, "--dry-run")
    assert "the output would be broken: EGL204 layers.0.mlp.gate_proj.weight is I64" in planned.err
    assert (planned.code, planned.err) == (1, call(*given).err)


@pytest.mark.parametrize("size", ["1KB", "3KB"])
def test_a_plan_with_shards_smaller_than_a_tensor_is_refused(size: str, tmp_path: Path) -> None:
    given = ("convert", drafter_folder(tmp_path), "--max-shard-size", size, "-o", tmp_path / "out")
    planned = call(*given, "--dry-run")
    assert planned.code == (2 if size == "1KB" else 0)
    assert (planned.code, planned.err) == ((done := call(*given)).code, done.err)
