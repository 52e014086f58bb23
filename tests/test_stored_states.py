"""`calibrate --states`: hidden states from files give what a run of the target gives, or are refused."""

import gzip
import io
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.conversion.upgrade import Statistics, read_statistics  # noqa: E402
from eaglectl.errors import EaglectlError, UnreadableError  # noqa: E402
from eaglectl.reference.states import (  # noqa: E402
    AuxStates,
    KeptStates,
    TransformersEngine,
    join_states,
    state_files,
)
from eaglectl.reference.target import load_target  # noqa: E402
from tests.builders import call  # noqa: E402
from tests.tiny import TARGET, TINY  # noqa: E402

EAGLE3 = str(TINY / "eagle3")
LENGTHS = (40, 33, 25)
Files = Mapping[str, Any]


@pytest.fixture(scope="module")
def sequences() -> list[tuple[Any, Any]]:
    """Tokens [time] and states [time, 4, 128] at boundaries 2, 4, 5 and 8 of a few texts."""
    target = load_target(TARGET, (2, 4, 5, 8), dtype="float32", device="cpu")
    random = torch.Generator().manual_seed(4)
    texts = [torch.randint(2, 512, (length,), generator=random).tolist() for length in LENGTHS]
    found = TransformersEngine(target, "cpu", "float32").states(texts).aux
    return [
        (torch.tensor(text), found[row, -len(text) :].unflatten(-1, (4, 128)).contiguous())
        for row, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def run(sequences: list[tuple[Any, Any]], tmp_path_factory: pytest.TempPathFactory) -> Statistics:
    """The statistics of a run of the target over the same tokens."""
    folder = tmp_path_factory.mktemp("run")
    short = [{"prompt_token_ids": tokens[:-4].tolist()} for tokens, _ in sequences]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in short))
    options = eaglectl.CalibrateOptions(prompts=folder / "prompts.jsonl", answer_tokens=4, device="cpu")
    return eaglectl.calibrate(EAGLE3, str(TARGET), options=options)


class Counted:
    """A source of states that counts its runs."""

    engine: Mapping[str, str] = {"name": "counted"}

    def __init__(self) -> None:
        self.runs = 0

    @property
    def embedding(self) -> torch.Tensor:
        raise UnreadableError("no tensor has an embedding's name")

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        self.runs += 1
        return join_states(batch, [torch.full((len(text), 12), float(self.runs)) for text in batch])


def test_states_of_a_batch_are_kept_for_the_next_pass(tmp_path: Path) -> None:
    source = Counted()
    kept = KeptStates(source, tmp_path)
    first, other = [[5, 6], [7]], [[5, 6]]
    found = [kept.states(batch) for batch in (first, other, first)]
    assert source.runs == 2
    assert torch.equal(found[2].aux, found[0].aux) and torch.equal(found[2].valid, found[0].valid)
    assert torch.equal(found[1].aux, torch.full((1, 2, 12), 2.0))


def test_states_are_run_again_where_the_disk_has_no_room(tmp_path: Path) -> None:
    source = Counted()
    kept = KeptStates(source, tmp_path / "missing")
    assert [float(kept.states([[5]]).aux[0, 0, 0]) for _ in range(2)] == [1.0, 2.0]


