"""Weights that are pickles are looked at by their tables: a few KB, without torch, from disk or the Hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import open_source, read_checkpoint
from eaglectl.files.source import FolderSource, PinnedSource
from tests.builders import HIDDEN, call, contents, drafter_folder, drafter_tensors, loaded_after
from tests.hub import LoopbackHub, client_hub
from tests.pickles import pickled_folder, state

torch = pytest.importorskip("torch")
ROWS = 20_000  # of the embedding: 640 kB, so that a file read whole is seen


def large_folder(parent: Path) -> Path:
    """The drafter with an embedding of ROWS rows, in torch's format."""
    tensors = state(**{"embed_tokens.weight": torch.ones(ROWS, HIDDEN, dtype=torch.bfloat16), "t2d": None})
    return pickled_folder(parent, tensors, config={"vocab_size": ROWS})


@pytest.fixture(params=[FolderSource, PinnedSource])
def read_bytes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """The sizes of all reads of weights in folders, as they are opened to look, or to convert."""
    sizes: list[int] = []
    read = request.param.read

    def counted(self: FolderSource, name: str, start: int = 0, stop: int | None = None) -> bytes:
        data: bytes = read(self, name, start, stop)
        sizes.extend([len(data)] if name.endswith(".bin") else [])
        return data

    monkeypatch.setattr(request.param, "read", counted)
    yield sizes


def test_a_table_is_that_of_the_same_weights_in_safetensors(tmp_path: Path) -> None:
    found = read_checkpoint(open_source(str(pickled_folder(tmp_path, state()))))
    assert {
        name: (one.dtype, one.shape, found.read(name)) for name, one in found.tensors.items()
    } == drafter_tensors()


@pytest.mark.parametrize(
    "command",
    [("inspect",), ("validate", "--headers-only"), ("convert", "--dry-run", "-o", "out")],
    ids=lambda command: command[0],
)
def test_looking_reads_a_few_kb_and_leaves_nothing(
    tmp_path: Path, command: tuple[str, ...], read_bytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = large_folder(tmp_path)
    before = contents(tmp_path)
    name, *options = command
    assert call(name, folder, *options).code in (0, 1)
    assert sum(read_bytes) < 40_000  # validate reads it twice: for the target that it names too
    assert (folder / "pytorch_model.bin").stat().st_size > 600_000 and contents(tmp_path) == before


def test_looking_imports_no_torch(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state())
    before = contents(folder)
    code = "from eaglectl.cli import run; run(['inspect', {0!r}])"
    code += "; run(['validate', {0!r}, '--headers-only']); run(['diff', {0!r}, {0!r}, '--headers-only'])"
    assert "torch" not in loaded_after(code.format(str(folder)))
    assert "eaglectl copied them to a temporary" in call("validate", "-v", folder).out
    assert "eaglectl copied them to a temporary" not in call("validate", "-v", folder, "--headers-only").out
    assert contents(folder) == before


def test_validate_checks_the_values_of_pickles(tmp_path: Path) -> None:
    """The values of the copy are judged, and what is found is named as in the pickle."""
    weight = state()["norm.weight"].clone()
    weight[0] = float("nan")
    report = eaglectl.validate(str(pickled_folder(tmp_path, state(**{"norm.weight": weight}))))
    assert report.is_of_copy
    (finding,) = [finding for finding in report.findings if "NaN" in finding.match.message]
    assert finding.match.where == "tensor:norm.weight"


def test_diff_compares_the_values_of_pickles_and_says_how(tmp_path: Path) -> None:
    plain, folder = drafter_folder(tmp_path / "plain"), pickled_folder(tmp_path, state())
    outcome = call("diff", plain, folder)
    assert outcome.code == 0, outcome.err
    assert "copied to a temporary folder" in " ".join(outcome.out.split())
    changed = state(**{"norm.weight": state()["norm.weight"] + 1})
    (tmp_path / "other").mkdir()
    assert call("diff", plain, pickled_folder(tmp_path / "other", changed)).code == 1
    assert "copied" not in call("diff", plain, folder, "--headers-only").out


# from the Hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with client_hub(monkeypatch, tmp_path) as running:
        running.add_repo("org/drafter", large_folder(tmp_path))
        yield running


@pytest.mark.parametrize(
    "command",
    [["inspect"], ["validate", "--headers-only"], ["diff", "--headers-only"]],
    ids=lambda one: one[0],
)
def test_from_the_hub_a_table_is_two_ranges(hub: LoopbackHub, tmp_path: Path, command: list[str]) -> None:
    name, *options = command
    other = [tmp_path / "drafter"] if name == "diff" else []
    outcome = call(name, "org/drafter", *other, *options)
    assert outcome.code in (0, 1), outcome.err
    weights = [request for request in hub.requests if request.is_elsewhere]
    assert len(weights) == 2  # the directory of a zip is at its end
    assert all(request.range is not None for request in weights)
    assert hub.traffic < 60_000


def test_a_pickle_on_the_hub_is_validated_whole_after_a_download(hub: LoopbackHub) -> None:
    with pytest.raises(UnreadableError, match="run `eaglectl convert org/drafter"):
        read_checkpoint(open_source("org/drafter")).read("d2t")
    assert eaglectl.validate("org/drafter").is_of_copy
