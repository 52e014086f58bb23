"""The scanner of vLLM's sources reproduces the data of real releases, and sees what changes."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from eaglectl.engines import vllm
from eaglectl.engines.behaviour import IDS
from tests.tools.trees import SCANS, TREE, call_scan, scan, tree
from tools.scan.scanner import compare, extracted

LIKE = "0.33.0"  # the release that TREE mirrors


@pytest.mark.parametrize("path", SCANS, ids=lambda path: path.stem)
def test_what_was_found_in_a_release_is_what_the_data_says_of_it(path: Path) -> None:
    found = scan(path)
    assert found["release"] in vllm.ENGINE.releases
    assert compare(found, found["release"]) == []


def test_a_synthetic_release_like_the_newest_differs_in_nothing(tmp_path: Path) -> None:
    assert compare(extracted(tree(tmp_path)), LIKE) == []


NORM_OUTPUT = 'getattr(self.config, "norm_output", False)'
LOADS = "loader.load_weights(weights)"
NESTED = 'eagle_config.get("norm_before_fc", getattr(self.config, "norm_before_fc", False))'
IDS_OF = 'eagle_config.get("eagle_aux_hidden_state_layer_ids")'
THREE = "fc takes three aux states where nothing says how many"
# a file of TREE, a text of it and what takes its place, and what then differs
CHANGES = (
    ("llama_eagle3", NORM_OUTPUT, "False", "norm-output-absent", "norm-output-unstated"),
    ("llama_eagle3", NESTED, 'getattr(self.config, "norm_before_fc")', "norm-before-fc-nested"),
    ("llama_eagle3", 'getattr(config, "attention_bias", False)', "False", "attention-bias-absent"),
    ("llama_eagle3", 'name = "model." + name', "pass", "prefix"),
    ("llama_eagle3", "if ids else 3", "if ids else 4", THREE),
    ("llama_eagle3", LOADS, f"return {LOADS}", "missing tensors are not reported"),
    ("llama_eagle3", IDS_OF, "self.config.eagle_aux_hidden_state_layer_ids", "aux-count-unstated"),
    ("qwen3_eagle3", ", self.config.layer_types", "", "sliding-window-qwen3"),
    ("algos", 'pre_trained_config["norm_output"]', "other", "speculators-norm-output"),
    ("interfaces", "num_layers - 3", "num_layers - 1", "without ids the layers are (2, n // 2, n - 3)"),
    ("utils", ".bias", ".scale", "bias-unstated"),
    ("vllm", "return True", "return False", "the V2 runner is the default for every target"),
    ("speculative", "'deepseek_v3', ", "", "model_type deepseek_v3 is rewritten"),
)


@pytest.mark.fast(5)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} {change[3]}")
def test_one_change_in_the_sources_is_seen_as_that_change(change: Sequence[str], tmp_path: Path) -> None:
    file, old, new, *differs = change
    found = extracted(tree(tmp_path, **{file: (old, new)}))
    assert {one.what for one in compare(found, LIKE)} == set(differs)


def test_a_wheel_is_read_without_its_other_members(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, text in TREE.items():
            file.writestr(f"vllm/{path}", text)
        file.writestr("vllm/_C.abi3.so", b"not python")
    done = call_scan(str(wheel))
    assert done.code == 0 and "nothing changed" in done.out and "add to" not in done.out
    done = call_scan(str(wheel), "--against", "0.24.0")
    assert done.code == 1 and "identity-d2t: does not hold before, holds in these sources" in done.out
    done = call_scan(str(wheel), "--json")
    assert done.code == 0 and done.document["release"] == "0.33.0"


def test_sources_that_cannot_be_read_are_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"PK\x03\x04 not a wheel")
    (tmp_path / "empty").mkdir()
    broken = tree(tmp_path / "broken")
    (broken / "vllm/config/vllm.py").write_text("def (")
    for path in (tmp_path / "a.whl", tmp_path / "empty", tmp_path / "gone", broken):
        assert call_scan(path).code == 3
    good = tree(tmp_path / "good")
    assert call_scan(good, "--against", "9.9.9").code == 3
    for text in (None, "not json", "[]"):
        if text:
            (tmp_path / "gone.json").write_text(text)
        done = call_scan(good, "--against", tmp_path / "gone.json")
        assert done.code == 3 and "Traceback" not in done.err and "gone.json" in done.err


@pytest.mark.parametrize("path", SCANS, ids=lambda path: path.stem)
def test_switches_and_numbers_of_aux_states_are_stated_where_the_classes_read_them(path: Path) -> None:
    found = scan(path)
    behaviour, classes = vllm.ENGINE.behaviour(found["release"]), found["classes"]
    for name in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual"):
        stated = map(_place, behaviour.flags[name].first) if name in behaviour.flags else ()
        assert set(stated) == set(classes["llama"]["reads"].get(name, [])), name
    keys = ("num_aux_layers", "num_aux_hidden_states", IDS, f"eagle_config.{IDS}")
    for kind, drafter in classes.items():
        if drafter:
            read = {key for key in keys if _place(key) in drafter["reads"].get(key.split(".")[-1], ())}
            assert set(behaviour.aux_count[kind].paths) == read, kind


def _place(key: str) -> str:
    return "eagle_config" if "." in key else "top"
