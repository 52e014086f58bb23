"""The parent's side of calibrating through vLLM, with a stand-in of the package `vllm` in the child: what is
asked, and every way it ends.
"""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from msgspec.structs import replace  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.conversion.upgrade import FILE, read_statistics  # noqa: E402
from eaglectl.errors import UnreadableError, UsageError  # noqa: E402
from eaglectl.files.checkpoint import read_checkpoint  # noqa: E402
from eaglectl.files.source import FolderSource  # noqa: E402
from eaglectl.reference.states import load_embedding, load_states  # noqa: E402
from eaglectl.run.installed import _base_request, start_vllm  # noqa: E402
from eaglectl.run.job import EngineJob  # noqa: E402
from eaglectl.run.process import InstalledEngine  # noqa: E402
from tests.builders import refusal  # noqa: E402
from tests.stand_in import put_on_path  # noqa: E402
from tests.tiny import TARGET, TINY  # noqa: E402

EAGLE3, WIDTH, VOCAB = str(TINY / "eagle3"), 128, 512
CALL = ("calibrate", EAGLE3, "--target", TARGET, "--prompts", TINY / "calibration.jsonl")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `vllm` for this process and its children; the file where it keeps what LLM was given."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return put_on_path(monkeypatch, tmp_path)


def job_of(boundaries: tuple[int, ...] = (2, 4, 5), **given: Any) -> EngineJob:
    drafter = eaglectl.inspect(EAGLE3, target=str(TARGET)).drafter
    drafter = replace(drafter, aux=replace(drafter.aux, boundaries=boundaries))
    return EngineJob(TINY / "eagle3", drafter, TARGET, (), device="cpu", **given)


def test_states_come_in_the_drafters_order_padded_on_the_left_and_leave_no_file(
    stand_in: Path, tmp_path: Path
) -> None:
    """vLLM is given boundaries as ids, each once and in order."""
    with start_vllm(job_of((5, 2, 5), tensor_parallel_size=4), 100) as target:
        seen = target.states([[7], [11, 12, 13]])
        left = sorted(
            path.suffix for path in tmp_path.joinpath("temporary").glob("*/files/**/*") if path.is_file()
        )
    assert seen.valid.tolist() == [[False, False, True], [True, True, True]]
    assert seen.positions.tolist() == [[0, 0, 0], [0, 1, 2]]
    by_layer = seen.aux.unflatten(-1, (3, WIDTH))[..., 0]
    assert by_layer[1].tolist() == [[5000.0 + t, 2000.0 + t, 5000.0 + t] for t in (11, 12, 13)]
    assert by_layer[0].tolist() == [[0, 0, 0], [0, 0, 0], [5007.0, 2007.0, 5007.0]]
    assert left == [".txt"]  # no states, no locks
    assert not list(tmp_path.joinpath("temporary").iterdir())
    given = json.loads(stand_in.read_text())
    assert given["speculative_config"] == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 5]}},
    }
    read = {key: given[key] for key in ("tensor_parallel_size", "enable_prefix_caching", "max_model_len")}
    assert read == {"tensor_parallel_size": 4, "enable_prefix_caching": False, "max_model_len": 116}
    engine = {"name": "vllm", "vllm": "0.32.0", "device": "cpu", "dtype": "float32"}
    assert target.engine == {**engine, "tensor_parallel_size": "4"}


def test_the_cache_that_is_asked_for_holds_a_sequence_and_its_states() -> None:
    request = _base_request(job_of((5, 2, 4)), 100)
    # twice 116 tokens of keys and values in 8 layers, and 3 states, each of 128 numbers
    assert request["memory_bytes"] > 16 * 2 * 116 * (2 * 8 + 3) * 128 * 4
    assert request["cache_bytes"] == 256 << 20
    many = _base_request(job_of((2,) * 3000), 100)
    assert many["cache_bytes"] == 2 * 116 * (2 * 8 + 3000) * 128 * 4


