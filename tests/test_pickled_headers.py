"""Weights that are pickles are looked at by their tables: a few KB, without torch, from disk or the Hub."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.opening import open_source
from eaglectl.files.source import FolderSource
from tests.builders import HIDDEN, call, contents, drafter_folder, refusal
from tests.hub import LoopbackHub, client_hub
from tests.test_pickles import pickled_folder, state, training_folder

torch = pytest.importorskip("torch")
ROWS = 20_000  # of the embedding: 640 kB, so that a file read whole is seen


def large_folder(parent: Path) -> Path:
    """The drafter with an embedding of ROWS rows, in torch's format."""
    tensors = state(**{"embed_tokens.weight": torch.ones(ROWS, HIDDEN, dtype=torch.bfloat16), "t2d": None})
    folder = drafter_folder(parent, config={"vocab_size": ROWS})
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of all reads of weights in folders."""
    sizes: list[int] = []
    read = FolderSource.read

    def counted(self: FolderSource, name: str, start: int = 0, stop: int | None = None) -> bytes:
        data = read(self, name, start, stop)
        sizes.extend([len(data)] if name.endswith(".bin") else [])
        return data

    monkeypatch.setattr(FolderSource, "read", counted)
    yield sizes


def test_a_table_is_that_of_the_same_weights_in_safetensors(tmp_path: Path) -> None:
    plain = drafter_folder(tmp_path / "plain")
    folder = drafter_folder(tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save(state(), folder / "pytorch_model.bin")
    expected, found = (read_checkpoint(open_source(str(path))) for path in (plain, folder))
    assert {name: (one.dtype, one.shape) for name, one in found.tensors.items()} == {
        name: (one.dtype, one.shape) for name, one in expected.tensors.items()
    }
    assert {name: found.read(name) for name in found.tensors} == {
        name: expected.read(name) for name in expected.tensors
    }


@pytest.mark.parametrize("command", [["inspect"], ["validate", "--headers-only"]], ids=lambda one: one[0])
def test_looking_reads_a_few_kb(tmp_path: Path, command: list[str], read_bytes: list[int]) -> None:
    folder = large_folder(tmp_path)
    assert call(*command, folder).code in (0, 1)
    assert sum(read_bytes) < 40_000  # validate reads it twice: for the target that it names too
    assert (folder / "pytorch_model.bin").stat().st_size > 600_000


def test_a_dry_run_reads_a_few_kb_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eaglectl.files.source import PinnedSource

    sizes: list[int] = []
    read = PinnedSource.read

    def counted(self: PinnedSource, name: str, start: int = 0, stop: int | None = None) -> bytes:
        data = read(self, name, start, stop)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(PinnedSource, "read", counted)
    folder = large_folder(tmp_path)
    before = contents(tmp_path)
    outcome = call("convert", folder, "-o", tmp_path / "out", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert sum(sizes) < 40_000
    assert contents(tmp_path) == before


def test_a_dry_run_plans_what_a_conversion_writes(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state())
    options = eaglectl.ConvertOptions(dry_run=True)
    plan = eaglectl.convert(str(folder), tmp_path / "out", options).plan
    written = eaglectl.convert(str(folder), tmp_path / "out").plan
    assert plan.config == written.config
    assert [(step.name, step.dtype, step.shape) for step in plan.steps] == [
        (step.name, step.dtype, step.shape) for step in written.steps
    ]


def test_a_dry_run_of_a_strided_map_copies_the_weights(tmp_path: Path) -> None:
    """d2t is every second element of a storage, which is at no one place of the file."""
    wide = torch.zeros(48, dtype=torch.int64)
    wide[::2] = state()["d2t"]
    folder = pickled_folder(tmp_path, state(d2t=wide[::2]))
    outcome = call("convert", folder, "-o", tmp_path / "out", "--dry-run")
    assert outcome.code == 0, outcome.err
    with pytest.raises(UnreadableError, match="d2t is in a pickle"):
        read_checkpoint(open_source(str(folder))).read("d2t")


@pytest.mark.parametrize("command", ["inspect", "validate", "diff"])
def test_looking_imports_no_torch(tmp_path: Path, command: str) -> None:
    folder = pickled_folder(tmp_path, state())
    arguments = [command, str(folder)]
    arguments += {"validate": ["--headers-only"], "diff": [str(folder), "--headers-only"]}.get(command, [])
    code = (
        "import sys; from eaglectl.cli import run; run(sys.argv[1:]);"
        " print('torch' in sys.modules, 'pickle' in sys.modules and 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False False"


def test_validate_says_that_it_copied_and_headers_only_does_not(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state())
    before = contents(folder)
    assert "copied to a temporary folder" in call("validate", "-v", folder).out
    assert "copied to a temporary folder" not in call("validate", "-v", folder, "--headers-only").out
    assert contents(folder) == before


def test_validate_checks_the_values_of_pickles(tmp_path: Path) -> None:
    """The values of the copy are judged, and what is found is named as in the pickle."""
    weight = state()["norm.weight"].clone()
    weight[0] = float("nan")
    report = eaglectl.validate(str(pickled_folder(tmp_path, state(**{"norm.weight": weight}))))
    assert report.is_of_copy
    (finding,) = [finding for finding in report.findings if "NaN" in finding.match.message]
    assert finding.match.where == "tensor:norm.weight"


def test_weights_that_cannot_be_copied_could_not_be_looked_at(tmp_path: Path) -> None:
    value = {**state(), "norm.weight": state()["norm.weight"].to_sparse()}
    report = eaglectl.validate(str(pickled_folder(tmp_path, value)))
    assert report.verdict != "pass"
    assert not report.is_of_copy
    assert any("sparse" in check.reason for check in report.unchecked)


def test_diff_compares_the_values_of_pickles_and_says_how(tmp_path: Path) -> None:
    plain, folder = drafter_folder(tmp_path / "plain"), pickled_folder(tmp_path, state())
    outcome = call("diff", plain, folder)
    assert outcome.code == 0, outcome.err
    assert "copied to a temporary folder" in " ".join(outcome.out.split())
    changed = state(**{"norm.weight": state()["norm.weight"] + 1})
    (tmp_path / "other").mkdir()
    assert call("diff", plain, pickled_folder(tmp_path / "other", changed)).code == 1
    assert "copied" not in call("diff", plain, folder, "--headers-only").out


def test_a_training_folder_is_looked_at_by_its_table(tmp_path: Path) -> None:
    folder = training_folder(tmp_path)
    for shard in (folder / "model").glob("*.distcp"):
        shard.write_bytes(bytes(shard.stat().st_size))  # the table alone is read
    document = call("inspect", folder, "--json").document
    assert document["drafter"]["producer"] == "torchspec"


# from the Hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with client_hub(monkeypatch, tmp_path) as running:
        yield running


@pytest.mark.parametrize(
    "command",
    [["inspect"], ["validate", "--headers-only"], ["diff", "--headers-only"]],
    ids=lambda one: one[0],
)
def test_from_the_hub_a_table_is_two_ranges(hub: LoopbackHub, tmp_path: Path, command: list[str]) -> None:
    folder = large_folder(tmp_path)
    hub.add_repo("org/drafter", folder)
    name, *options = command
    other = [folder] if name == "diff" else []
    outcome = call(name, "org/drafter", *other, *options)
    assert outcome.code in (0, 1), outcome.err
    weights = [request for request in hub.requests if request.is_elsewhere]
    assert len(weights) == 2  # the directory of a zip is at its end
    assert all(request.range is not None for request in weights)
    assert hub.traffic < 60_000


def test_the_data_of_a_pickle_on_the_hub_is_not_read(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo("org/drafter", large_folder(tmp_path))
    with pytest.raises(UnreadableError, match="run `eaglectl convert org/drafter"):
        read_checkpoint(open_source("org/drafter")).read("d2t")


def test_a_pickle_on_the_hub_is_validated_whole_after_a_download(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo("org/drafter", large_folder(tmp_path))
    assert eaglectl.validate("org/drafter").is_of_copy


# bad files: the same sentence in every command that looks


def zipped(data_pkl: bytes, storages: dict[str, bytes], *, twice: bool = False) -> bytes:
    """A torch archive with this pickle and these storages."""
    import io
    import warnings
    import zipfile

    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        warnings.simplefilter("ignore")
        archive.writestr("archive/data.pkl", data_pkl)
        for key, data in storages.items():
            for _ in range(1 + twice):
                archive.writestr(f"archive/data/{key}", data)
    return stream.getvalue()


def tensor(name: str, count: int, key: str = "0", offset: int = 0) -> bytes:
    """Opcodes of an item of a state dict: a float32 tensor of `count` elements."""
    text = f"X{chr(len(name))}\0\0\0{name}".encode()
    reference = (
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nX"
        + len(key).to_bytes(4, "little")
        + key.encode()
        + b"X\x03\0\0\0cpuK"
        + bytes([count])
        + b"tQ"
    )
    return (
        text
        + b"ctorch._utils\n_rebuild_tensor_v2\n("
        + reference
        + b"K"
        + bytes([offset])
        + b"K"
        + bytes([count])
        + b"\x85K\x01\x85\x89}tR"
    )


def state_pickle(*items: bytes) -> bytes:
    return b"\x80\x02}(" + b"".join(items) + b"u."


FORGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a name outside the list": (lambda: zipped(b"\x80\x02}c__main__\nx\n)R.", {}), "asks for __main__.x"),
    "an opcode outside the list": (lambda: zipped(b"\x80\x02\x82\x01.", {}), "opcode EXT1"),
    "a value that holds itself": (lambda: zipped(b"\x80\x02]q\x00h\x00a.", {}), "holds itself"),
    "a million nested tuples": (
        lambda: zipped(b"\x80\x02)" + b"\x85" * 1_000_000 + b".", {}),
        "inside each other",
    ),
    "a million flat tuples": (lambda: zipped(b"\x80\x02(" + b")" * 1_000_000 + b"t.", {}), "containers"),
    "a name twice": (
        lambda: zipped(state_pickle(tensor("a", 4), tensor("a", 4)), {"0": bytes(16)}),
        "'a' twice",
    ),
    "a storage that is not there": (lambda: zipped(state_pickle(tensor("a", 4)), {}), "nothing"),
    "a storage that is too small": (
        lambda: zipped(state_pickle(tensor("a", 4)), {"0": bytes(8)}),
        "has 16 bytes, and the file 8 bytes",
    ),
    "a tensor past its storage": (
        lambda: zipped(state_pickle(tensor("a", 4, offset=2)), {"0": bytes(16)}),
        "at bytes 8 to 24 of a storage of 16",
    ),
    "a record twice": (
        lambda: zipped(state_pickle(tensor("a", 4)), {"0": bytes(16)}, twice=True),
        "two records have one name",
    ),
    "a record past the file": (
        lambda: moved(zipped(state_pickle(tensor("a", 4)), {"0": bytes(16)}), 1 << 20),
        "past the end of the file",
    ),
    "overlapping records": (
        lambda: overlapping(
            zipped(state_pickle(tensor("a", 4), tensor("b", 4, "1")), {"0": bytes(16), "1": bytes(16)})
        ),
        "overlaps another",
    ),
}


def moved(raw: bytes, place: int) -> bytes:
    """The archive with the last record's place in the directory changed."""
    at = raw.rindex(b"PK\x01\x02") + 42
    return raw[:at] + place.to_bytes(4, "little") + raw[at + 4 :]


