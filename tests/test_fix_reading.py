"""`convert --fix-reading`: tensors stored other than named go back, byte for byte; others are refused."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.conversion.readings import READINGS
from tests.builders import call, read_safetensors, refusal
from tests.pairs import MLA, SECOND, Trained
from tests.stored_otherwise import FUSED, GROUPED, QUERY_KEY, STORED, THREE_TURNED, Misread, faults_of
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


def repaired(good: Path, target: Path, fault: Misread, folder: Path) -> None:
    """Fail unless the repair gives the bytes of the good drafter."""
    broken = fault.apply(good, folder / "broken")
    done = call("convert", broken, "-o", folder / "out", "--target", target, *fault.option.split())
    assert done.code == 0, done.err
    before, read, after = (
        read_safetensors(path / "model.safetensors") for path in (good, broken, folder / "out")
    )
    assert after == before != read


@pytest.mark.fast(6)
@pytest.mark.parametrize("fault", [*STORED, GROUPED, *FUSED], ids=lambda fault: fault.name)
def test_a_repair_gives_the_bytes_of_the_good_drafter(fault: Misread, good: Path, tmp_path: Path) -> None:
    repaired(good, TARGET, fault, tmp_path)


@pytest.mark.fast(4)
@pytest.mark.parametrize(
    ("trained", "fault"), ELSEWHERE, ids=[f"{trained.name}: {fault.name}" for trained, fault in ELSEWHERE]
)
def test_a_repair_of_other_attention_gives_the_bytes_of_the_good_drafter(
    trained: Trained, fault: Misread, tmp_path: Path
) -> None:
    repaired(trained.converted(tmp_path / "good"), trained.target, fault, tmp_path)


def test_a_repair_is_a_named_step_and_is_recorded(good: Path, tmp_path: Path) -> None:
    given = ("--target", TARGET, "--fix-reading", "gate-up", "--fix-reading", "fc-order=2,0,1")
    planned = call("convert", good, *given, "--dry-run")
    assert "fc.weight moved by --fix-reading" in " ".join(planned.out.split())
    call("convert", good, "-o", tmp_path / "out", *given)
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    assert record["fixed_readings"] == ["gate-up=exchanged", "fc-order=2,0,1"]
    actions = {step["name"]: step["action"] for step in record["tensors"]}
    assert actions["fc.weight"] == "reordered"
    assert actions["layers.0.mlp.gate_proj.weight"] == "renamed"
    assert "fixed_readings" not in json.loads((good / "eaglectl.json").read_text())


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ("luck=good", "--fix-reading luck: one of rotary, gate-up, fc-order"),
        ("rotary=halves", "--fix-reading rotary=halves: interleaved or halves-twice was expected"),
        ("fc-order=0,1", "an order of the numbers 0 to 2, like 0,2,1"),
        ("fc-order=0,1,1", "an order of the numbers 0 to 2"),
        ("fc-order=a,b,c", "an order of the numbers 0 to 2"),
        ("heads=0,1,2", "an order of the numbers 0 to 3"),
        ("fused-qkv=3", "--fix-reading fused-qkv=3: per-group or part-by-part or kqv or kvq or vqk or vkq"),
        ("q-k=exchanged", "this drafter's shapes do not fit that reading"),
        ("state-order=0,2,1", "this drafter's shapes do not fit that reading"),
        ("norms=twice", "--fix-reading norms=twice: exchanged was expected"),
        ("", "--fix-reading : one of rotary"),
    ],
)
def test_a_reading_that_cannot_be_is_refused(reading: str, words: str, good: Path, tmp_path: Path) -> None:
    given = ("-o", tmp_path / "out", "--target", TARGET, "--fix-reading", reading)
    assert words in refusal(2, "convert", good, *given)
    assert not (tmp_path / "out").exists()


def test_one_group_of_keys_has_one_order_of_a_fused_matrix(good: Path) -> None:
    drafter = eaglectl.inspect(good, target=TARGET).drafter
    alone = replace(drafter, dims=replace(drafter.dims, kv_heads=1))
    assert "per-group" not in list(READINGS["fused-qkv"].values(alone))
    assert "per-group" in list(READINGS["fused-qkv"].values(drafter))
    assert not list(READINGS["fused-kv"].values(alone))


def test_a_fused_matrix_has_shards_of_whole_groups_alone(good: Path) -> None:
    drafter = eaglectl.inspect(good, target=TARGET).drafter
    eight = replace(drafter, dims=replace(drafter.dims, kv_heads=8, head_dim=8))
    values = list(READINGS["fused-qkv"].values(eight))
    assert values[2:4] == ["2-shards", "4-shards"] and "8-shards" not in values  # eight are the groups
    six = replace(drafter, dims=replace(drafter.dims, kv_heads=3))
    assert not any("shards" in value for value in READINGS["fused-qkv"].values(six))


def test_query_heads_are_read_by_columns_of_both_layouts(good: Path) -> None:
    drafter = eaglectl.inspect(good, target=TARGET).drafter
    grouped = replace(drafter, dims=replace(drafter.dims, heads=6, kv_heads=2))
    orders = list(READINGS["heads"].values(grouped))
    assert orders[-2:] == ["0,2,4,1,3,5", "0,3,1,4,2,5"]
    assert len(orders) == 5 + 2
