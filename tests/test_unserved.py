"""What `convert` does with a drafter that the engines asked for would not run as it was trained."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.engines.behaviour import unversioned
from eaglectl.engines.registry import ENGINES
from eaglectl.errors import RefusedError
from tests.builders import (
    ABSENT,
    HIDDEN,
    SGLANG,
    VLLM,
    Outcome,
    call,
    drafter_folder,
    floats,
    refusal,
    target_of,
)
from tests.conftest import FIXTURES

PRODUCERS, TARGET = FIXTURES / "producers", FIXTURES / "target"  # of 8 layers
SCHEMAS = FIXTURES.parent / "schemas"
# four states, the last of them that after the target's last layer, which SGLang does not capture
FOUR: dict[str, Any] = {
    "num_aux_hidden_states": 4,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5, 8],
    "eagle_config": ABSENT,
}


@pytest.fixture
def geglu(tmp_path: Path) -> Path:
    """A drafter that no engine runs: all of them have SiLU alone."""
    return drafter_folder(tmp_path, "geglu", config={"hidden_act": "gelu_pytorch_tanh"})


@pytest.fixture
def four(tmp_path: Path) -> tuple[Path, Path]:
    """A drafter of four states that vLLM runs and SGLang does not, and its target."""
    fc = {"fc.weight": floats("fc.weight", HIDDEN, 4 * HIDDEN)}
    return drafter_folder(tmp_path, "four", config=FOUR, tensors=fc), target_of(tmp_path / "target")


def serving(done: Outcome) -> dict[str, str]:
    """The lines under Serve, by engine."""
    shown = done.out.partition("\nServe")[2].partition("\n\n")[0].splitlines()[1:]
    parts = [line.strip().partition(" ") for line in shown if line.startswith("  ")]
    return {name.removesuffix(":"): text for name, _, text in parts}


@pytest.mark.parametrize(
    "options", [(), *(("--for", name) for name in ENGINES), ("--dry-run",)], ids=" ".join
)
def test_a_drafter_that_no_engine_runs_is_not_written(
    options: tuple[str, ...], geglu: Path, tmp_path: Path
) -> None:
    message = refusal(1, "convert", geglu, "-o", tmp_path / "out", *options)
    assert "gelu" in message or "silu" in message
    assert "no known release of any engine does" in message and "--force-unserved" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model_type", "runs"), [("step3p5", "runs"), ("step3p7", "is known to run")], ids=str
)
def test_old_releases_that_are_merely_unknown_do_not_let_a_conversion_through(
    model_type: str, runs: str, tmp_path: Path
) -> None:
    # step3p7's class came with 0.23.0, which does not capture it; whether transformers' code may is unknown
    target = target_of(tmp_path / "target", model_type=model_type, hidden_size=32, vocab_size=256)
    source, out = PRODUCERS / "specforge/gqa-ids", tmp_path / "out"
    message = refusal(1, "convert", source, "--for", "vllm", "--target", target, "-o", out)
    assert message.startswith(
        f"no vLLM of 0.10.0 - {VLLM} {runs} this output as trained: {VLLM}: has no EAGLE-3"
    )
    assert not out.exists()


@pytest.mark.parametrize("options", [(), ("--engine", "vllm")], ids=" ".join)
def test_what_a_rule_finds_in_the_config_of_the_output_is_refused_before_it_is_written(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    # scales without a quantization_config: a plan has both as the source has
    source = drafter_folder(tmp_path, tensors={"midlayer.mlp.up_proj.weight_scale": floats("s", dtype="F32")})
    message = refusal(1, "convert", source, *options, "-o", tmp_path / "out")
    assert "this output as trained" in message and "scales and no quantization_config" in message
    assert not (tmp_path / "out").exists()
    fixes = [each.fix for each in eaglectl.validate(source).findings if each.severity == "error"]
    assert fixes and not any("eaglectl convert" in fix for fix in fixes)


def test_a_trainer_s_layout_is_no_request_of_an_engine(geglu: Path, tmp_path: Path) -> None:
    done = call("convert", "-v", geglu, "--for", "specforge", "-o", tmp_path / "out")
    assert done.code == 0
    lines = serving(done)
    assert {name: lines[name].strip()[:10] for name in ENGINES} == dict.fromkeys(ENGINES, "not served")


def test_the_one_that_runs_it_is_named_and_every_engine_has_a_line_with_its_command_or_the_reason(
    four: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = four
    out = tmp_path / "out"
    message = refusal(1, "convert", source, "--target", target, "--for", "sglang", "-o", out)
    assert message.startswith(f"no SGLang of 0.5.14 - {SGLANG} runs this output as trained")
    assert f"vLLM 0.22.0 - {VLLM} does: use --for vllm" in message
    assert not out.exists()
    done = call("convert", "-v", source, "--target", target, "-o", out)
    lines = serving(done)
    assert done.code == 0 and list(lines)[: len(ENGINES)] == list(ENGINES)
    assert "vllm serve" in lines["vllm"]
    assert f"{SGLANG}: " in lines["sglang"] and "launch_server" not in lines["sglang"]
    assert "takes exactly three aux states" in lines["llama.cpp"] and "llama-server" not in lines["llama.cpp"]


def test_what_is_not_known_of_an_engine_is_said_and_is_no_refusal(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, config={"target_model_type": ABSENT})
    done = call("convert", "-v", source, "--for", "llama.cpp", "--engine", "sglang", "-o", tmp_path / "out")
    assert done.code == 0
    assert serving(done)["sglang"].strip().startswith(f"not known to serve it as trained by {SGLANG}: ")


@pytest.mark.parametrize(
    ("engines", "refused"),
    [
        (("vllm==0.32.0",), ""),
        (("vllm>=0.10",), ""),
        (("vllm==0.10.0",), "vLLM 0.10.0 does not run this output as trained"),
        (("vllm", "sglang"), f"SGLang {SGLANG} does not run this output as trained"),
        (("vllm", "atom"), ""),
    ],
    ids=" ".join,
)
def test_only_the_releases_asked_for_count_and_each_engine_does(
    engines: tuple[str, ...], refused: str, four: tuple[Path, Path], tmp_path: Path
) -> None:
    options = ConvertOptions(target=str(four[1]), engines=engines)
    with pytest.raises(RefusedError, match=refused) if refused else nullcontext():
        eaglectl.convert(str(four[0]), tmp_path / "out", options)


def test_what_is_forced_says_so_in_record_card_and_document(geglu: Path, tmp_path: Path) -> None:
    given = ("convert", "-v", geglu, "--for", "vllm", "--force-unserved")
    done = call(*given, "-o", tmp_path / "out")
    assert done.code == 0 and f"not served by {VLLM}: knows silu only" in serving(done)["vllm"]
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    (unserved,) = record["unserved"]
    assert (unserved["engine"], unserved["reasons"]) == ("vllm", ["knows silu only"])
    assert unserved["releases"] == list(ENGINES["vllm"].releases)
    jsonschema.validate(record, json.loads((SCHEMAS / "provenance.schema.json").read_text()))
    card = (tmp_path / "out/README.md").read_text()
    assert "> **Not served as trained** by any requested release of vllm: knows silu only." in card
    assert "library_name" not in card
    document = call(*given, "-o", tmp_path / "other", "--json").document
    jsonschema.validate(document, json.loads((SCHEMAS / "convert.schema.json").read_text()))
    outcomes = {part["engine"]: part["outcome"] for part in document["serving"]}
    differing = dict.fromkeys([*unversioned()["engines"], "llama.cpp"], "differs")
    assert outcomes == {**differing, "vllm": "fails", "sglang": "fails"}
    assert document["commands"] == {}


def test_of_what_is_served_force_says_nothing(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    assert call("convert", "-v", source, "--force-unserved", "-o", tmp_path / "out").code == 0
    assert "unserved" not in json.loads((tmp_path / "out/eaglectl.json").read_text())
    assert "library_name: vllm" in (tmp_path / "out/README.md").read_text()


def test_an_open_doubt_is_not_repeated_for_each_engine_and_hidden_by_none(tmp_path: Path) -> None:
    assumed, out = PRODUCERS / "automodel/gqa", tmp_path / "out"  # of no stated layers
    options = ("--target", TARGET, "--no-measure", "--assume-defaults", "-o", out)
    done = call("convert", "-v", assumed, *options)
    assert done.code == 0
    words = f"not known to serve it as trained by {SGLANG}: see the warning above"
    assert serving(done)["sglang"].strip() == words
    shown = call("inspect", "-v", out, "--target", TARGET).out
    rows = [row for row in shown.splitlines() if row.strip().startswith(("TensorRT-LLM", "tokenspeed"))]
    assert len(rows) == 2 and all(row.endswith("yes                not judged") for row in rows), rows
    assert "eagle3_layers_to_capture" not in shown


@pytest.mark.parametrize("model_type", ["foo_bar", "step3p5", "ernie4_5_moe", "minicpmv"])
def test_no_command_is_printed_for_a_target_that_no_engine_is_known_to_capture(
    model_type: str, tmp_path: Path
) -> None:
    target = target_of(tmp_path / "target", model_type=model_type, hidden_size=32, vocab_size=256)
    shown = call("inspect", "-v", PRODUCERS / "specforge/gqa", "--target", target).out
    assert "\nServe\n" not in shown and "\nServe  " not in shown and "layers_to_capture: {" not in shown
    shown = call("inspect", PRODUCERS / "specforge/gqa-ids", "--target", target).out
    assert f"vLLM {VLLM}" in shown and "eaglectl convert" not in shown


def test_no_option_serves_a_drafter_whose_files_contradict_each_other(tmp_path: Path) -> None:
    shown = call("inspect", "-v", drafter_folder(tmp_path, config={"draft_vocab_size": 7})).out
    assert "draft_vocab_size: 7" in shown and "eagle3_layers_to_capture" not in shown


def test_a_conversion_has_a_line_for_each_engine_whose_releases_are_not_followed(tmp_path: Path) -> None:
    source = PRODUCERS / "specforge/gqa"
    done = call("convert", "-v", source, "--target", TARGET, "-o", tmp_path / "out")
    lines = serving(done)
    assert lines["vllm"].strip().startswith("vllm serve ")
    assert lines["tensorrt-llm"].strip() == (
        "unknown: its targets were not looked at; needs eagle3_layers_to_capture: {1, 3, 4}; start it with"
        " the drafter, and smoke --run-in http://127.0.0.1:8080 measures it"
    )
    assert lines["atom"].strip() == "differs: captures boundaries [1, 3, 4]"
    others = "tokenspeed, max, vllm-ascend, lmdeploy, mlx-vlm: unknown: read, not judged; start it with the"
    assert others in done.out


def test_a_row_of_layers_does_not_read_as_fine_where_the_engine_fails(geglu: Path) -> None:
    done = call("inspect", "-v", geglu)
    rows = done.out.partition("newest release\n")[2].splitlines()
    assert [row.rpartition("  ")[2] for row in rows[:4]] == ["fails", "fails", "fails", "differs"]


@pytest.mark.parametrize(
    ("config", "target", "option"),
    [
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 512},
            {"max_position_embeddings": 2048},
            "--speculative-draft-window-size 511",
        ),
        ({"max_position_embeddings": 2048}, {"max_position_embeddings": 4096}, "--context-length 2048"),
    ],
)
def test_an_output_that_needs_an_option_is_written_with_the_option_in_its_start_line(
    config: dict[str, Any], target: dict[str, Any], option: str, tmp_path: Path
) -> None:
    source = drafter_folder(tmp_path, config=config)
    place, out = target_of(tmp_path / "target", **target), tmp_path / "out"
    done = call("convert", source, "--target", place, "--for", "sglang", "-o", out)
    assert done.code == 0 and f"runs it as trained, started with {option}" in " ".join(done.out.split())
    (command,) = (line for line in done.out.splitlines() if "sglang.launch_server" in line)
    assert command.endswith(option)
    document = call("inspect", out, "--target", place, "--engine", "sglang", "--json").document
    (verdict,) = document["engines"]
    assert (verdict["outcome"], verdict["options"]) == ("as trained, started so", [option])
    assert document["commands"]["sglang"].endswith(option)
    ready = call("ready", out, "--target", place, "--engine", "sglang")
    assert ready.code == 0 and option in ready.out