def test_states_are_not_kept_where_little_room_would_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, free = Counted(), 12 * 4 * 4
    kept = KeptStates(source, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    kept.states([[5]])
    assert not list(tmp_path.iterdir())
    free *= 2
    assert [float(kept.states([[5]]).aux[0, 0, 0]) for _ in range(2)] == [2.0, 2.0]


def stacked(folder: Path, number: int, tokens: Any, states: Any) -> None:
    save_file({"token_ids": tokens, "hidden_states": states}, folder / f"hs_{number}.safetensors")


def joined(folder: Path, number: int, tokens: Any, states: Any) -> None:
    torch.save(record(tokens, states), folder / f"data_{number}.ckpt")


def zipped(folder: Path, number: int, tokens: Any, states: Any) -> None:
    buffer = io.BytesIO()
    torch.save(record(tokens, states), buffer)
    (folder / "rows_0-2000").mkdir(exist_ok=True)
    (folder / f"rows_0-2000/data_{number}.ckpt.gz").write_bytes(gzip.compress(buffer.getvalue()))


def record(tokens: Any, states: Any) -> dict[str, Any]:
    return {
        "input_ids": tokens,
        "loss_mask": torch.ones_like(tokens),
        "hidden_state": states[None, :, 3].clone(),
        "aux_hidden_state": states[None, :, :3].flatten(2).clone(),
    }


def options(folder: Path, layers: tuple[int, ...] = (2, 4, 5)) -> eaglectl.CalibrateOptions:
    return eaglectl.CalibrateOptions(states=folder, states_layers=layers, device="cpu")


def answered(sequences: list[tuple[Any, Any]], run: Statistics) -> list[tuple[Any, Any]]:
    """The sequences that the run made: its prompts and the target's own answers, with their states."""
    target = load_target(TARGET, (2, 4, 5, 8), dtype="float32", device="cpu")
    engine = TransformersEngine(target, "cpu", "float32")
    made = []
    for tokens, _ in sequences:
        text = tokens[:-4].tolist()
        whole = [*text, *engine.answers([text], 4)[0]]
        states = engine.states([whole]).aux[0].unflatten(-1, (4, 128))
        made.append((torch.tensor(whole), states.contiguous()))
    assert run.tokens == sum(len(tokens) for tokens, _ in made)
    return made


@pytest.mark.parametrize("write", [stacked, joined, zipped], ids=lambda write: write.__name__)
def test_states_on_disk_give_the_statistics_of_a_run_on_the_same_tokens(
    write: Callable[..., None], sequences: list[tuple[Any, Any]], run: Statistics, tmp_path: Path
) -> None:
    for number, (tokens, states) in enumerate(answered(sequences, run)):
        write(tmp_path, number, tokens, states)
    found = eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path))
    assert (found.tokens, found.boundaries) == (run.tokens, (2, 4, 5))
    assert found.rms == pytest.approx(run.rms, rel=1e-5)
    assert found.spread == pytest.approx(run.spread, rel=1e-4)
    assert found.sigma == pytest.approx(run.sigma, rel=1e-5)
    assert found.matrices is not None and run.matrices is not None
    assert found.matrices.gram == pytest.approx(run.matrices.gram, rel=1e-3, abs=1e-4)
    assert found.matrices.cross == pytest.approx(run.matrices.cross, rel=1e-3, abs=1e-4)
    assert found.engine["name"] == "states" and found.engine["files"] == "3"


RECORDED = TINY / "states"  # written by SpecForge (fixtures/tiny/README.md)


def test_what_specforges_script_wrote_gives_the_statistics_of_its_tokens(tmp_path: Path) -> None:
    target = load_target(TARGET, (2, 4, 5), dtype="float32", device="cpu")
    engine = TransformersEngine(target, "cpu", "float32")
    for path in sorted(RECORDED.glob("rows_0-2000/*.ckpt")):
        tokens = torch.load(path, weights_only=True)["input_ids"]
        states = engine.states([tokens.tolist()]).aux[0].unflatten(-1, (3, 128))
        stacked(tmp_path, len(tokens), tokens, states.contiguous())
    own = eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path))
    found = eaglectl.calibrate(EAGLE3, str(TARGET), options=options(RECORDED))
    assert (found.tokens, found.engine["files"]) == (own.tokens, "2") == (85, "2")
    assert found.rms == pytest.approx(own.rms, rel=1e-5)
    assert found.spread == pytest.approx(own.spread, rel=1e-4)
    assert found.sigma == pytest.approx(own.sigma, rel=1e-5)
    assert found.matrices is not None and own.matrices is not None
    assert found.matrices.gram == pytest.approx(own.matrices.gram, rel=1e-3, abs=1e-4)


def test_a_vocabulary_mapping_elsewhere_is_refused_as_no_states(tmp_path: Path) -> None:
    mapping = torch.load(RECORDED / "vocab_mapping/vocab_mapping.pt", weights_only=True)
    torch.save(mapping, tmp_path / "mapping.pt")
    with pytest.raises(EaglectlError, match=r"mapping\.pt has d2t, t2d, .*: no hidden states"):
        eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path))


