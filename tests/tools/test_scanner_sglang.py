"""The scanner of SGLang's sources.

It reproduces the data for real releases, and sees what changes in small synthetic ones.
"""

import json
import re
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eaglectl.engines.data import read
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.targets import target_class, target_classes
from eaglectl.errors import UnreadableError
from tests.builders import write_package
from tests.engine.agreement.records import VLLM
from tests.engine.sglang.records import SGLANG
from tests.tools.calls import call_scan
from tools.scan import scanner, sglang_sources
from tools.scan.scanner import PLANS, compare, extracted
from tools.scan.sources import PACKAGES

FOLDER = Path(__file__).parent / "scans"
SCANS = sorted(FOLDER.glob("sglang-*.json"))
LIKE = "0.5.23"  # the release that TREE mirrors
CAPTURE = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            num_layers = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        else:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
"""
FIRST_IS_ONE = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            num_layers = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        elif layer_ids[0] == 1:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
        else:
            self.model.layers_to_capture = list(layer_ids)
"""
VL = CAPTURE.replace("self.model.layers_to_capture = [2,", "layer_ids = [2,").replace(
    "        else:\n    ", ""
)
# the code of a class by what it adds to ids and its default layers
FORMS = {
    ("always", "(2, n // 2, n - 3)"): CAPTURE,
    ("always", "(2 + 1, n // 2 + 1, n - 3 + 1)"): VL,
    ("first id is 1", "(2, n // 2, n - 3)"): FIRST_IS_ONE,
    ("no id is n", "(2, n // 2, n - 3)"): FIRST_IS_ONE.replace(
        "layer_ids[0] == 1", "max(layer_ids) == num_layers"
    ),
}
WRAPPER = """
    def __init__(self, config):
        self.language_model = {inner}(config)
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)
"""
LOOP = """
class Model:
    def forward(self, hidden_states):
        for i, layer in enumerate(self.layers):
            hidden_states = layer(hidden_states, keep if i in self.layers_to_capture else None)
"""
OF_BRANCH = """
class Model:
    def forward(self, hidden_states, residual):
        for i, layer in enumerate(self.layers):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states)
            hidden_states, residual = layer(hidden_states, residual)
"""
AT_END = """        if num_layers in self.layers_to_capture:
            keep(hidden_states)
"""
FILES = {"Qwen3ForCausalLM": "qwen3", "GlmMoeDsaForCausalLM": "glm4_moe_dsa"}


def target_files() -> dict[str, str]:
    """A file for each target class that the data has in LIKE, but Llama's."""
    rows = {name: target_class("sglang", LIKE, name) for name in target_classes("sglang")}
    texts = {}
    for name, row in rows.items():
        if row is None or row.captures == "absent" or name == "LlamaForCausalLM":
            continue
        body = "\n    pass\n"
        if row.captures == "captures":
            body = FORMS[row.adds_one, row.default]
        if row.language_model:
            body = WRAPPER.format(inner=row.language_model)
        path = f"srt/models/{FILES.get(name, name)}.py"
        loop = (OF_BRANCH if row.state else LOOP) + (AT_END if row.last else "")
        texts[path] = f"{loop}\nclass {name}(Module):{body}\nEntryClass = {name}\n"
    texts["srt/models/glm4_moe_dsa.py"] = (
        "class GlmMoeDsaForCausalLM(DeepseekV2ForCausalLM):\n    pass\nEntryClass = [GlmMoeDsaForCausalLM]\n"
    )
    return texts


