"""Targets and sources as they are found: other keys, nested configs, run folders, wrapped names."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.files.text_part import text_part
from eaglectl.formats.reader import read_target
from tests.builders import (
    call,
    drafter_folder,
    drafter_tensors,
    floats,
    integers,
    mask,
    read_safetensors,
    refusal,
    write_safetensors,
)
from tests.conftest import FIXTURES

SIZES = {"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 48}


LLAMA = {"model_type": "llama", **SIZES}


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        {"model_type": "gemma3", "text_config": LLAMA},
        {"model_type": "internvl", "llm_config": LLAMA},
        {"model_type": "deepseek_vl_v2", "language_config": LLAMA},
        {
            "model_type": "qwen3_omni_moe",
            "thinker_config": {"model_type": "thinker", "text_config": LLAMA},
            "talker_config": {"text_config": {"num_hidden_layers": 3}},
        },
        {"num_layers": 8, **{key: LLAMA[key] for key in ("model_type", "hidden_size", "vocab_size")}},
        *({"llm_config": part, **LLAMA} for part in ([], 4, "x", None)),
    ],
    ids=["plain", "text", "llm", "language", "thinker", "longcat", "a list", "a number", "a word", "nothing"],
)
def test_a_target_s_language_model_is_found(config: dict[str, Any]) -> None:
    target = read_target(config, None)
    assert (target.model_type, target.depth, target.hidden, target.vocab) == ("llama", 8, 16, 48)


def test_a_config_nested_without_end_is_no_crash() -> None:
    config: dict[str, Any] = {}
    for _ in range(5000):
        config = {"text_config": config}
    assert read_target(config, None).depth is None
    assert "text_config" in text_part(config)


# a folder without a config.json


def test_a_target_with_a_generation_config_alone_is_not_told_to_copy_the_drafters(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "generation_config.json").write_text("{}")
    message = refusal(3, "inspect", drafter_folder(tmp_path), "--target", target)
    assert "target has no config.json" in message and "with the target's config.json" in message
    assert "draft json" not in message


def nemo_run(parent: Path) -> Path:
    """A NeMo Automodel run: two epochs, each with its weights as they trained and as they are exported."""
    run = parent / "run"
    for epoch in ("epoch_9_step_90", "epoch_10_step_100"):
        model = run / epoch / "model"
        shutil.copytree(FIXTURES / "producers/automodel/gqa", model / "consolidated")
        shutil.copy(
            model / "consolidated/model-00001-of-00001.safetensors",
            model / "shard-00001-model-00001-of-00001.safetensors",
        )
        (model / ".hf_metadata").mkdir()
        shutil.copy(model / "consolidated/config.json", model / ".hf_metadata")
        shutil.copy(FIXTURES / "producers/automodel/sidecar/eagle_meta.pt", run / epoch)
        for empty in ("optim/__0_0.distcp", "optim/.metadata", "rng/rng_global_rank_0.pt", "config.yaml"):
            (run / epoch / empty).parent.mkdir(exist_ok=True)
            (run / epoch / empty).touch()
    return run


@pytest.mark.parametrize(
    ("below", "named"),
    [("", ("epoch_10_step_100", "epoch_9_step_90")), ("epoch_10_step_100/model", ("epoch_10_step_100",))],
)
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_run_folder_names_the_checkpoints_in_it(
    tmp_path: Path, command: str, below: str, named: tuple[str, ...]
) -> None:
    run = nemo_run(tmp_path)
    done = call(command, run / below)
    message = done.err.strip()
    folders = ", ".join(str(run / name / "model/consolidated") for name in named)
    if command == "inspect":  # which lists them
        assert "is not a checkpoint; the newest in it: `" in message
    else:
        assert (
            f"has no config.json; pass the folder of one checkpoint in it: {folders}; the newest" in message
        )
    assert message.endswith(f"`eaglectl inspect {run / named[0]}/model/consolidated`")
    assert done.code == 3 and len(done.err.splitlines()) == 1
    listed = [line.split("  written ")[0] for line in done.out.splitlines()]
    assert listed == (folders.split(", ") if command == "inspect" else [])
    assert "draft json" not in message


def test_the_exported_folder_of_a_run_is_read_and_a_config_above_it_names_it(tmp_path: Path) -> None:
    run = nemo_run(tmp_path)
    assert call("inspect", run, "--json").document["kind"] == "unreadable"
    folder = run / "epoch_10_step_100/model/consolidated"
    assert eaglectl.inspect(str(folder)).drafter.producer == "automodel"
    shutil.copy(folder / "config.json", run)
    message = refusal(3, "diff", run, run)
    assert "has no weights" in message and "epoch_10_step_100/model/consolidated" in message


def test_links_and_folders_without_weights_are_not_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "empty").mkdir(parents=True)
    (run / "empty/config.json").write_text("{}")
    (run / "latest").symlink_to(FIXTURES / "producers/automodel/gqa", target_is_directory=True)
    assert "copy the trainer's draft json" in refusal(3, "inspect", run)


STATES = {
    "SafeAILab": (
        "state_9/pytorch_model.bin",
        "state_9",
        "holds weights: copy the trainer's draft json into",
    ),
    "ZeRO": (
        "state_9/global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "state_9/global_step10",
        "holds DeepSpeed's shards: run `python -m deepspeed.utils.zero_to_fp32 {}/.. OUT`",
    ),
    "DeepSpeed": (
        "run_2/global_step10/mp_rank_00_model_states.pt",
        "run_2/global_step10",
        "DeepSpeed's state",
    ),
    "verl": (
        "global_step_4/actor/model_world_size_2_rank_0.pt",
        "global_step_4/actor",
        "run `python -m verl.model_merger merge --backend fsdp --local_dir {} --target_dir OUT`",
    ),
    "FSDP": (
        "checkpoint-8/pytorch_model_fsdp_0/__0_0.distcp",
        "checkpoint-8/pytorch_model_fsdp_0",
        "holds a torch distributed checkpoint: copy",
    ),
    "Accelerate": ("checkpoint_3/pytorch_model_fsdp.bin", "checkpoint_3", "holds weights: copy"),
    "Lightning": (
        "version_0/checkpoints/epoch=0-step=100.ckpt",
        "version_0/checkpoints",
        "holds a checkpoint of Lightning: copy the .ckpt file to {}/pytorch_model.bin",
    ),
    "Megatron": (
        "iter_0000100/mp_rank_00_000/model_optim_rng.pt",
        "iter_0000100/mp_rank_00_000",
        "--export-extra-modules --load {}/../.. --export-dir OUT`",
    ),
    "Megatron, distributed": (
        "iter_0000100/common.pt",
        "iter_0000100",
        "holds Megatron's distributed checkpoint: run Megatron-LM's",
    ),
    "torch": ("ckpts/draft_step_100.pth", "ckpts", "holds a torch file: copy"),
}


@pytest.mark.parametrize("trainer", STATES)
def test_a_run_folder_names_the_states_in_it_and_the_step_to_take(tmp_path: Path, trainer: str) -> None:
    file, folder, words = STATES[trainer]
    for name in (file, "optimizer_0/__0_0.distcp", "logs/events.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for command in ("inspect", "convert"):
        message = refusal(3, command, tmp_path)
        place = f"{tmp_path}/{folder}"
        assert f"{place} holds" in message and words.format(place) in message
        assert "optimizer_0" not in message and "logs" not in message


@pytest.mark.parametrize("trainer", ["ZeRO", "Lightning", "Megatron"])
def test_a_state_that_is_passed_itself_gets_the_same_step(tmp_path: Path, trainer: str) -> None:
    file, folder, words = STATES[trainer]
    place = tmp_path / folder
    place.mkdir(parents=True)
    (tmp_path / file).touch()
    message = refusal(3, "inspect", place)
    assert words.format(place) in message and "copy the trainer's draft json there" not in message


def test_a_state_of_lightning_beside_a_config_gets_the_step_too(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "last.ckpt")
    assert f"copy the .ckpt file to {folder}/pytorch_model.bin" in refusal(3, "inspect", folder)


def test_one_rank_of_megatron_stands_for_all(tmp_path: Path) -> None:
    for rank in ("00_000", "00_001", "01_000"):
        (tmp_path / f"iter_1/mp_rank_{rank}").mkdir(parents=True)
        (tmp_path / f"iter_1/mp_rank_{rank}/model_optim_rng.pt").touch()
    message = refusal(3, "inspect", tmp_path)
    assert "mp_rank_00_000 holds" in message and message.count("holds") == 1


def test_the_newest_state_of_a_run_is_named_first_and_parts_of_one_are_not(tmp_path: Path) -> None:
    for name in ("state_0/pytorch_model.bin", "state_10/pytorch_model.bin", "state_9/pytorch_model.bin"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "state_0/global_step10").mkdir()
    (tmp_path / "state_0/global_step10/mp_rank_00_model_states.pt").touch()
    message = refusal(3, "inspect", tmp_path)
    places = [message.index(f"state_{step} holds") for step in (10, 9, 0)]
    assert places == sorted(places) and "global_step10" not in message


# wrapped names

WRAPPED = ["module.", "draft_model.", "_orig_mod.", "_fsdp_wrapped_module._orig_mod.module."]
# of modules that no list has
MODULES = ["ea_layer.", "speculator.head.", "model.language_model."]


def names_of(folder: Path) -> set[str]:
    drafter = eaglectl.inspect(str(folder)).drafter
    assert drafter.unknown == ()
    return set(drafter.tensors)


@pytest.mark.parametrize("prefix", [*WRAPPED, *MODULES])
def test_stacked_wrappers_are_read_through(tmp_path: Path, prefix: str) -> None:
    folder = drafter_folder(tmp_path)
    plain = names_of(folder)
    tensors = {f"{prefix}{name}": tensor for name, tensor in drafter_tensors().items()}
    write_safetensors(folder / "model.safetensors", tensors)
    assert names_of(folder) == plain
    pytest.importorskip("torch")
    from tests.pickles import pickled_folder, state

    state_dict = {f"{prefix}{name}": tensor for name, tensor in state().items()}
    assert names_of(pickled_folder(tmp_path / "pickled", state_dict)) == plain


@pytest.mark.parametrize("prefix", MODULES)
def test_a_module_that_holds_the_whole_drafter_is_named_and_taken_away(tmp_path: Path, prefix: str) -> None:
    whole = {"d2t": integers(*[0] * 64), "lm_head.weight": floats("head", 64, 16), "t2d": mask(range(64))}
    folder = drafter_folder(tmp_path, config={"draft_vocab_size": 64})
    tensors = {f"{prefix}{name}": tensor for name, tensor in drafter_tensors(**whole).items()}
    write_safetensors(folder / "model.safetensors", tensors)
    releases = ("--engine", "vllm==0.32.0", "--engine", "sglang==0.5.23")
    report = call("validate", folder, *releases, "--json").document
    messages = {entry["rule"]: entry["message"] for entry in report["findings"]}
    assert messages["EGL1005"] == f"vLLM 0.32.0 refuses tensor names that begin with {prefix}"
    assert messages["EGL1126"].endswith(f"begins with {prefix} in silence")
    alone = call("validate", folder, "--no-engines", "--select", "EGL209", "--json").document
    assert alone["findings"][0]["message"].startswith("vLLM, SGLang")
    assert call("convert", folder, "-o", tmp_path / "out").code == 0
    written = read_safetensors(tmp_path / "out/model.safetensors")
    assert written == {name: tensors[f"{prefix}{name}"] for name in written} and "fc.weight" in written


def test_a_drafter_beside_another_module_is_said_to_be_there(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    tensors = {f"ea_layer.{name}": tensor for name, tensor in drafter_tensors().items()}
    tensors["base_model.lm_head.weight"] = floats("target", 64, 16)
    write_safetensors(folder / "model.safetensors", tensors)
    message = refusal(1, "inspect", folder)
    assert message.startswith("the file has ea_layer.fc.weight beside the tensors of another module")


# ids that count from the end


def test_ids_from_the_targets_end_are_asked_about_with_the_reason(tmp_path: Path) -> None:
    ids = {"aux_hidden_layers": [2, -3, -1], "eagle_aux_hidden_state_layer_ids": None, "eagle_config": None}
    folder = drafter_folder(tmp_path, config=ids)
    message = refusal(2, "convert", folder, "-o", tmp_path / "out")
    assert "count from the target's end" in message and "--aux-layers" in message
    assert call("convert", folder, "-o", tmp_path / "out", "--aux-layers", "2,6,8").code == 0