def overlapping(raw: bytes) -> bytes:
    """The archive with the last record in the directory where the one before it is."""
    last = raw.rindex(b"PK\x01\x02")
    before = raw.rindex(b"PK\x01\x02", 0, last)
    return moved(raw, int.from_bytes(raw[before + 42 : before + 46], "little"))


@pytest.mark.parametrize("title", FORGED)
@pytest.mark.parametrize("command", ["inspect", "diff"])
def test_a_forged_pickle_is_refused_in_one_sentence(tmp_path: Path, title: str, command: str) -> None:
    make, words = FORGED[title]
    folder = pickled_folder(tmp_path, make())
    extra = [folder, "--headers-only"] if command == "diff" else []
    message = refusal(3, command, folder, *extra)
    assert words in message
    assert "pytorch_model.bin" in message
    assert "\n" not in message.strip()


@pytest.mark.parametrize("title", FORGED)
def test_validate_reports_a_forged_pickle(tmp_path: Path, title: str) -> None:
    options = eaglectl.ValidateOptions(headers_only=True)
    report = eaglectl.validate(str(pickled_folder(tmp_path, FORGED[title][0]())), options)
    assert "EGL002" in {finding.rule.id for finding in report.findings}
    assert report.verdict == "fail"


@pytest.mark.parametrize("title", FORGED)
def test_a_forged_pickle_on_the_hub_is_refused_in_the_same_words(
    hub: LoopbackHub, tmp_path: Path, title: str
) -> None:
    make, words = FORGED[title]
    hub.add_repo("org/drafter", pickled_folder(tmp_path, make()))
    assert words in refusal(3, "inspect", "org/drafter")


PEAK = """
import resource, sys
from eaglectl.cli import run
run(["rules"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(["inspect", sys.argv[1]])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("title", ["a million nested tuples", "a million flat tuples"])
def test_a_forged_pickle_is_refused_within_100_mb(tmp_path: Path, title: str) -> None:
    folder = pickled_folder(tmp_path, FORGED[title][0]())
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout.splitlines()[-1]) < 100
