"""Numbers that pass every other rule: the tiny trained drafter with one change, and exactly what is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import eaglectl
from eaglectl.conversion.arithmetic import decode, encode
from eaglectl.drafter.drafter import Target
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.rules import rules
from eaglectl.judge.samples import RANGES, read_vectors, sample_matrices
from tests.builders import STATED, Stored, call, read_safetensors, write_safetensors
from tests.conftest import FIXTURES
from tests.tiny import PROMPTS, TARGET, TINY
from tests.validation.patches import Patch, check

Array = npt.NDArray[np.float64]
TRAINED = [
    *(TINY / name for name in ("eagle3", "eagle3.1")),
    *(FIXTURES / "second" / name for name in ("eagle3", "mla")),
    *(FIXTURES / "real" / name for name in ("specforge", "speculators")),
]
FC, HEAD, NORM = "fc.weight", "lm_head.weight", "norm.weight"
Q = "midlayer.self_attn.q_proj.weight"


def values(stored: Stored) -> Array:
    return decode(stored[2], stored[0], "").reshape(stored[1])


def changed(change: Callable[[Array], Any], *names: str) -> Callable[[dict[str, Stored]], None]:
    """A change, in place, of the numbers of the tensors whose names end so."""

    def apply(tensors: dict[str, Stored]) -> None:
        for name in [name for name in tensors if name.endswith(names)]:
            numbers = values(tensors[name])
            change(numbers)
            tensors[name] = (tensors[name][0], tensors[name][1], encode(numbers, tensors[name][0], name))

    return apply


def zeros(*place: slice) -> Callable[[Array], None]:
    return lambda numbers: numbers.__setitem__(place, 0)


def shrunk(numbers: Array) -> None:
    numbers[:, 256:] *= 0.001


def add(step: float) -> Callable[[Array], None]:
    return lambda numbers: numbers.__iadd__(step)


def drawn(numbers: Array) -> None:
    numbers[:] = np.random.default_rng(0).normal(0, 0.02, numbers.shape)


def as_torch(numbers: Array) -> None:
    bound = numbers.shape[1] ** -0.5
    numbers[:] = np.random.default_rng(0).uniform(-bound, bound, numbers.shape)


def copied(numbers: Array) -> None:
    half = len(numbers) // 2
    numbers[half:] = numbers[:half]


def repeated(numbers: Array) -> None:
    numbers[1::2] = numbers[::2]


def spike(numbers: Array) -> None:
    numbers.flat[77] = 3e4


def declared(dtype: str) -> Callable[[dict[str, Stored]], None]:
    """Every word of the other 16-bit dtype stated as this one."""
    other = {"F16": "BF16", "BF16": "F16"}[dtype]

    def apply(tensors: dict[str, Stored]) -> None:
        for name, stored in tensors.items():
            if stored[0] == "BF16":
                tensors[name] = (dtype, stored[1], encode(values(stored), other, name))

    return apply


def last_norm_of_ones(tensors: dict[str, Stored]) -> None:
    dtype, shape, _ = tensors[NORM]
    tensors[NORM] = (dtype, shape, b"\x80\x3f" * shape[0])


# true of the fixture, and of two heads for four GPUs
NOTES = ("EGL110", "EGL309", "EGL409", "EGL707")


def patched(
    why: str, rule: str, change: Callable[[dict[str, Stored]], None], says: str, **config: Any
) -> Patch:
    """The tiny drafter with one change, the only finding of which is of `rule`."""

    def apply(folder: Path) -> None:
        tensors = read_safetensors(folder / "model.safetensors")
        change(tensors)
        write_safetensors(folder / "model.safetensors", tensors)

    given = {"target": str(TARGET), "ignore": NOTES}
    return Patch(why, (rule,), config, also=apply, given=given, says=says, fixture="../tiny/eagle3")


def no_change(_: dict[str, Stored]) -> None:
    """The tensors as they are."""


NORMS = ("norm.weight", "layernorm.weight")
SECOND = (slice(None), slice(128, 256))
OTHER_HEADS = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
AS_FLOAT16 = {"torch_dtype": "float16", "dtype": "float16"}
BAD = (
    patched("an aux block of zeros", "EGL217", changed(zeros(*SECOND), FC), "boundary 4 is not read at all"),
    patched("a block of tiny numbers", "EGL217", changed(shrunk, FC), "boundary 5 is hardly read: 0.001"),
    patched(
        "an input half of zeros",
        "EGL217",
        changed(zeros(slice(None), slice(0, 128)), Q),
        "the embedding is not read at all by midlayer.self_attn.q_proj.weight",
    ),
    patched("half a head of zeros", "EGL218", changed(zeros(slice(160, None)), HEAD), "looked at are zeros"),
    patched("half a head copied", "EGL218", changed(copied, HEAD), "are copies of other rows"),
    patched("rows in pairs", "EGL218", changed(repeated, HEAD), "those tokens are hardly drafted"),
    patched("norms less one", "EGL509", changed(add(-1), *NORMS), "weights that are stored less one"),
    patched("norms and one", "EGL510", changed(add(1), *NORMS), "weights to which one was added"),
    patched(
        "a last norm of ones", "EGL511", last_norm_of_ones, "exactly ones, and 3 other norms were trained"
    ),
    patched("a fresh head", "EGL219", changed(drawn, HEAD), "as first drawn (normal, deviation 0.02)"),
    patched("a fresh fc", "EGL219", changed(as_torch, FC), "fc.weight was never trained"),
    patched("bfloat16 as float16", "EGL220", declared("F16"), "stated as F16, hold BF16", **AS_FLOAT16),
    patched("float16 as bfloat16", "EGL220", declared("BF16"), "stated as BF16, hold F16"),
    patched("one large number", "EGL216", changed(spike, FC), "fc.weight reaches 3e+04"),
    patched("a large epsilon", "EGL124", no_change, "and the target's 1e-06", rms_norm_eps=1e-2),
    patched("other heads", "EGL713", no_change, "the target's 4 of 32, 2 keys'", **OTHER_HEADS),
)
# with which nothing is accepted, whatever serves it (test_dead_numbers_are_errors)
DEAD = ("norms less one", "a fresh head", "a fresh fc", "bfloat16 as float16", "float16 as bfloat16")
RULES = sorted({rule for patch in BAD for rule in patch.finds})


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_an_implausible_number_gives_exactly_its_finding(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_errors_are_what_nothing_is_accepted_with() -> None:
    assert {rule.id for rule in rules() if rule.id in RULES and rule.severity == "error"} == {
        rule for patch in BAD for rule in patch.finds if patch.why in DEAD
    }


@pytest.mark.slow
@pytest.mark.parametrize("patch", [patch for patch in BAD if patch.why in DEAD], ids=lambda patch: patch.why)
def test_dead_numbers_are_errors(patch: Patch, tmp_path: Path) -> None:
    report = eaglectl.smoke(
        patch.build(tmp_path), str(TARGET), run_in="reference", prompts=PROMPTS, sample=8, max_tokens=16, k=3
    )
    assert report.measured is not None and report.measured.length.value < 1.2


def test_a_warning_on_numbers_is_a_note_of_inspect_and_of_convert(tmp_path: Path) -> None:
    folder = BAD[0].build(tmp_path)
    notes = eaglectl.inspect(folder, target=str(TARGET)).drafter.notes
    plan = eaglectl.convert(folder, target=str(TARGET), dry_run=True).plan
    for each in (notes, plan.notes):
        assert ("fc.weight", "boundary 4 is not read at all by fc.weight") in [
            (n.about, n.text) for n in each
        ]


def test_a_warning_on_numbers_is_in_what_ready_and_upload_say(tmp_path: Path) -> None:
    out = tmp_path / "out"
    eaglectl.convert(BAD[0].build(tmp_path), out, target=str(TARGET))
    done = call("ready", out)
    assert done.code == 0 and "boundary 4 is not read at all by fc.weight" in done.out
    (out / "README.md").write_text(STATED)
    done = call("upload", out, "org/name", "--dry-run")
    assert "warning: boundary 4 is not read at all by fc.weight" in done.err


@pytest.mark.parametrize("why", ["a fresh head", "bfloat16 as float16"])
def test_convert_writes_no_dead_numbers(why: str, tmp_path: Path) -> None:
    (patch,) = (each for each in BAD if each.why == why)
    with pytest.raises(RefusedError, match=f"the output would be broken: {patch.finds[0]}"):
        eaglectl.convert(patch.build(tmp_path), tmp_path / "out", target=str(TARGET))
    assert not (tmp_path / "out").exists()


REPAIRS = {
    "norms less one": "norm-weights=less-one",
    "norms and one": "norm-weights=plus-one",
    "bfloat16 as float16": "dtype=bfloat16",
    "float16 as bfloat16": "dtype=float16",
    "other heads": "head-size=32",
}


@pytest.mark.parametrize("why", REPAIRS)
def test_the_repair_of_a_reading_gives_the_good_drafter(why: str, tmp_path: Path) -> None:
    (patch,) = (each for each in BAD if each.why == why)
    out, good = tmp_path / "out", tmp_path / "good"
    eaglectl.convert(str(TINY / "eagle3"), good, target=str(TARGET))
    eaglectl.convert(patch.build(tmp_path), out, target=str(TARGET), fixes=(tuple(REPAIRS[why].split("=")),))
    assert eaglectl.validate(out, target=str(TARGET), has_engines=False, ignore=NOTES).verdict == "pass"
    repaired, trained = (read_safetensors(folder / "model.safetensors") for folder in (out, good))
    # of numbers above two, bfloat16 has kept half of the steps
    steps = {"norms and one": 2**-7, "float16 as bfloat16": 2**-11}.get(why, 0)
    for name in trained.keys() - {"d2t", "t2d"}:
        assert np.abs(values(repaired[name]) - values(trained[name])).max() <= steps * 2
    config = json.loads((out / "config.json").read_text())
    assert (config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]) == (32, 4, 2)


@pytest.mark.slow
@pytest.mark.parametrize("why", ["norms and one", "other heads"])
def test_diagnose_names_the_reading(why: str, tmp_path: Path) -> None:
    (patch,) = (each for each in BAD if each.why == why)
    diagnosis = eaglectl.diagnose(patch.build(tmp_path), str(TARGET), prompts=PROMPTS, max_tokens=24)
    assert diagnosis.cause == "other-reading"
    assert f"--fix-reading {REPAIRS[why]}" in diagnosis.commands[0]


@pytest.mark.parametrize("folder", TRAINED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_no_trained_drafter_has_an_implausible_number(folder: Path) -> None:
    target = str(folder.parent / "target")
    assert eaglectl.validate(folder, select=RULES, target=target, has_engines=False).findings == ()


def test_the_ranges_are_those_of_the_trained_drafters() -> None:
    statistics: dict[str, list[float]] = {name: [] for name in RANGES}
    for folder in TRAINED:
        weights = read_checkpoint(FolderSource(folder))
        drafter = read_drafter(weights, Answers(semantics={"norm_output": "false"}), Target())
        stored = read_safetensors(folder / "model.safetensors")
        for name, sample in sample_matrices(weights, drafter).values():
            statistics["peak"].append(float(np.abs(values(stored[name])).max()) / sample.rms)
            statistics["block"] += [block / sample.rms for block in sample.blocks if len(sample.blocks) > 1]
            statistics["rows"].append((sample.zeros + sample.copies) / sample.rows)
            statistics["small"].append(sample.small)
            statistics["scale"].append(sample.rms)
        means = {name: vector.mean for name, vector in read_vectors(weights).items() if "norm" in name}
        statistics["norm"] += [mean for mean in means.values() if mean]
        layer = [mean for name, mean in means.items() if "layer" in name and mean]
        statistics["highest norm"].append(max(layer))
        statistics["lowest norm"].append(min(mean for mean in means.values() if mean))
        statistics["epsilon"].append(float(drafter.settings["rms_norm_eps"]))
    for name, seen in statistics.items():
        stated = RANGES[name]
        assert all(stated.lowest <= number <= stated.highest for number in seen), (name, min(seen), max(seen))
        assert stated.below is None or stated.below < stated.lowest
        assert stated.above is None or stated.above > stated.highest
