"""`ready` in SGLang's own engine: nested boundaries, which it takes for outputs of layers."""

import json
import shutil
from pathlib import Path

import pytest

import eaglectl
from eaglectl.commands.ready.run import last_line
from tests.engine.sglang.settings import ARGUMENTS
from tests.tiny import PROMPTS, TARGET, TINY


@pytest.mark.usefixtures("hooked")
def test_ids_that_it_reads_otherwise_are_converted_and_then_it_drafts_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = shutil.copytree(TINY / "eagle3", tmp_path / "stored")
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    (folder / "config.json").write_text(json.dumps(config))
    result = eaglectl.ready(
        folder,
        TARGET,
        tmp_path / "out",
        engines=("sglang==0.5.23",),
        prompts=PROMPTS,
        sample=8,
        max_tokens=32,
        device="cpu",
        answers=eaglectl.Answers(aux_convention="boundary"),
        engine_arguments=ARGUMENTS,
    )
    (state,) = result.engines
    assert state.converted is not None
    stored, converted = state.stored.report, state.converted.report
    assert stored is not None and converted is not None and stored.run.engine == "sglang"
    assert (state.stored.outcome, stored.run.resolved["aux_layers"]) == ("differs", [3, 5, 6])
    assert (state.converted.outcome, converted.run.resolved["aux_layers"]) == ("as trained", [2, 4, 5])
    assert result.verdict == "pass"
    before, after = stored.measured.length.value, converted.measured.length.value
    assert after > before
    line = last_line(result)
    assert line.startswith(
        f"pass: ready: as stored {before:.2f}, converted {after:.2f} tokens per target step ("
    )
    assert "start it with: python -m sglang.launch_server " in line
