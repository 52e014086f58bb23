"""The parent's side of calibrating through vLLM, with a stand-in of the package `vllm` in the child: what is
asked, and every way it ends.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from msgspec.structs import replace  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import eaglectl  # noqa: E402
from eaglectl.cli import run  # noqa: E402
from eaglectl.conversion.upgrade import FILE, read_statistics  # noqa: E402
from eaglectl.engines import vllm  # noqa: E402
from eaglectl.errors import UnreadableError, UsageError  # noqa: E402
from eaglectl.files.checkpoint import read_checkpoint  # noqa: E402
from eaglectl.files.source import FolderSource  # noqa: E402
from eaglectl.reference.states import load_embedding, load_states  # noqa: E402
from eaglectl.run.installed import VllmEngine, _base_request, start_vllm  # noqa: E402
from eaglectl.run.job import EngineJob  # noqa: E402
from eaglectl.run.process import InstalledEngine  # noqa: E402
from tests.stand_in import put_on_path  # noqa: E402
from tests.tiny import TARGET, TINY  # noqa: E402

EAGLE3, WIDTH, VOCAB = str(TINY / "eagle3"), 128, 512
CALL = ["calibrate", EAGLE3, "--target", str(TARGET), "--prompts", str(TINY / "calibration.jsonl")]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `vllm` for this process and its children; the file where it keeps what LLM was given."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return put_on_path(monkeypatch, tmp_path)


@contextmanager
def passes(
    boundaries: tuple[int, ...] = (2, 4, 5), timeout: float = 60.0, ranks: int = 1
) -> Iterator[VllmEngine]:
    job = job_of(boundaries, timeout=timeout, tensor_parallel_size=ranks)
    with start_vllm(job, 100) as found:
        yield found


def job_of(boundaries: tuple[int, ...] = (2, 4, 5), **given: Any) -> EngineJob:
    drafter = eaglectl.inspect(EAGLE3, target=str(TARGET)).drafter
    drafter = replace(drafter, aux=replace(drafter.aux, boundaries=boundaries))
    return EngineJob(TINY / "eagle3", drafter, TARGET, (), device="cpu", **given)


def test_states_come_in_the_drafters_order_padded_on_the_left_and_leave_no_file(
    stand_in: Path, tmp_path: Path
) -> None:
    with passes((5, 2, 4)) as target:
        seen = target.states([[7], [11, 12, 13]])
        left = sorted(
            path.suffix for path in tmp_path.joinpath("temporary").glob("*/files/**/*") if path.is_file()
        )
    assert seen.valid.tolist() == [[False, False, True], [True, True, True]]
    assert seen.positions.tolist() == [[0, 0, 0], [0, 1, 2]]
    by_layer = seen.aux.unflatten(-1, (3, WIDTH))[..., 0]
    assert by_layer[1].tolist() == [[5000.0 + t, 2000.0 + t, 4000.0 + t] for t in (11, 12, 13)]
    assert by_layer[0].tolist() == [[0, 0, 0], [0, 0, 0], [5007.0, 2007.0, 4007.0]]
    assert left == [".txt"]  # no states, no locks
    assert not list(tmp_path.joinpath("temporary").iterdir())


def test_vllm_is_given_boundaries_as_ids_each_once_and_in_order(stand_in: Path) -> None:
    with passes((5, 2, 5), ranks=4) as target:
        aux = target.states([[7, 8]]).aux
    given = json.loads(stand_in.read_text())
    assert given["speculative_config"] == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 5]}},
    }
    assert given["tensor_parallel_size"] == 4
    assert given["enable_prefix_caching"] is False
    assert given["max_model_len"] == 116
    assert aux.unflatten(-1, (3, WIDTH))[0, 0, :, 0].tolist() == [5007.0, 2007.0, 5007.0]
    assert target.engine == {
        "name": "vllm",
        "vllm": "0.32.0",
        "device": "cpu",
        "dtype": "float32",
        "tensor_parallel_size": "4",
    }


def test_the_cache_that_is_asked_for_holds_a_sequence_and_its_states() -> None:
    request = _base_request(job_of((5, 2, 4)), 100)
    # twice 116 tokens of keys and values in 8 layers, and 3 states, each of 128 numbers
    assert request["memory_bytes"] > 16 * 2 * 116 * (2 * 8 + 3) * 128 * 4
    assert request["cache_bytes"] == 256 << 20
    many = _base_request(job_of((2,) * 3000), 100)
    assert many["cache_bytes"] == 2 * 116 * (2 * 8 + 3000) * 128 * 4


def test_arguments_of_vllm_reach_it_and_are_recorded(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("def f(x):\n")
    options = eaglectl.CalibrateOptions(
        prompts=tmp_path / "prompts.txt",
        run_in="vllm",
        device="cpu",
        engine_arguments={"quantization": "fp8", "kv_cache_memory_bytes": 5},
    )
    made = eaglectl.calibrate(EAGLE3, str(TARGET), options=options)
    given = json.loads(stand_in.read_text())
    assert (given["quantization"], given["kv_cache_memory_bytes"]) == ("fp8", 5)
    assert made.engine["arguments"] == '{"quantization": "fp8", "kv_cache_memory_bytes": 5}'


def test_an_argument_that_vllm_does_not_have_is_usage(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "does not know block_sise")
    job = job_of(engine_arguments={"block_sise": 16})
    with pytest.raises(UsageError, match=r"vLLM .*unexpected keyword argument 'block_sise'.*are block_size"):
        start_vllm(job, 100).__enter__()


def test_answers_are_vllms_and_their_states_are_not_kept(stand_in: Path, tmp_path: Path) -> None:
    with passes() as target:
        assert target.answers([[7], [11, 12]], 3) == [[8, 9, 10], [13, 14, 15]]
        assert not list(tmp_path.joinpath("temporary").rglob("*.safetensors*"))


def test_the_embedding_is_the_targets_own(stand_in: Path) -> None:
    from transformers import AutoModelForCausalLM

    with passes() as target:
        mine = target.embedding
    theirs = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16).get_input_embeddings().weight
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("how", "message"),
    {
        "dies at once": r"ended with code 4 and no answer \(phase: importing\): .*Illegal instruction",
        "dies later": "ended with code 9 and no answer",
        "hangs": r"within --timeout 3 s and was stopped",
        "fails in a worker": r"See root cause above. \(ValueError: head_dim=7 is not there\)",
        "truncates": r"0.safetensors cannot be read.* set TMPDIR",
        "stops early": r"answers of \[2\] tokens where 3 were asked for",
    }.items(),
)
def test_a_child_that_cannot_go_on_ends_in_one_sentence(
    how: str, message: str, stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    with (
        pytest.raises(UnreadableError, match=message) as caught,
        passes(timeout=3.0 if how == "hangs" else 60.0) as target,
    ):
        target.answers([[7, 8]], 3)
        target.states([[7, 8]])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.joinpath("temporary").iterdir())


@pytest.mark.parametrize("release", ["0.16.0", "0.17.0", "0.24.0"])
def test_a_release_that_gives_no_states_is_not_tried(
    release: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RELEASE", release)
    with (
        pytest.raises(UnreadableError, match=rf"vLLM {release} does not give hidden states.*>=0\.25\.0"),
        passes(),
    ):
        pass
    assert not stand_in.exists()


@pytest.mark.parametrize("release", ["0.25.0", "0.32.0+cpu", "0.34.0rc1.dev3+g1234", "dev"])
def test_newer_releases_and_builds_between_them_are_tried(release: str) -> None:
    assert vllm.extracts_states(release)


def test_without_vllm_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InstalledEngine, "is_installed", lambda engine: False)
    assert run([*CALL, "--engine", "vllm", "--device", "cpu", "-o", str(tmp_path / "stats")]) == 3
    assert "vLLM is not installed" in (said := capsys.readouterr().err)
    assert "--run-in transformers" in said
    assert not (tmp_path / "stats").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "sglang"], "transformers or vllm was expected"),
        (["--tensor-parallel-size", "2"], "pass --run-in vllm"),
        (["--engine", "vllm", "--tensor-parallel-size", "0"], "at least 1"),
        (["--engine", "vllm", "--timeout", "0"], "more than 0"),
    ],
)
def test_options_that_make_no_sense_are_usage(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*CALL, *options, "-o", str(tmp_path / "stats")]) == 2
    assert message in capsys.readouterr().err


def written(path: Path, **tensors: Any) -> Path:
    good = {"hidden_states": torch.zeros(2, 3, 4), "token_ids": torch.tensor([5, 6])}
    save_file({**good, **tensors}, path)
    return path


def test_states_of_other_tokens_layers_or_widths_are_refused(tmp_path: Path) -> None:
    good = written(tmp_path / "good.safetensors")
    assert load_states(good, [5, 6], 3, 4).shape == (2, 3, 4)
    for asked in (([5, 7], 3, 4), ([5, 6, 7], 3, 4), ([5, 6], 2, 4), ([5, 6], 3, 8)):
        with pytest.raises(UnreadableError, match=r"vLLM wrote hidden states \[2, 3, 4\]"):
            load_states(good, *asked)
    with pytest.raises(UnreadableError, match="vLLM wrote hidden states"):
        load_states(written(tmp_path / "short.safetensors", hidden_states=torch.zeros(1, 3, 4)), [5, 6], 3, 4)


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
        (
            ["model.embed_tokens.weight", "model.layers.61.embed_tokens.weight"],
            VOCAB,
            True,
        ),  # DeepSeek's own drafter has a copy
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


def test_statistics_say_what_ran_the_target_and_older_ones_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("def f(x):\n")
    options = eaglectl.CalibrateOptions(prompts=tmp_path / "prompts.txt", device="cpu")
    made = eaglectl.calibrate(EAGLE3, str(TARGET), tmp_path / "stats", options)
    assert made.engine["name"] == "transformers"
    assert read_statistics(tmp_path / "stats").described() == made.described()
    document = json.loads((tmp_path / "stats" / FILE).read_text())
    del document["engine"]
    (tmp_path / "stats" / FILE).write_text(json.dumps(document))
    assert read_statistics(tmp_path / "stats").engine == {}