def test_arguments_of_vllm_reach_it_and_are_recorded_in_statistics_of_which_older_ones_are_read_too(
    stand_in: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("def f(x):\n")
    arguments = {"quantization": "fp8", "kv_cache_memory_bytes": 5}
    options = eaglectl.CalibrateOptions(
        prompts=tmp_path / "prompts.txt", run_in="vllm", device="cpu", engine_arguments=arguments
    )
    made = eaglectl.calibrate(EAGLE3, str(TARGET), tmp_path / "stats", options)
    given = json.loads(stand_in.read_text())
    assert {name: given[name] for name in arguments} == arguments
    assert json.loads(made.engine["arguments"]) == arguments
    assert read_statistics(tmp_path / "stats").described() == made.described()
    document = json.loads((tmp_path / "stats" / FILE).read_text())
    del document["engine"]
    (tmp_path / "stats" / FILE).write_text(json.dumps(document))
    assert read_statistics(tmp_path / "stats").engine == {}


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("how", "message"),
    {
        "dies at once": r"ended with code 4 and no answer \(phase: importing\): .*Illegal instruction",
        "dies later": "ended with code 9 and no answer",
        "hangs": r"within --timeout 3 s and was stopped",
        "fails in a worker": r"See root cause above. \(ValueError: head_dim=7 is not there\)",
        "truncates": r"0.safetensors cannot be read.* set TMPDIR",
        "does not know block_sise": r"--engine-arg block_sise: .*unexpected keyword argument 'block_sise'",
    }.items(),
)
def test_a_child_that_cannot_go_on_ends_in_one_sentence(
    how: str, message: str, stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    arguments = {"block_sise": 16} if "block_sise" in how else {}
    job = job_of(timeout=3.0 if how == "hangs" else 60.0, engine_arguments=arguments)
    error = UsageError if arguments else UnreadableError
    with pytest.raises(error, match=message) as caught, start_vllm(job, 100) as target:
        target.answers([[7, 8]], 3)
        target.states([[7, 8]])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.joinpath("temporary").iterdir())


@pytest.mark.fast(1)
@pytest.mark.parametrize("release", ["0.16.0", "0.17.0", "0.24.0"])
def test_a_release_that_gives_no_states_is_not_tried(
    release: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RELEASE", release)
    with pytest.raises(UnreadableError, match=rf"vLLM {release} does not provide hidden states.*>=0\.25\.0"):
        start_vllm(job_of(), 100).__enter__()
    assert not stand_in.exists()


def test_without_vllm_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstalledEngine, "is_installed", lambda engine: False)
    message = refusal(3, *CALL, "--run-in", "vllm", "--device", "cpu", "-o", tmp_path / "stats")
    assert "vLLM is not installed" in message and "--run-in transformers" in message
    assert not (tmp_path / "stats").exists()


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0{}      ", b"no safetensors at all"])
def test_a_file_that_holds_no_states_is_named(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "0.safetensors").write_bytes(content)
    with pytest.raises(UnreadableError, match=r"hidden states 0\.safetensors cannot be read"):
        load_states(tmp_path / "0.safetensors", [5], 3, 4)


@pytest.mark.parametrize(
    ("names", "rows", "is_found"),
    [
        (["model.embed_tokens.weight"], VOCAB, True),
        (["language_model.model.embed_tokens.weight", "vision.conv.weight"], VOCAB, True),
        (["transformer.wte.weight"], VOCAB + 64, True),
        (["model.embed_tokens.weight"], VOCAB - 1, False),
        # DeepSeek's own drafter has a copy
        (["model.embed_tokens.weight", "model.layers.61.embed_tokens.weight"], VOCAB, True),
        (["model.embed_in.weight"], VOCAB, False),
    ],
)
def test_an_embedding_is_found_by_name_and_shape_or_not_at_all(
    names: list[str], rows: int, is_found: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    table = torch.randn(rows, WIDTH)
    save_file({name: table + place for place, name in enumerate(names)}, tmp_path / "model.safetensors")
    target = read_checkpoint(FolderSource(tmp_path))
    if is_found:
        assert torch.equal(load_embedding(target, VOCAB, WIDTH), table)
    else:
        with pytest.raises(UnreadableError, match=r"shares the target's embedding.*--run-in transformers"):
            load_embedding(target, VOCAB, WIDTH)