LLAMA_DRAFTER = """
class Layer:
    def __init__(self, config):
        self.self_attn.qkv_proj = QKVParallelLinear(hidden_size, bias=False)
    def forward(self, hidden_states, residual):
        if self.is_input_layer:
            embeds = self.input_layernorm(embeds)
        else:
            hidden_states = self.hidden_norm(hidden_states, residual)
class Model:
    def __init__(self, config):
        self.size = config.target_hidden_size
        n = getattr(config, "num_aux_hidden_states", None)
        eagle_config = getattr(config, "eagle_config", None)
        layer_ids = eagle_config.get("eagle_aux_hidden_state_layer_ids")
        n = len(layer_ids) if layer_ids else 3
        self.fc = Linear(bias=getattr(config, "bias", False))
        before = eagle_config.get("norm_before_fc", getattr(config, "norm_before_fc", False))
        norm = getattr(config, "fc_norm", None) or getattr(config, "use_aux_norm", False)
        layers = range(config.num_hidden_layers)
        self.norm_output = getattr(config, "norm_output", False)
    def forward(self, hidden_states):
        if hidden_states.shape[-1] != embeds.shape[-1]:
            hidden_states = self.fc(hidden_states)
class LlamaForCausalLMEagle3(LlamaForCausalLM):
    def __init__(self, config):
        if config.tie_word_embeddings:
            self.lm_head = self.embed_tokens
        elif config.draft_vocab_size is None:
            self.load_lm_head_from_target = True
        self.hot_token_id = None
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            self.hot_token_id = loaded_weight + torch.arange(loaded_weight.shape[0])
            param_name = name if name in params_dict else f"model.{name}"
            if param_name in params_dict:
                weight_loader(param_name)
EntryClass = [LlamaForCausalLMEagle3]
"""
MLA_DRAFTER = """
def count(config):
    eagle_config = getattr(config, "eagle_config", None)
    layer_ids = eagle_config.get("eagle_aux_hidden_state_layer_ids")
    if layer_ids is None:
        layer_ids = getattr(config, "eagle_aux_hidden_state_layer_ids", None)
    if layer_ids is None:
        return 3
    return len(layer_ids)
class Eagle3DeepseekV2ForCausalLM:
    def __init__(self, config):
        bias = getattr(config, "bias", False)
        norm = getattr(config, "fc_norm", None) or getattr(config, "use_aux_norm", False)
        if config.num_hidden_layers != 1:
            raise ValueError("1 layer")
        norm = getattr(config, "norm_output", False)
        draft_vocab_size = getattr(config, "draft_vocab_size", None)
        if config.tie_word_embeddings:
            pass
        elif draft_vocab_size is None:
            self.load_lm_head_from_target = True
        self.hot_token_id = None
    def load_weights(self, weights):
        self.hot_token_id = loaded_weight + torch.arange(loaded_weight.shape[0])
        mapped_name = f"model.{mapped_name}"
        if mapped_name not in params_dict:
            return
    def post_load_weights(self):
        if w.dtype not in (torch.bfloat16,):
            raise NotImplementedError
EntryClass = [Eagle3DeepseekV2ForCausalLM]
"""
TREE = {
    "__init__.py": "raise SystemExit('the scanner must not import this')",
    "srt/models/llama_eagle3.py": LLAMA_DRAFTER,
    "srt/models/kimi_k25_eagle3.py": MLA_DRAFTER,
    "srt/model_executor/model_runner_components/spec_aux_hidden_state.py": (
        "def _resolve_eagle_aux_hidden_state(config):\n"
        "    config.eagle_aux_hidden_state_layer_ids = eagle_config['eagle_aux_hidden_state_layer_ids']"
    ),
    "srt/configs/model_config.py": (
        "class ModelConfig:\n"
        "    def _derive_context_length(self, context_length):\n"
        "        if context_length > derived_context_len:\n"
        "            raise ValueError('longer')"
    ),
    "srt/models/llama.py": (
        "class LlamaMLP:\n"
        "    def __init__(self):\n"
        "        self.gate_up_proj = Linear(bias=False)\n"
        "        if hidden_act != 'silu':\n"
        "            raise ValueError\n"
        f"{LOOP}\nclass LlamaForCausalLM:{CAPTURE}\nEntryClass = LlamaForCausalLM\n"
    ),
    **target_files(),
}


def tree(parent: Path, **changed: tuple[str, str]) -> Path:
    """The synthetic package, in some files with one text in place of another."""
    return write_package(parent / "sglang", TREE, changed).parent


