"""A target with states 100 times the others: the upgrade takes medians, which these leave alone."""

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.conversion.upgrade import Statistics  # noqa: E402
from tests.builders import write_record  # noqa: E402
from tests.tiny import TARGET, TINY  # noqa: E402

pytestmark = pytest.mark.slow

SINK, AGAIN = (
    7,
    5,
)  # a token that every prompt here has first, and at this position: sizes leave out the first
TIMES = 100.0
STREAM = 10.0  # states grow in the layers before the last boundary, and the sink's does not
PROMPTS, LENGTH = 6, 24


def sinking_target(folder: Path) -> Path:
    """The tiny target with the embedding of SINK so long that its states are TIMES those of other tokens."""
    target = folder / "target"
    shutil.copytree(TARGET, target)
    file = target / "model.safetensors"
    weights = load_file(file)
    table = weights["model.embed_tokens.weight"]
    others = float(table.float().pow(2).mean(1).sqrt().median())
    own = float(table[SINK].float().pow(2).mean().sqrt())
    weights["model.embed_tokens.weight"][SINK] *= TIMES * STREAM * others / own
    save_file(weights, file, {"format": "pt"})
    return target


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> tuple[Statistics, Statistics]:
    """Statistics of the plain target and of the one with a sink, on the same prompts."""
    folder = tmp_path_factory.mktemp("sink")
    random = torch.Generator().manual_seed(0)
    vocab = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    rows = torch.randint(SINK + 1, vocab, (PROMPTS, LENGTH), generator=random).tolist()
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"prompt_token_ids": [SINK, *row[: AGAIN - 1], SINK, *row[AGAIN - 1 :]]}) + "\n"
            for row in rows
        )
    )
    options = eaglectl.CalibrateOptions(prompts=prompts, answer_tokens=8, device="cpu")
    plain, sink = (
        eaglectl.calibrate(str(TINY / "eagle3"), str(target), None, options)
        for target in (TARGET, sinking_target(folder))
    )
    return plain, sink


def test_the_sink_is_seen(statistics: tuple[Statistics, Statistics]) -> None:
    plain, sink = statistics
    assert plain.massive is None or plain.massive.tokens == 0
    assert sink.massive is not None
    assert (sink.massive.tokens, sink.massive.positions) == (2 * PROMPTS, (0, AGAIN))
    assert min(sink.massive.times) > 10 and len(sink.massive.times) == len(sink.boundaries)
    words = f"at boundary {sink.boundaries[-1]} (up to {sink.massive.times[-1]:.3g} times the median RMS)"
    assert words in sink.massive.described(sink.boundaries)


def test_inspect_tells_of_the_sink_what_the_conversion_recorded(
    statistics: tuple[Statistics, Statistics], tmp_path: Path
) -> None:
    plain, sink = statistics
    for name, found in (("plain", plain), ("sink", sink)):
        out = tmp_path / name
        shutil.copytree(TINY / "eagle3.1", out)
        record = {"upgrade": {"calibration": found.described()}}
        write_record(out, previous=record)
    words = {
        name: [note.text for note in eaglectl.inspect(str(tmp_path / name), target=str(TARGET)).drafter.notes]
        for name in ("plain", "sink")
    }
    assert not any("massive" in text for text in words["plain"])
    (text,) = (text for text in words["sink"] if "massive" in text)
    assert sink.massive is not None
    assert text == f"{sink.massive.described(sink.boundaries)} (as calibrate saw them)"


@pytest.mark.parametrize("massive", [{"tokens": 3}, {"tokens": 3, "positions": "x", "channels": 4}, 5, {}])
def test_a_record_that_states_no_massive_tokens_is_passed_over(massive: object, tmp_path: Path) -> None:
    shutil.copytree(TINY / "eagle3", out := tmp_path / "drafter")
    write_record(out, upgrade={"calibration": {"massive": massive}})
    notes = eaglectl.inspect(str(out), target=str(TARGET)).drafter.notes
    assert not any("massive" in note.text for note in notes)


def test_a_sink_leaves_the_sizes_as_they_are(statistics: tuple[Statistics, Statistics]) -> None:
    """Root mean squares would be eighteen times as large: one token of 32 or so is 100 times the others."""
    plain, sink = statistics
    assert sink.rms == pytest.approx(plain.rms, rel=0.2)
    assert sink.sigma == pytest.approx(plain.sigma, rel=0.2)
