"""`ready` in SGLang's own engine: nested boundaries, which it takes for outputs of layers."""

import json
import shutil
from collections.abc import Iterator

import pytest

import eaglectl
from eaglectl.commands.ready.report import last_line
from eaglectl.results import Readiness
from tests.engine.sglang.test_smoke_sglang import ARGUMENTS, HOOKED
from tests.tiny import PROMPTS, TARGET, TINY


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readiness]:
    root = tmp_path_factory.mktemp("ready")
    stored = shutil.copytree(TINY / "eagle3", root / "stored")
    config = json.loads((stored / "config.json").read_text())
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**HOOKED, "EAGLECTL_TEST": str(root), "XDG_CACHE_HOME": str(root)}.items():
            patch.setenv(name, value)
        yield eaglectl.ready(
            stored,
            TARGET,
            root / "out",
            engines=("sglang==0.5.23",),
            prompts=PROMPTS,
            sample=8,
            max_tokens=32,
            device="cpu",
            answers=eaglectl.Answers(aux_convention="boundary"),
            engine_arguments=ARGUMENTS,
        )


def test_the_engine_itself_shows_that_it_reads_the_stored_file_otherwise(result: Readiness) -> None:
    (state,) = result.engines
    assert state.stored is not None and state.stored.run.engine == "sglang"
    assert (state.stored_outcome, state.stored.run.resolved["aux_layers"]) == ("differs", [3, 5, 6])


def test_the_conversion_is_read_as_trained_and_drafts_better(result: Readiness) -> None:
    (state,) = result.engines
    assert state.stored is not None and state.converted is not None
    assert (result.verdict, state.converted_outcome) == ("pass", "as trained")
    assert state.converted.run.resolved["aux_layers"] == [2, 4, 5]
    stored, converted = (run.measured.length.value for run in (state.stored, state.converted))
    assert converted > stored
    line = last_line(result)
    assert line.startswith(
        f"ready  as stored {stored:.2f}, converted {converted:.2f} tokens per target step ("
    )
    assert "start it with: python -m sglang.launch_server " in line