def scan(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


@pytest.mark.parametrize("path", SCANS, ids=lambda path: path.stem)
def test_what_was_found_in_a_release_is_what_the_data_says_of_it(path: Path) -> None:
    found = scan(path)
    assert compare(found, found["release"]) == []


def test_every_release_of_the_data_has_its_scan() -> None:
    assert {path.stem for path in SCANS} == {f"sglang-{release}" for release in ENGINES["sglang"].releases}
    assert len(SCANS) == 11


def test_a_release_that_changed_something_disagrees_with_the_data_of_the_one_before() -> None:
    known, found = (
        ENGINES["sglang"].releases,
        {path.stem.removeprefix("sglang-"): scan(path) for path in SCANS},
    )
    differing = {
        release: {one.what for one in compare(found[release], before)} for before, release in pairwise(known)
    }
    of_targets = {
        release: {what for what in whats if what.startswith("target ")}
        for release, whats in differing.items()
    }
    others = {release: whats - of_targets[release] for release, whats in differing.items()}
    assert {release: whats for release, whats in others.items() if whats} == {
        "0.5.17": {
            "norm-before-fc",
            "norm-before-fc-absent",
            "eagle_config.norm_before_fc is read as a switch",
            "norm_before_fc is read as a switch",
        },
    }
    assert "target MiniMaxM3SparseForCausalLM" in of_targets["0.5.16"]
    assert "target GptOssForCausalLM" in of_targets["0.5.17"]
    assert "target MiniMaxM3SparseForConditionalGeneration" in of_targets["0.5.18"]
    assert "target Glm5NextForConditionalGeneration" in of_targets["0.5.20"]
    assert "target Qwen3_5ForCausalLM" in of_targets["0.5.22"]


def test_every_check_is_of_a_fact_and_every_fact_is_shown_or_named_as_not() -> None:
    for plan in PLANS.values():
        ids = {fact.id for fact in plan.engine.facts}
        assert set(plan.checks) | set(plan.in_tables) | set(plan.only_when_run) == ids
        assert not set(plan.in_tables) & set(plan.checks)
        assert {word for watched in plan.watched for word in watched.concerns} <= ids | {
            "llama",
            "mla",
            "qwen3",
        }


def test_a_synthetic_release_like_the_newest_differs_in_nothing(tmp_path: Path) -> None:
    assert compare(extracted(tree(tmp_path)), LIKE) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "differs"),
    [
        ("llama_eagle3", "bias=False)\n    def forward", "bias=True)\n    def forward", {"attention-bias"}),
        (
            "llama_eagle3",
            "self.is_input_layer:\n",
            "self.is_input_layer:\n            q_norm()\n",
            {"qk-norms"},
        ),
        (
            "llama_eagle3",
            "hidden_states = self.hidden_norm(hidden_states, residual)",
            "hidden_states = self.input_layernorm(hidden_states)",
            {"later-input-layernorm"},
        ),
        (
            "llama_eagle3",
            "if layer_ids else 3",
            "if layer_ids else 4",
            {"fc takes three aux states where nothing says how many"},
        ),
        (
            "llama_eagle3",
            'eagle_config.get("norm_before_fc", getattr(config, "norm_before_fc", False))',
            "False",
            {
                "norm-before-fc",
                "norm-before-fc-absent",
                "norm_before_fc is read as a switch",
                "eagle_config.norm_before_fc is read as a switch",
            },
        ),
        (
            "llama_eagle3",
            'getattr(config, "norm_output", False)',
            'getattr(config, "norm_before_residual", False)',
            {"norm-output", "norm_output is read as a switch", "residual"},
        ),
        (
            "llama_eagle3",
            ' or getattr(config, "use_aux_norm", False)',
            "",
            {"use_aux_norm is read as a switch"},
        ),
        ("llama_eagle3", 'Linear(bias=getattr(config, "bias", False))', "Linear()", {"fc-bias"}),
        (
            "llama_eagle3",
            "config.draft_vocab_size is None",
            'getattr(config, "draft_vocab_size", None) is None',
            {"draft-vocab-size", "head-replaced", "head-unfilled"},
        ),
        ("llama_eagle3", "loaded_weight + torch.arange(", "torch.as_tensor(", {"d2t holds differences"}),
        ("llama_eagle3", "if param_name in params_dict:", "if True:", {"unknown-tensor"}),
        ("llama_eagle3", "hidden_states.shape[-1] != embeds.shape[-1]", "True", {"one-state"}),
        ("llama_eagle3", "self.lm_head = self.embed_tokens", "layer_types, mask_hidden", {"parallel"}),
        ("kimi_k25_eagle3", 'raise ValueError("1 layer")', "pass", {"mla-layers"}),
        ("kimi_k25_eagle3", "raise NotImplementedError", "pass", {"mla-quantised"}),
        (
            "kimi_k25_eagle3",
            'bias = getattr(config, "bias", False)',
            'n = getattr(config, "num_aux_hidden_states", None)',
            {"mla-aux-count", "num_aux_hidden_states counts fc's aux states (mla)"},
        ),
        (
            "kimi_k25_eagle3",
            'mapped_name = f"model.{mapped_name}"',
            "pass",
            {"mla-prefix", "both classes put model. before names"},
        ),
        (
            "kimi_k25_eagle3",
            "EntryClass = [Eagle3DeepseekV2ForCausalLM]",
            "EntryClass = [Eagle3MLAForCausalLM]",
            {"architecture Eagle3DeepseekV2ForCausalLM", "architecture Eagle3MLAForCausalLM"},
        ),
        (
            "spec_aux_hidden_state",
            "eagle_config['eagle_aux_hidden_state_layer_ids']",
            "eagle_config['layer_ids']",
            {"ids are read in eagle_config", "ids are read in eagle_config.layer_ids"},
        ),
        ("model_config", "raise ValueError('longer')", "pass", {"positions"}),
        ("llama", "Linear(bias=False)", "Linear(bias=True)", {"mlp-bias"}),
        ("llama", "            raise ValueError\n", "            pass\n", {"hidden-act"}),
        ("qwen3", "[val + 1 for val in layer_ids]", "list(layer_ids)", {"target Qwen3ForCausalLM"}),
        ("qwen3", "num_layers - 3", "num_layers - 1", {"target Qwen3ForCausalLM"}),
        ("qwen3", "if i in self.layers_to_capture", "if i in self.others", {"target Qwen3ForCausalLM"}),
        ("GptOssForCausalLM", "if num_layers in", "if 0 in", {"target GptOssForCausalLM"}),
        (
            "glm4_moe_dsa",
            "class GlmMoeDsaForCausalLM(DeepseekV2ForCausalLM)",
            "class GlmMoeDsaForCausalLM(Module)",
            {"target GlmMoeDsaForCausalLM"},
        ),
    ],
)
def test_one_change_in_the_sources_is_seen_as_that_change(
    file: str, old: str, new: str, differs: set[str], tmp_path: Path
) -> None:
    found = extracted(tree(tmp_path, **{file: (old, new)}))
    assert {one.what for one in compare(found, LIKE)} == differs


