"""The scanner of vLLM's sources.

It reproduces the data for real releases, and sees what changes in small synthetic ones.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from eaglectl.engines import vllm
from eaglectl.engines.layers import IDS
from eaglectl.errors import UnreadableError
from tests.tools.calls import call_scan
from tests.tools.trees import SCANS, TREE, tree
from tools.scan.scanner import changes, compare, extracted
from tools.scan.sources import Sources
from tools.scan.vllm_checks import CHECKS, CLAIMS

LIKE = "0.33.0"  # the release that TREE mirrors


def scan(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


@pytest.mark.parametrize("path", SCANS, ids=lambda path: path.stem)
def test_what_was_found_in_a_release_is_what_the_data_says_of_it(path: Path) -> None:
    found = scan(path)
    assert found["release"] in vllm.ENGINE.releases
    assert compare(found, found["release"]) == []


def test_the_newest_three_releases_are_among_the_scans() -> None:
    assert {f"vllm-{release}" for release in vllm.ENGINE.releases[-3:]} <= {path.stem for path in SCANS}


def test_every_sight_is_of_a_fact() -> None:
    assert set(CHECKS) <= {fact.id for fact in vllm.ENGINE.facts}


def test_every_sight_and_claim_is_seen_both_ways_or_in_all_releases() -> None:
    """A check that can only say what the data expects today would see no change tomorrow."""
    seen = {name: {check(scan(path)) for path in SCANS} for name, check in CHECKS.items()}
    always = {
        name for name, values in seen.items() if len({value for value in values if value is not None}) == 1
    }
    expected = {
        fact.id for fact in vllm.ENGINE.facts if fact.releases in ("", ">=0.10.1", ">=0.11.1", ">=0.18.0")
    }
    assert always - expected <= {
        "multi-layer",
        "residual-absent",
        "speculators-unknown",
        "ids-unsorted",
        "fc-norm-unstated",
        "norm-output-unstated",
    }


def test_a_synthetic_release_like_the_newest_differs_in_nothing(tmp_path: Path) -> None:
    assert compare(extracted(tree(tmp_path)), LIKE) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "differs"),
    [
        (
            "llama_eagle3",
            'getattr(self.config, "norm_output", False)',
            "False",
            {"norm-output-absent", "norm-output-unstated"},
        ),
        (
            "llama_eagle3",
            'eagle_config.get("norm_before_fc", getattr(self.config, "norm_before_fc", False))',
            'getattr(self.config, "norm_before_fc")',
            {"norm-before-fc-nested"},
        ),
        ("llama_eagle3", 'getattr(config, "attention_bias", False)', "False", {"attention-bias-absent"}),
        ("llama_eagle3", 'name = "model." + name', "pass", {"prefix"}),
        (
            "llama_eagle3",
            "if ids else 3",
            "if ids else 4",
            {"fc takes three aux states where nothing says how many"},
        ),
        (
            "llama_eagle3",
            "loader.load_weights(weights)",
            "return loader.load_weights(weights)",
            {"missing tensors are not reported"},
        ),
        (
            "llama_eagle3",
            'eagle_config.get("eagle_aux_hidden_state_layer_ids")',
            "self.config.eagle_aux_hidden_state_layer_ids",
            {"aux-count-unstated"},
        ),
        (
            "llama_eagle3",
            "if self.config.draft_vocab_size != target_vocab_size:",
            "if True:",
            {"identity-d2t"},
        ),
        (
            "deepseek_eagle3",
            "self.model.fc_norm(hidden_states)",
            "self.model.fc(hidden_states)",
            {"fc-norm-not-applied"},
        ),
        (
            "deepseek_eagle3",
            "return AutoWeightsLoader(self).load_weights(weights)",
            "for name in weights:\n            if name not in params_dict:\n                continue",
            {"unknown-tensor", "unknown-tensor-dropped"},
        ),
        (
            "deepseek_eagle3",
            '"other", getattr(self.config, "other", False)',
            '"other", getattr(self.config, "norm_before_fc", False)',
            {"norm-before-fc-mla"},
        ),
        ("qwen3_eagle3", ", self.config.layer_types", "", {"sliding-window-qwen3"}),
        ("algos", 'pre_trained_config["norm_output"]', "other", {"speculators-norm-output"}),
        (
            "algos",
            '"norm_before_residual", True',
            '"norm_before_residual", False',
            {"speculators configs without norm_before_residual mean true"},
        ),
        (
            "algos",
            'pre_trained_config["fc_norm"]',
            'pre_trained_config["num_aux_hidden_states"]',
            {"speculators-fc-norm", "the speculators reader drops num_aux_hidden_states"},
        ),
        (
            "eagle3_utils",
            "inner.get('layer_ids')",
            "inner.get('eagle_aux_hidden_state_layer_ids')",
            {
                "ids are read in eagle_config (V2 runner)",
                "ids are read in eagle_config.layer_ids (V2 runner)",
            },
        ),
        (
            "gpu_model_runner",
            "eagle_config.get('eagle_aux_hidden_state_layer_ids')",
            "None",
            {"ids are read in eagle_config (V1 runner)"},
        ),
        ("interfaces", "num_layers - 3", "num_layers - 1", {"without ids the layers are (2, n // 2, n - 3)"}),
        ("utils", ".bias", ".scale", {"bias-unstated"}),
        ("vllm", "return True", "return False", {"the V2 runner is the default for every target"}),
        ("speculative", "'deepseek_v3', ", "", {"model_type deepseek_v3 is rewritten"}),
        (
            "registry",
            '"LlamaForCausalLMEagle3"',
            '"Eagle4LlamaForCausalLM"',
            {"architecture LlamaForCausalLMEagle3", "architecture Eagle4LlamaForCausalLM"},
        ),
    ],
)
def test_one_change_in_the_sources_is_seen_as_that_change(
    file: str, old: str, new: str, differs: set[str], tmp_path: Path
) -> None:
    found = extracted(tree(tmp_path, **{file: (old, new)}))
    assert {one.what for one in compare(found, LIKE)} == differs


def test_a_class_that_is_gone_is_seen(tmp_path: Path) -> None:
    (tree(tmp_path) / "vllm/model_executor/models/qwen3_eagle3.py").unlink()
    found = {one.what for one in compare(extracted(tmp_path), LIKE)}
    assert found == {"no-class-qwen3"}


def test_two_scans_are_compared_value_by_value() -> None:
    before, after = (scan(SCANS[0].with_name(f"vllm-{release}.json")) for release in ("0.32.0", "0.33.0"))
    assert changes(before, before) == []
    assert "rewritten_model_types: step5" in {one.what for one in changes(before, after)}


def test_a_wheel_is_read_without_its_other_members(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, text in TREE.items():
            file.writestr(f"vllm/{path}", text)
        file.writestr("vllm/_C.abi3.so", b"not python")
    done = call_scan(str(wheel))
    assert done.code == 0 and "nothing changed" in done.out and "add to" not in done.out
    done = call_scan(str(wheel), "--against", "0.24.0")
    assert done.code == 1
    assert "identity-d2t: does not hold before, holds in these sources" in done.out
    done = call_scan(str(wheel), "--json")
    assert done.code == 0 and done.document["release"] == "0.33.0"


def test_sources_that_cannot_be_read_are_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"PK\x03\x04 not a wheel")
    (tmp_path / "empty").mkdir()
    broken = tree(tmp_path / "broken")
    (broken / "vllm/config/vllm.py").write_text("def (")
    for path in (tmp_path / "a.whl", tmp_path / "empty", tmp_path / "gone", broken):
        assert call_scan(str(path)).code == 3
    good = str(tree(tmp_path / "good"))
    assert call_scan(good, "--against", "9.9.9").code == 3
    for text in (None, "not json", "[]"):
        if text:
            (tmp_path / "gone.json").write_text(text)
        done = call_scan(good, "--against", str(tmp_path / "gone.json"))
        assert done.code == 3 and "Traceback" not in done.err and "gone.json" in done.err
    with pytest.raises(UnreadableError):
        Sources(tmp_path / "empty")


def test_it_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tools.scan.scanner import scan;"
        f"scan(Path({str(tree(tmp_path))!r})); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "vllm", "rich"} & set(done.stderr.split())


@pytest.mark.parametrize("path", SCANS, ids=lambda path: path.stem)
def test_switches_are_stated_where_the_classes_read_them(path: Path) -> None:
    found = scan(path)
    flags = vllm.ENGINE.behaviour(found["release"]).flags
    for name in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual"):
        stated = (
            {"eagle_config" if "." in key else "top" for key in flags[name].first} if name in flags else set()
        )
        assert stated == set(found["classes"]["llama"]["reads"].get(name, [])), name


@pytest.mark.parametrize("path", SCANS, ids=lambda path: path.stem)
def test_aux_states_are_counted_by_the_keys_that_the_classes_read(path: Path) -> None:
    found = scan(path)
    keys = ("num_aux_layers", "num_aux_hidden_states", IDS, f"eagle_config.{IDS}")
    for kind, drafter in found["classes"].items():
        read = {
            key for key in keys if drafter and _place(key) in drafter["reads"].get(key.split(".")[-1], ())
        }
        if drafter:
            assert set(vllm.ENGINE.behaviour(found["release"]).aux_count[kind].paths) == read, kind


def _place(key: str) -> str:
    return "eagle_config" if "." in key else "top"


def test_claims_say_releases_that_are_known_or_none() -> None:
    assert all(releases == "" or releases[0] in "<>" for releases, _ in CLAIMS.values())


def test_an_expression_that_is_nested_too_deeply_is_one_sentence(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    (package / "model_executor/models").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    terms = " + ".join(["'a'"] * 500)
    text = f"def combine_hidden_states(self):\n    return {terms}\n"
    (package / "model_executor/models/llama_eagle3.py").write_text(text)
    done = call_scan(tmp_path)
    assert done.code == 3 and "nested too deeply" in done.err, done
