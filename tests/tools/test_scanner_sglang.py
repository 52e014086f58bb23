"""The scanner of SGLang's sources reproduces the data of real releases, and sees what changes."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from eaglectl.engines.data import read
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.targets import target_class, target_classes
from tests.builders import write_package
from tests.tools.trees import call_scan, scan
from tools.scan import scanner
from tools.scan.scanner import PLANS, compare, extracted
from tools.scan.sources import PACKAGES

SCANS = Path(__file__).parent / "scans"
LIKE = "0.5.23"  # the release that TREE mirrors
CAPTURE = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            num_layers = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        else:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
"""
OTHERWISE = """        else:
            self.model.layers_to_capture = list(layer_ids)
"""
FIRST_IS_ONE = CAPTURE.replace("else:", "elif layer_ids[0] == 1:") + OTHERWISE
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


@pytest.mark.parametrize("release", ENGINES["sglang"].releases)
def test_what_was_found_in_a_release_is_what_the_data_says_of_it(release: str) -> None:
    assert compare(scan(SCANS / f"sglang-{release}.json"), release) == []


def test_every_check_is_of_a_fact_and_every_fact_is_shown_or_named_as_not() -> None:
    for plan in PLANS.values():
        ids = {fact.id for fact in plan.engine.facts}
        assert set(plan.checks) | set(plan.in_tables) | set(plan.only_when_run) == ids
        assert not set(plan.in_tables) & set(plan.checks)
        words = {word for watched in plan.watched for word in watched.concerns}
        assert words <= ids | {"llama", "mla", "qwen3"}


def test_a_synthetic_release_like_the_newest_differs_in_nothing(tmp_path: Path) -> None:
    assert compare(extracted(tree(tmp_path)), LIKE) == []


THREE = "fc takes three aux states where nothing says how many"
UNREAD = ("norm_before_fc is read as a switch", "eagle_config.norm_before_fc is read as a switch")
NESTED = 'eagle_config.get("norm_before_fc", getattr(config, "norm_before_fc", False))'
HIDDEN_NORM = "hidden_states = self.hidden_norm(hidden_states, residual)"
INPUT_NORM = "hidden_states = self.input_layernorm(hidden_states)"
Q_NORM = "self.is_input_layer:\n            q_norm()\n"
# a file of TREE, a text of it and what takes its place, and what then differs
CHANGES = (
    ("llama_eagle3", "bias=False)\n    def forward", "bias=True)\n    def forward", "attention-bias"),
    ("llama_eagle3", "self.is_input_layer:\n", Q_NORM, "qk-norms"),
    ("llama_eagle3", HIDDEN_NORM, INPUT_NORM, "later-input-layernorm"),
    ("llama_eagle3", "if layer_ids else 3", "if layer_ids else 4", THREE),
    ("llama_eagle3", NESTED, "False", "norm-before-fc", "norm-before-fc-absent", *UNREAD),
    ("llama_eagle3", 'Linear(bias=getattr(config, "bias", False))', "Linear()", "fc-bias"),
    ("llama_eagle3", "loaded_weight + torch.arange(", "torch.as_tensor(", "d2t holds differences"),
    ("llama_eagle3", "if param_name in params_dict:", "if True:", "unknown-tensor"),
    ("llama_eagle3", "hidden_states.shape[-1] != embeds.shape[-1]", "True", "one-state"),
    ("llama_eagle3", "self.lm_head = self.embed_tokens", "layer_types, mask_hidden", "parallel"),
    ("kimi_k25_eagle3", 'raise ValueError("1 layer")', "pass", "mla-layers"),
    ("kimi_k25_eagle3", "raise NotImplementedError", "pass", "mla-quantised"),
    ("model_config", "raise ValueError('longer')", "pass", "positions"),
    ("llama", "Linear(bias=False)", "Linear(bias=True)", "mlp-bias"),
    ("llama", "            raise ValueError\n", "            pass\n", "hidden-act"),
    ("qwen3", "[val + 1 for val in layer_ids]", "list(layer_ids)", "target Qwen3ForCausalLM"),
    ("qwen3", "num_layers - 3", "num_layers - 1", "target Qwen3ForCausalLM"),
    ("qwen3", "if i in self.layers_to_capture", "if i in self.others", "target Qwen3ForCausalLM"),
    ("GptOssForCausalLM", "if num_layers in", "if 0 in", "target GptOssForCausalLM"),
)


@pytest.mark.fast(5)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} {change[2].strip()}")
def test_one_change_in_the_sources_is_seen_as_that_change(change: Sequence[str], tmp_path: Path) -> None:
    file, old, new, *differs = change
    found = extracted(tree(tmp_path, **{file: (old, new)}))
    assert {one.what for one in compare(found, LIKE)} == set(differs)


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


@pytest.mark.fast(5)
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


def test_what_ids_mean_in_code_of_another_form_is_left_to_decide(tmp_path: Path) -> None:
    scanned = scanner.scan(tree(tmp_path, qwen3=("[val + 1 for val in layer_ids]", "shifted(layer_ids)")))
    said = "Qwen3ForCausalLM (qwen3.py:7): of no form known here; read it"
    assert any(said in text for text in scanned.undecided)


def test_a_wheel_of_any_name_is_told_by_its_metadata(tmp_path: Path) -> None:
    wheel = tmp_path / "download.bin"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, text in TREE.items():
            file.writestr(f"sglang/{path}", text)
        file.writestr("sglang-0.5.23.dist-info/METADATA", "Name: sglang\n")
    done = call_scan(wheel)
    assert done.code == 0 and done.out.startswith("sglang 0.5.23 against the data of 0.5.23: 30 facts")
    assert "nothing changed" in done.out and "add to" not in done.out


def test_watched_functions_are_in_the_recorded_releases() -> None:
    for name, plan in PLANS.items():
        functions = read("recorded.json")[name]["functions"]
        for watched in plan.watched:
            names = functions.get(watched.path, {})
            assert names, watched.path
            for part in watched.names:
                assert any(part in (one, one.partition(".")[0]) for one in names), (watched.path, part)


def test_the_sources_of_every_engine_whose_releases_are_followed_can_be_scanned() -> None:
    # llama.cpp's loader is C++, of which a scan reads nothing
    assert set(PLANS) == set(PACKAGES) == set(ENGINES) - {"llama.cpp"}
