"""Rules on quantised drafters: bad cases, each with exactly its findings."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.judge.rule import AllowTable, Policy
from tests.builders import Stored, call, drafter_folder, drafter_tensors, floats, integers, refusal, target_of
from tests.processor import within
from tests.validation.patches import Patch, add, exact, only, store

MODULES = tuple(
    f"layers.0.{part}_proj"
    for part in ("mlp.down", "mlp.gate", "mlp.up", "self_attn.k", "self_attn.o", "self_attn.q", "self_attn.v")
)
LEFT = ["fc", "lm_head"]
NORMS = ("midlayer.hidden_norm", "*midlayer.input_layernorm", "model.norm", "*norm")
DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic"}
FP8 = {"quantization_config": {**DYNAMIC, "modules_to_not_convert": LEFT}}
ALLOW = {"select": ["EGL8"], "policy": Policy(allow=AllowTable(quantisation=("modelopt*",)))}
FAMILY: dict[str, Any] = {"given": {"select": ["EGL8"]}}


def scaled(*modules: str) -> dict[str, Stored]:
    """These modules in float8 with a scale each."""
    found = {}
    for module in modules:
        _, shape, _ = drafter_tensors()[f"{module}.weight"]
        found[f"{module}.weight"] = ("F8_E4M3", shape, bytes(range(64, 72)) * (shape[0] * shape[1] // 8))
        found[f"{module}.weight_scale"] = floats(module, dtype="F32")
    return found


def modelopt(*left_out: str, algorithm: str | None = "FP8") -> dict[str, Any]:
    """A ModelOpt config."""
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": list(left_out)}
    return {"quantization_config": {"producer": {"name": "modelopt"}, "quantization": quantization}}


def compressed(*left_out: str, targets: tuple[str, ...] = ("Linear",), **changes: Any) -> dict[str, Any]:
    """A compressed-tensors config."""
    groups = {"group_0": {"targets": list(targets), "weights": {"num_bits": 8, "type": "float"}}}
    stated = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": list(left_out)}
    return {"quantization_config": {**stated, **changes}}


def quantised(
    why: str, finds: str, config: dict[str, Any], says: str = "", blind: tuple[str, ...] | None = None
) -> Patch:
    """A drafter whose layer is quantised, with this config, under the rules of the family."""
    return Patch(why, finds, config, says, scaled(*MODULES), given=only("EGL8"), blind=blind)


# a matrix in words whose columns are in groups of 12
IN_WORDS = {
    "quantization_config": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 12,
        "sym": True,
        "desc_act": True,
    }
}


def indexed(group: int) -> dict[str, Stored | None]:
    """down_proj in words of 4 bits, in two groups, whose last column is said to be of this one."""
    module = "layers.0.mlp.down_proj"
    return {
        f"{module}.weight": None,
        f"{module}.qweight": ("I32", (3, 16), bytes(192)),
        f"{module}.qzeros": ("I32", (2, 2), bytes(16)),
        f"{module}.scales": floats(module, 2, 16, dtype="F16"),
        f"{module}.g_idx": integers(*[0, 1] * 11, 0, group, dtype="I32"),
    }


# ModelOpt's exporter writes this beside drafters that it did not quantise
UNQUANTISED = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "exclude_modules": []}}
GOOD = (
    add("a side file that says no", "", {"hf_quant_config.json": json.dumps(UNQUANTISED).encode()}, **FAMILY),
    Patch("a config that says so", "", {"quantization_config": UNQUANTISED}, **FAMILY),
    Patch("a config of ModelOpt that says so", "", {"quantization_config": {"quant_algo": None}}, **FAMILY),
    quantised("ModelOpt", "", modelopt(*LEFT)),
    quantised("ModelOpt with globs and its own prefix", "", modelopt("eagle_module.lm_head", "*fc*")),
    quantised("ModelOpt with norms by name and by glob", "", modelopt(*LEFT, *NORMS)),
    quantised("compressed-tensors", "", compressed("lm_head", "re:.*fc")),
    Patch("by name", "", compressed(targets=(r"re:.*mlp\..*",)), tensors=scaled(*MODULES[:3]), **FAMILY),
    quantised("fp8 by list", "", FP8),
    Patch("GPTQ by activation order", "", IN_WORDS, tensors=indexed(1), **FAMILY),
)
BAD = (
    quantised("scales, not quantised", "EGL801", modelopt(*LEFT, algorithm=None), "no quantization_config"),
    Patch("the target's quantisation config", "EGL801", compressed("lm_head"), "no quantised weight"),
    store("scales and no config", "EGL801", scaled(*MODULES), "no quantization_config", **FAMILY),
    Patch(
        "scales lost",
        " ".join(["EGL802"] * len(MODULES)),
        compressed("lm_head", "re:.*fc"),
        "has no scales",
        {name: stored for name, stored in scaled(*MODULES).items() if not name.endswith("scale")},
        **FAMILY,
    ),
    quantised("scales left out", "EGL802", compressed(*LEFT, "re:.*down_proj"), "the config excludes it"),
    quantised("no scales, and not left out", "EGL802", modelopt("lm_head"), "fc has no scales"),
    quantised("no method", "EGL803", {"quantization_config": {"ignore": LEFT}}, "neither quant_method"),
    quantised("an unknown method", "EGL803", compressed(*LEFT, quant_method="bitpacking"), "'bitpacking'"),
    quantised("an unknown algorithm", "EGL803", modelopt(*LEFT, algorithm="INT3"), "'INT3'"),
    Patch("fc too", "EGL804", modelopt("lm_head"), "fc is quantised", scaled(*MODULES, "fc"), **FAMILY),
    quantised(
        "another's",
        "EGL805",
        compressed(*LEFT, "model.vision_tower.patch"),
        "excludes model.vision_tower.patch from",
    ),
    Patch("denied", "EGL806", compressed(*LEFT), "is not among modelopt*", scaled(*MODULES), given=ALLOW),
    Patch(
        "a group that is none", "EGL807", IN_WORDS, "down_proj.g_idx names group 2 of 2", indexed(2), **FAMILY
    ),
    Patch("a group below 0", "EGL807", IN_WORDS, "names group -1 of 2", indexed(-1), **FAMILY),
    quantised("a list that is none", "", compressed(ignore="lm_head"), blind=("EGL802", "EGL805")),
    quantised("a broken pattern", "", compressed("re:("), blind=("EGL802", "EGL805")),
)

test_quantisation_gives_exactly_its_findings = exact(GOOD + BAD)


INT8_LAYERS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}}},
}


ENDLESS = {
    "a group that repeats": ["re:(.|.)*Z"],
    "a group that repeats behind a blank": ["re:(?x)(.|.) *Z"],
    "a comment between": ["re:(.|.)(?#x)*Z"],
    "many quantifiers": ["re:.*.*.*.*.*Z"],
    "many choices": ["re:" + "a?" * 40 + "Z"],
    "many expressions": [f"re:{number}" for number in range(257)],
    "a number of repetitions": ["re:a{99999999999999999999}"],
    "groups in each other": ["re:" + "(" * 400 + ")" * 400],
    "a long name": ["a" * 2049],
    "many names": ["a"] * 4_097,
}


@pytest.mark.parametrize("place", ["ignore", "targets", "hf_quant_config.json"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_names_that_may_take_hours_to_compare_are_not_read(tmp_path: Path, kind: str, place: str) -> None:
    names = ENDLESS[kind]
    stated = compressed("lm_head", *names) if place == "ignore" else compressed(targets=tuple(names))
    is_beside = place.endswith("json")
    folder = drafter_folder(tmp_path, config={} if is_beside else stated, tensors=scaled(*MODULES))
    if is_beside:
        (folder / place).write_text(json.dumps(stated["quantization_config"]))
    for command in ("inspect", "validate"):
        with within(50):
            done = call(command, folder)
        assert done.code == 3 and "the quantisation config" in done.out + done.err


def test_gptqs_expressions_that_may_take_hours_are_not_compared(tmp_path: Path) -> None:
    table = {"quant_method": "gptq", "bits": 4, "dynamic": {"-:(.|.)*Z": {}}}
    folder = drafter_folder(tmp_path, config={"quantization_config": table}, tensors=scaled(*MODULES))
    with within(50):
        done = call("inspect", folder)
    assert done.code == 3 and "which may take hours to compare" in done.err


USUAL = [
    "re:.*lm_head",
    r"re:^(?!.*mlp)model\.(layers|midlayer)\..*_proj$",
    r"re:layers\.\d+\.x{2}",
    "re:a|b|c",
]


def test_usual_expressions_are_compared(tmp_path: Path) -> None:
    stated = compressed("fc", "lm_head", *USUAL * 20)
    folder = drafter_folder(tmp_path, config=stated, tensors=scaled(*MODULES))
    with within(100):
        assert call("validate", folder).code in (0, 1)


def packed(module: str, bits: int = 8) -> dict[str, Stored | None]:
    """A module packed as compressed-tensors does."""
    _, (rows, columns), _ = drafter_tensors()[f"{module}.weight"]
    width = columns * bits // 32
    return {
        f"{module}.weight": None,
        f"{module}.weight_packed": ("I32", (rows, width), bytes(4 * rows * width)),
        f"{module}.weight_scale": floats(module, rows, 1),
        f"{module}.weight_shape": ("I64", (2,), struct.pack("<2q", rows, columns)),
    }


def outcomes(folder: Path, *engines: str) -> dict[str, str]:
    verdicts = eaglectl.inspect(str(folder), engines=engines).requested
    return {f"{verdict.engine} {verdict.release}": verdict.outcome for verdict in verdicts}


@pytest.mark.parametrize(
    ("module", "method", "engines"),
    [
        ("fc", "fp8", {"vllm==0.11.2": "as trained", "vllm": "as trained", "sglang": "differs"}),
        ("lm_head", "fp8", {"vllm==0.18.0": "fails", "vllm": "fails", "sglang": "differs"}),
        (
            "lm_head",
            "modelopt",
            {"vllm==0.22.0": "fails", "vllm==0.23.0": "as trained", "sglang": "as trained"},
        ),
    ],
)
def test_a_quantised_edge_runs_where_the_release_builds_it_so(
    module: str, method: str, engines: dict[str, str], tmp_path: Path
) -> None:
    ignore = ["*proj", *({"fc", "lm_head"} - {module})]
    table = {**DYNAMIC, "quant_method": method, "quant_algo": "FP8", "ignore": ignore}
    folder = drafter_folder(tmp_path, config={"quantization_config": table}, tensors=scaled(module))
    assert [*outcomes(folder, *engines).values()] == [*engines.values()]


@pytest.mark.parametrize(
    ("module", "bits", "engines"),
    [
        ("fc", 4, {"vllm": "as trained", "sglang": "differs"}),
        ("fc", 8, {"vllm": "as trained", "sglang": "differs"}),
        ("lm_head", 8, {"vllm==0.19.0": "fails", "vllm==0.20.0": "as trained", "sglang==0.5.18": "differs"}),
    ],
)
def test_a_packed_edge_is_there(module: str, bits: int, engines: dict[str, str], tmp_path: Path) -> None:
    weights = {"num_bits": bits, "type": "int"}
    groups = {"group_0": {"targets": [f"re:.*{module}$"], "weights": weights}}
    lists = {"config_groups": groups, "ignore": ["re:.*proj"]}
    config = {"quantization_config": {**INT8_LAYERS, **lists}}
    folder = drafter_folder(tmp_path, config=config, tensors=packed(module, bits))
    drafter = eaglectl.inspect(str(folder)).drafter
    assert drafter.dims == eaglectl.inspect(drafter_folder(tmp_path, "plain")).drafter.dims
    assert [*outcomes(folder, *engines).values()] == [*engines.values()]
    report = eaglectl.validate(folder)
    assert not any("missing" in finding.match.message for finding in report.findings)


@pytest.mark.parametrize(
    ("ignore", "outcome"),
    [
        (["fc", "lm_head"], "fails"),
        (["*fc", "lm_head"], "fails"),
        (["model.fc", "lm_head"], "as trained"),
        (["re:.*fc", "lm_head"], "as trained"),
    ],
)
def test_names_that_are_ignored_are_compared_as_vllm_does(
    ignore: list[str], outcome: str, tmp_path: Path
) -> None:
    tensors = {name: stored for module in MODULES for name, stored in packed(module).items()}
    config = {"quantization_config": {**INT8_LAYERS, "ignore": ignore}}
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    assert outcomes(folder, "vllm==0.32.0") == {"vllm 0.32.0": outcome}
    if ignore[0] == "fc":
        out = tmp_path / "out"
        assert call("convert", folder, "--for", "vllm", "-o", out).code == 0
        table = json.loads((out / "config.json").read_text())["quantization_config"]
        assert table["ignore"] == ["fc", "lm_head", "model.fc"]
        assert outcomes(out, "vllm==0.32.0") == {"vllm 0.32.0": "as trained"}


@pytest.mark.parametrize(
    ("config", "dtype", "words"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "U8", "packed by bitsandbytes"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "U32", "packed by MLX"),
    ],
)
def test_a_quantiser_whose_weights_have_no_shape_is_named(
    config: dict[str, Any], dtype: str, words: str, tmp_path: Path
) -> None:
    module = "layers.0.self_attn.q_proj"
    weights = {f"{module}.weight": (dtype, (8, 4), bytes(8 * 4 * (4 if dtype == "U32" else 1)))}
    folder = drafter_folder(tmp_path, config=config, tensors=weights)
    assert words in refusal(1, "inspect", folder)


def test_the_targets_bitsandbytes_beside_plain_weights_is_left_out(tmp_path: Path) -> None:
    table = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    folder, out = drafter_folder(tmp_path, config={"quantization_config": table}), tmp_path / "out"
    assert outcomes(folder, "vllm==0.32.0") == {"vllm 0.32.0": "differs"}
    assert call("convert", folder, "--for", "vllm", "-o", out).code == 0
    assert "quantization_config" not in json.loads((out / "config.json").read_text())


def test_what_auto_round_quantises_is_not_taken_from_lists_of_other_methods(tmp_path: Path) -> None:
    table = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
    table |= {"block_name_to_quantize": "model.layers", "packing_format": "auto_round:auto_gptq"}
    folder = drafter_folder(tmp_path, config={"quantization_config": table}, tensors=indexed(1))
    assert outcomes(folder, "vllm==0.32.0") == {"vllm 0.32.0": "unknown"}
    assert "EGL802" not in [one.rule.id for one in eaglectl.validate(folder, select=["EGL8"]).findings]


@pytest.mark.parametrize(
    ("part", "quantiser"),
    [("W_q", "HQQ"), ("q_weight", "EXL2"), ("codebooks", "AQLM"), ("weight._data", "quanto")],
)
def test_a_quantiser_whose_weights_have_other_names_is_named(
    part: str, quantiser: str, tmp_path: Path
) -> None:
    module = "layers.0.self_attn.q_proj"
    tensors = {f"{module}.weight": None, f"{module}.{part}": ("U8", (8, 4), bytes(32))}
    text = refusal(1, "inspect", drafter_folder(tmp_path, tensors=tensors))
    assert f"packed by {quantiser}, and have other names" in text


@pytest.mark.parametrize(
    ("table", "engines"),
    [
        # each engine has its own methods
        ({"quant_method": "w8a8_int8"}, {"vllm==0.32.0": "fails", "sglang==0.5.23": "unknown"}),
        ({"quant_method": "quark"}, {"vllm==0.32.0": "unknown", "sglang==0.5.23": "unknown"}),
        ({"quant_method": "experts_int8"}, {"vllm==0.32.0": "unknown", "sglang==0.5.23": "fails"}),
        ({"quant_method": "fbgemm_fp8"}, {"vllm==0.32.0": "unknown", "sglang==0.5.23": "unknown"}),
        ({"quant_method": "bitnet"}, {"vllm==0.32.0": "fails", "sglang==0.5.23": "fails"}),
        # algorithms of ModelOpt that SGLang reads as no method of ModelOpt
        (
            {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
            {"vllm==0.32.0": "as trained", "sglang==0.5.23": "unknown"},
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "MXFP8"},
            {"vllm==0.32.0": "as trained", "sglang==0.5.23": "as trained"},
        ),
        # vLLM stops at mixed precision that names no module (run)
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            {"vllm==0.32.0": "fails", "sglang==0.5.23": "differs"},
        ),
    ],
)
def test_a_method_is_that_of_the_engine(
    table: dict[str, str], engines: dict[str, str], tmp_path: Path
) -> None:
    config = {"quantization_config": {**table, "ignore": LEFT}}
    folder = drafter_folder(tmp_path, config=config, tensors=scaled(*MODULES))
    target = target_of(tmp_path / "target", num_hidden_layers=8)
    judged = eaglectl.inspect(str(folder), target=str(target), engines=[*engines]).requested
    assert [verdict.outcome for verdict in judged] == [*engines.values()]