FLAGS = LOOP.replace("i in self.layers_to_capture", 'getattr(layer, "_is_layer_to_capture", False)')
SETTER = """
    def set_eagle3_layers_to_capture(self, layers):
        for layer in layers:
            setattr(self.layers[layer], "_is_layer_to_capture", True)
"""
BUILT = """
    def __init__(self, config, decoder_cls=Model):
        self.model = decoder_cls(config)
"""
HANDED = re.sub(r"\.layers_to_capture = (\[.*\])", r".set_eagle3_layers_to_capture(\1)", CAPTURE)


@pytest.mark.parametrize(
    ("decoder", "hook", "captures"),
    [
        (LOOP, CAPTURE, True),
        (FLAGS, CAPTURE, False),
        (FLAGS, CAPTURE + '        mark("_is_layer_to_capture", True)\n', True),
        (FLAGS + SETTER, HANDED, True),
        (FLAGS, HANDED, False),
        (LOOP + SETTER, HANDED, False),
        ("class Model:\n    pass\n", CAPTURE, False),
    ],
)
@pytest.mark.parametrize("is_inherited", [False, True])
def test_states_arrive_only_where_the_decoder_asks_for_what_the_hook_sets(
    decoder: str, hook: str, captures: bool, is_inherited: bool, tmp_path: Path
) -> None:
    text = f"{decoder}\nclass NewForCausalLM(Module):{BUILT}{hook}\nEntryClass = NewForCausalLM\n"
    if is_inherited:  # the subclass has another decoder than the class of which it has the hook
        built = BUILT.replace("Model", "Own").replace(
            "self.model = decoder_cls(config)", "super().__init__()"
        )
        text = (
            f"{FLAGS if decoder is LOOP else LOOP}\n{decoder.replace('Model', 'Own')}\n"
            f"class Base(Module):{BUILT}{hook}\nclass NewForCausalLM(Base):{built}\n"
            "EntryClass = NewForCausalLM\n"
        )
    files = {**TREE, "srt/models/new.py": text}
    found = extracted(write_package(tmp_path / "sglang", files, {}).parent)
    assert found["targets"]["NewForCausalLM"]["captures"] is captures


def test_a_target_that_is_new_or_gone_is_seen(tmp_path: Path) -> None:
    models = tree(tmp_path) / "sglang/srt/models"
    text = (models / "qwen3.py").read_text()
    (models / "qwen3.py").write_text(text.replace("Qwen3ForCausalLM", "Qwen9ForCausalLM"))
    found = {one.what: (one.expected, one.found) for one in compare(extracted(tmp_path), LIKE)}
    rule = "captures, always, (2, n // 2, n - 3)"
    assert found == {
        "target Qwen3ForCausalLM": (rule, "not registered"),
        "target Qwen9ForCausalLM": ("not registered", rule),
    }


