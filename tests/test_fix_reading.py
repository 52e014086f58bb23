"""`convert --fix-reading`: tensors stored other than named go back, byte for byte; others are refused."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.readings import READINGS
from eaglectl.operations.converting import ConvertOptions
from tests.builders import call, read_safetensors, refusal
from tests.pairs import MLA, SECOND, Trained
from tests.stored_otherwise import GROUPED, QUERY_KEY, STORED, THREE_TURNED, Misread, faults_of
from tests.tiny import TARGET, TINY

# faults that move tensors of an MLA drafter, and those that need as many key as query heads
ELSEWHERE = [
    *((MLA, fault) for fault in faults_of(MLA.key) if fault.option.startswith("--fix-reading")),
    (SECOND, QUERY_KEY),
    (SECOND, THREE_TURNED),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny EAGLE-3 in vLLM's layout."""
    folder = tmp_path_factory.mktemp("good") / "eagle3"
    eaglectl.convert(str(TINY / "eagle3"), folder, ConvertOptions(target=str(TARGET)))
    return folder


def tensors_of(folder: Path) -> dict[str, object]:
    return dict(read_safetensors(folder / "model.safetensors"))


@pytest.mark.parametrize("fault", [*STORED, GROUPED], ids=lambda fault: fault.name)
def test_a_repair_gives_the_bytes_of_the_good_drafter(fault: Misread, good: Path, tmp_path: Path) -> None:
    broken = fault.apply(good, tmp_path / "broken")
    assert tensors_of(broken) != tensors_of(good)
    done = call("convert", broken, "-o", tmp_path / "out", "--target", TARGET, *fault.option.split())
    assert done.code == 0, done.err
    assert tensors_of(tmp_path / "out") == tensors_of(good)


@pytest.mark.parametrize(
    ("trained", "fault"), ELSEWHERE, ids=[f"{trained.name}: {fault.name}" for trained, fault in ELSEWHERE]
)
def test_a_repair_of_other_attention_gives_the_bytes_of_the_good_drafter(
    trained: Trained, fault: Misread, tmp_path: Path
) -> None:
    right = trained.converted(tmp_path / "good")
    broken = fault.apply(right, tmp_path / "broken")
    assert tensors_of(broken) != tensors_of(right)
    done = call("convert", broken, "-o", tmp_path / "out", "--target", trained.target, *fault.option.split())
    assert done.code == 0, done.err
    assert tensors_of(tmp_path / "out") == tensors_of(right)


def test_a_repair_is_a_named_step_and_is_recorded(good: Path, tmp_path: Path) -> None:
    given = ("--target", TARGET, "--fix-reading", "gate-up", "--fix-reading", "fc-order=2,0,1")
    planned = call("convert", good, *given, "--dry-run")
    assert "fc.weight moved as asked by --fix-reading" in " ".join(planned.out.split())
    call("convert", good, "-o", tmp_path / "out", *given)
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    assert record["fixed_readings"] == ["gate-up=exchanged", "fc-order=2,0,1"]
    actions = {step["name"]: step["action"] for step in record["tensors"]}
    assert actions["fc.weight"] == "reordered"
    assert actions["layers.0.mlp.gate_proj.weight"] == "renamed"


def test_without_repairs_nothing_is_recorded(good: Path) -> None:
    assert "fixed_readings" not in json.loads((good / "eaglectl.json").read_text())


@pytest.mark.parametrize(
    ("reading", "code", "words"),
    [
        ("luck=good", 2, "--fix-reading luck: one of rotary, gate-up, fc-order"),
        ("rotary=halves", 2, "--fix-reading rotary=halves: interleaved or halves-twice was expected"),
        ("fc-order=0,1", 2, "an order of the numbers 0 to 2, like 0,2,1"),
        ("fc-order=0,1,1", 2, "an order of the numbers 0 to 2"),
        ("fc-order=a,b,c", 2, "an order of the numbers 0 to 2"),
        ("heads=0,1,2", 2, "an order of the numbers 0 to 3"),
        ("q-k=exchanged", 2, "the shapes of this drafter do not allow that reading"),
        ("state-order=0,2,1", 2, "the shapes of this drafter do not allow that reading"),
        ("norms=twice", 2, "--fix-reading norms=twice: exchanged was expected"),
        ("", 2, "--fix-reading : one of rotary"),
    ],
)
def test_a_reading_that_cannot_be_is_refused(
    reading: str, code: int, words: str, good: Path, tmp_path: Path
) -> None:
    message = refusal(
        code, "convert", good, "-o", tmp_path / "out", "--target", TARGET, "--fix-reading", reading
    )
    assert words in message
    assert not (tmp_path / "out").exists()


def test_an_upgrade_is_another_conversion(good: Path, tmp_path: Path) -> None:
    given = ("-o", tmp_path / "out", "--target", TARGET, "--to", "3.1", "--fix-reading", "gate-up")
    assert "leave --to 3.1 out" in refusal(2, "convert", good, *given)


def test_a_base_of_rope_and_the_targets_can_be_answered(good: Path, tmp_path: Path) -> None:
    for answer, base in (("rope=250000", 250000.0), ("rope=target", 500000.0), ("rope=10000", 10000.0)):
        out = tmp_path / answer
        done = call("convert", good, "-o", out, "--target", TARGET, "--source-semantics", answer)
        assert done.code == 0, done.err
        assert json.loads((out / "config.json").read_text())["rope_theta"] == base


@pytest.mark.parametrize("answer", ["rope=-1", "rope=0", "rope=1e4", "rope=\u0665"])
def test_a_base_that_is_no_number_is_refused(answer: str, good: Path, tmp_path: Path) -> None:
    given = ("-o", tmp_path / "out", "--target", TARGET, "--source-semantics", answer)
    assert "is not known" in refusal(2, "convert", good, *given)


def test_the_targets_rope_needs_a_target(good: Path, tmp_path: Path) -> None:
    given = ("-o", tmp_path / "out", "--source-semantics", "rope=target")
    assert "pass --target" in refusal(2, "convert", good, *given)


def test_query_heads_are_read_by_columns_of_both_layouts(good: Path) -> None:
    drafter = eaglectl.inspect(good, target=TARGET).drafter
    grouped = replace(drafter, dims=replace(drafter.dims, heads=6, kv_heads=2))
    orders = list(READINGS["heads"].values(grouped))
    assert orders[-2:] == ["0,2,4,1,3,5", "0,3,1,4,2,5"]
    assert len(orders) == 5 + 2
