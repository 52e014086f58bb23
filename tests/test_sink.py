"""A target with states 100 times the others: the upgrade takes medians, which these leave alone."""

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import eaglectl  # noqa: E402
from tests.tiny import TARGET, TINY  # noqa: E402

pytestmark = pytest.mark.slow

# a token that every prompt here has first, and at this position: sizes leave out the first
SINK, AGAIN = 7, 5
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


def test_a_sink_leaves_the_sizes_as_they_are(tmp_path: Path) -> None:
    """Root mean squares would be eighteen times as large: one token of 32 or so is 100 times the others."""
    random = torch.Generator().manual_seed(0)
    vocab = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    rows = torch.randint(SINK + 1, vocab, (PROMPTS, LENGTH), generator=random).tolist()
    tokens = [[SINK, *row[: AGAIN - 1], SINK, *row[AGAIN - 1 :]] for row in rows]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_token_ids": row}) + "\n" for row in tokens))
    options = eaglectl.CalibrateOptions(prompts=prompts, answer_tokens=8, device="cpu")
    plain, sink = (
        eaglectl.calibrate(str(TINY / "eagle3"), str(target), None, options)
        for target in (TARGET, sinking_target(tmp_path))
    )
    assert sink.rms == pytest.approx(plain.rms, rel=0.2)
    assert sink.sigma == pytest.approx(plain.sigma, rel=0.2)