def test_what_ids_mean_in_code_of_another_form_is_left_to_decide(tmp_path: Path) -> None:
    scanned = scanner.scan(tree(tmp_path, qwen3=("[val + 1 for val in layer_ids]", "shifted(layer_ids)")))
    assert any(
        "Qwen3ForCausalLM (qwen3.py:7): of no form known here; read it" in text for text in scanned.undecided
    )


def test_a_wheel_of_any_name_is_told_by_its_metadata(tmp_path: Path) -> None:
    wheel = tmp_path / "download.bin"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, text in TREE.items():
            file.writestr(f"sglang/{path}", text)
        file.writestr("sglang-0.5.23.dist-info/METADATA", "Name: sglang\n")
    done = call_scan(wheel)
    assert done.code == 0 and done.out.startswith("sglang 0.5.23 against the data of 0.5.23: 30 facts")
    assert "nothing changed" in done.out and "add to" not in done.out


def test_of_an_unknown_release_the_entry_and_the_cases_to_run_again_are_printed(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        spec_aux_hidden_state=("['eagle_aux_hidden_state_layer_ids']", "['layer_ids']"),
        llama_eagle3=(' or getattr(config, "use_aux_norm", False)', ""),
    )
    (sources / "sglang-0.9.0.post1.dist-info").mkdir()
    done = call_scan(sources)
    text = done.out.split("sglang_releases.json:\n")[1].split("and keep the scan")[0]
    made = json.loads(text)
    assert done.code == 1 and made["range"] == ">=0.9.0.post1" and made["releases"] == ["0.9.0.post1"]
    assert made["runners"] == {"default": {"ids": ["eagle_config.layer_ids"]}}
    assert made["flags"] == {"fc_norm": {"any": ["fc_norm"]}}
    assert "python -m tests.engine.again sglang llama qwen3 mla" in done.out
    assert "srt/models/llama_eagle3.py: LlamaForCausalLMEagle3.load_weights" in done.out


@pytest.mark.parametrize(("engine", "release"), [("vllm", VLLM), ("sglang", SGLANG)])
def test_the_functions_of_the_recorded_release_are_those_of_its_scan(engine: str, release: str) -> None:
    made_with = read("recorded.json")[engine]
    assert f"{engine}=={made_with['release']}" == release
    found = scan(FOLDER / f"{engine}-{made_with['release']}.json")
    assert made_with["functions"] == found["functions"] and found["engine"] == engine
    assert scanner.rerun(found, ()).concerns == ()


def test_another_function_calls_for_the_cases_that_it_concerns() -> None:
    found = scan(FOLDER / "sglang-0.5.22.json")
    again = scanner.rerun(found, ())
    assert again.release == "0.5.23"
    assert "srt/models/llama.py: LlamaMLP.forward" in again.functions
    assert "srt/models/llama_eagle3.py: LlamaForCausalLMEagle3.load_weights" not in again.functions
    other = {
        **found,
        "functions": {**read("recorded.json")["sglang"]["functions"], "srt/models/qwen3.py": {}},
    }
    again = scanner.rerun(other, ())
    assert again.concerns == sglang_sources.AUX
    assert again.functions == ("srt/models/qwen3.py: Qwen3ForCausalLM.set_eagle3_layers_to_capture",)


def test_watched_functions_are_in_the_recorded_releases() -> None:
    for name, plan in PLANS.items():
        functions = read("recorded.json")[name]["functions"]
        for watched in plan.watched:
            names = functions.get(watched.path, {})
            assert names, watched.path
            for part in watched.names:
                assert any(part in (one, one.partition(".")[0]) for one in names), (watched.path, part)


def test_a_package_of_neither_or_of_both_engines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "neither/trl").mkdir(parents=True)
    both = tree(tmp_path / "both")
    (both / "vllm").mkdir()
    (both / "vllm/__init__.py").write_text("")
    for name, words in (("neither", "holds none"), ("both", "holds vllm and sglang")):
        done = call_scan(tmp_path / name)
        assert done.code == 3 and words in done.err
    (tmp_path / "both/sglang/srt/models/llama.py").write_text("def (")
    (both / "vllm/__init__.py").unlink()
    with pytest.raises(UnreadableError, match="not Python"):
        extracted(both)


def test_a_wheel_with_more_than_a_package_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.scan.sources.MOST_OF_ALL", 1000)
    with pytest.raises(UnreadableError, match="too many"):
        extracted(tree(tmp_path))


def test_the_sources_of_every_engine_whose_releases_are_followed_can_be_scanned() -> None:
    # llama.cpp's loader is C++, of which a scan reads nothing
    assert set(PLANS) == set(PACKAGES) == set(ENGINES) - {"llama.cpp"}