def test_layers_in_another_order_are_put_in_the_drafters(
    sequences: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    for number, (tokens, states) in enumerate(sequences):
        stacked(tmp_path / "one", number, tokens, states)
        stacked(tmp_path / "other", number, tokens, states[:, [3, 1, 0, 2]].contiguous())
    one = eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path / "one"))
    other = eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path / "other", (8, 4, 2, 5)))
    assert one.rms == other.rms and one.rms[0] < one.rms[2] / 2
    assert (one.sigma, one.spread) == (other.sigma, other.spread)


def test_the_command_writes_statistics_that_convert_takes(
    sequences: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    (tmp_path / "states").mkdir()
    for number, (tokens, states) in enumerate(sequences):
        joined(tmp_path / "states", number, tokens, states.bfloat16())
    arguments = ("--states", tmp_path / "states", "--states-layers", "2,4,5", "--device", "cpu")
    made = call("calibrate", EAGLE3, "--target", TARGET, *arguments, "-o", tmp_path / "stats")
    assert made.code == 0, made.err
    assert "98 tokens of 3 sequences on disk" in made.out
    assert read_statistics(tmp_path / "stats").engine["record"] == "input_ids, aux_hidden_state"
    upgrade = ("--to", "3.1", "--calibration", tmp_path / "stats", "--no-gate", "-o", tmp_path / "out")
    assert call("convert", EAGLE3, "--target", TARGET, *upgrade).code == 0


def changed(name: str, value: Callable[[Any], Any]) -> Callable[[Files], Files]:
    return lambda tensors: {**tensors, name: value(tensors[name])}


def not_a_number(states: Any) -> Any:
    states = states.clone()
    states[3, 1, 7] = float("nan")
    return states


BAD: dict[str, tuple[Callable[[Files], Files], str]] = {
    "width": (changed("hidden_states", lambda states: states[:, :, :96].contiguous()), "128 channels"),
    "too few layers": (changed("hidden_states", lambda states: states[:, :2].contiguous()), "3 layers"),
    "too many layers": (changed("hidden_states", lambda states: states.repeat(1, 2, 1)), "3 layers"),
    "other tokens": (changed("token_ids", lambda tokens: tokens[:-1].clone()), "39 tokens"),
    "a NaN": (changed("hidden_states", not_a_number), "NaN or infinite"),
    "8 bits": (changed("hidden_states", lambda states: states.to(torch.float8_e4m3fn)), "8 bits"),
    "no token ids": (changed("token_ids", lambda tokens: tokens.float()), "no token ids"),
    "another vocabulary": (changed("token_ids", lambda tokens: tokens + 500), "vocabulary of 512"),
    "negative ids": (changed("token_ids", lambda tokens: tokens - 600), "vocabulary of 512"),
    "other names": (lambda tensors: {"states": tensors["hidden_states"]}, "no hidden states"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_not_of_this_pair_is_refused_by_its_name(
    name: str, sequences: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    change, words = BAD[name]
    tokens, states = sequences[0]
    stacked(tmp_path, 0, *sequences[1])
    save_file(dict(change({"token_ids": tokens, "hidden_states": states})), tmp_path / "hs_1.safetensors")
    arguments = ("--states", tmp_path, "--states-layers", "2,4,5", "-o", tmp_path.with_suffix(".out"))
    made = call("calibrate", EAGLE3, "--target", TARGET, *arguments, "--device", "cpu")
    assert made.code == 1 and words in made.err and "hs_1.safetensors" in made.err
    assert not tmp_path.with_suffix(".out").exists()


@pytest.mark.parametrize("write", [stacked, joined, zipped], ids=lambda write: write.__name__)
def test_a_truncated_file_could_not_be_read(
    write: Callable[..., None], sequences: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    write(tmp_path, 0, *sequences[0])
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-500])
    arguments = ("--states", tmp_path, "--states-layers", "2,4,5", "--device", "cpu")
    made = call("calibrate", EAGLE3, "--target", TARGET, *arguments, "-o", tmp_path.with_suffix(".out"))
    assert made.code == 3 and path.name in made.err
    assert "truncated" in made.err.rpartition("cannot be read: ")[2]


def test_a_pickle_that_would_run_code_is_not_read(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"input_ids": torch.ones(4), "aux_hidden_state": Code()}, tmp_path / "data_0.ckpt")
    arguments = ("--states", tmp_path, "--states-layers", "2,4,5", "--device", "cpu")
    made = call("calibrate", EAGLE3, "--target", TARGET, *arguments, "-o", tmp_path.with_suffix(".out"))
    assert made.code == 3 and "cannot be read" in made.err
    assert not (tmp_path / "ran").exists()


def test_files_of_two_trainers_are_not_mixed(sequences: list[tuple[Any, Any]], tmp_path: Path) -> None:
    joined(tmp_path, 0, *sequences[0])
    stacked(tmp_path, 1, *sequences[1])
    arguments = ("--states", tmp_path, "--states-layers", "2,4,5", "--device", "cpu")
    made = call("calibrate", EAGLE3, "--target", TARGET, *arguments, "-o", tmp_path.with_suffix(".out"))
    assert made.code == 1 and "another kind" in made.err


def test_layers_that_the_drafter_does_not_take_are_refused(
    sequences: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    stacked(tmp_path, 0, *sequences[0])
    arguments = ("--states", tmp_path, "--states-layers", "1,4,5", "--device", "cpu")
    made = call("calibrate", EAGLE3, "--target", TARGET, *arguments, "-o", tmp_path.with_suffix(".out"))
    assert made.code == 1 and "none of [2]" in made.err


KNOWN = ["--states", "states", "--states-layers", "2,4,5"]
USAGE = {
    "no layers": (["--states", "states"], "--states-layers with their boundaries"),
    "layers alone": (["--states-layers", "2,4,5"], "pass the folder"),
    "no numbers": (["--states", "states", "--states-layers", "2,b"], "different boundaries"),
    "twice": (["--states", "states", "--states-layers", "2,2,5"], "different boundaries"),
    "and prompts": ([*KNOWN, "--prompts", "x"], "takes the place"),
    "and an engine": (
        [*KNOWN, "--engine", "vllm"],
        "takes the place",
    ),
    "and a sample": (
        [*KNOWN, "--sample", "4"],
        "which --sample is",
    ),
    "and no end": (
        [*KNOWN, "--ignore-eos"],
        "which --ignore-eos is",
    ),
    "and an argument": (
        [*KNOWN, "--engine-arg", "dtype=half"],
        "which --engine-arg is",
    ),
    "and two": (
        [*KNOWN, "--sample", "4", "--ignore-eos"],
        "--sample, --ignore-eos are of; leave them out",
    ),
    "an empty folder": (KNOWN, "no .safetensors"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_options_are_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, words = USAGE[name]
    (tmp_path / "states").mkdir()
    monkeypatch.chdir(tmp_path)
    made = call("calibrate", EAGLE3, "--target", TARGET, *arguments, "-o", "stats")
    assert made.code == 2 and words in made.err


def test_a_folder_that_is_not_there_could_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no such folder"):
        eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path / "nowhere"))


IRREGULAR: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "b.ckpt is a pipe; give a regular file"),
    "socket": (lambda path: bound(path), "b.ckpt"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "b.ckpt is a device; give a regular file"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "b.ckpt: No such file"),
    "looping link": (lambda path: path.symlink_to(path.name), "b.ckpt: Too many levels"),
    "link to a folder": (lambda path: path.symlink_to("/usr"), "not followed; give /usr"),
}


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("name", IRREGULAR)
def test_what_is_no_file_of_states_is_named_and_not_passed_over(
    sequences: list[tuple[Any, Any]], tmp_path: Path, name: str
) -> None:
    make, words = IRREGULAR[name]
    stacked(tmp_path, 0, *sequences[0])
    (tmp_path / "below").mkdir()
    make(tmp_path / "below" / "b.ckpt")
    with pytest.raises(UnreadableError, match=words):
        eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path))


def test_a_link_to_a_folder_that_is_read_anyway_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.ckpt").touch()
    (tmp_path / "latest").symlink_to("run")
    assert state_files(tmp_path) == [tmp_path / "run" / "a.ckpt"]


def test_sequences_of_a_few_tokens_are_told(sequences: list[tuple[Any, Any]], tmp_path: Path) -> None:
    tokens, states = sequences[0]
    stacked(tmp_path, 0, tokens[:3].clone(), states[:3].clone())
    with pytest.raises(EaglectlError, match="fed-back states"):
        eaglectl.calibrate(EAGLE3, str(TARGET), options=options(tmp_path))
