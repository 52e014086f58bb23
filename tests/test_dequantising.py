"""Quantised fc, lm_head and embeddings are written in plain numbers where an engine builds them so."""

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import eaglectl
from eaglectl.conversion import dequantising, rewriting
from eaglectl.errors import RefusedError
from eaglectl.reference.quantised import dequantised_rows
from tests.builders import Stored, call, drafter_folder, drafter_tensors, floats, read_safetensors, refusal
from tests.validation.test_quantisation import DYNAMIC, MODULES, packed, scaled

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


def e4m3(code: int) -> float:
    """The number of a byte of F8_E4M3."""
    sign, exponent, fraction = -1.0 if code >> 7 else 1.0, code >> 3 & 15, code & 7
    size = math.ldexp(1 + fraction / 8, exponent - 7) if exponent else math.ldexp(fraction / 8, -6)
    return sign * size


def bfloat16(raw: bytes) -> list[float]:
    """The numbers of bytes of BF16."""
    return [struct.unpack("<f", bytes(2) + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]


def floats32(*values: float) -> Stored:
    return "F32", (len(values),), struct.pack(f"<{len(values)}f", *values)


def blocks(module: str, block: int) -> tuple[dict[str, Stored | None], list[float]]:
    """A module in FP8 with a scale for each square block, as DeepSeek's and Qwen's FP8, and its numbers."""
    _, (rows, columns), _ = drafter_tensors()[f"{module}.weight"]
    codes = [(7 * i + 11) % 120 + (i % 2 << 7) for i in range(rows * columns)]
    grid = -(-rows // block), -(-columns // block)
    scales = [struct.unpack("<f", struct.pack("<f", 1 / (3 + i)))[0] for i in range(grid[0] * grid[1])]
    numbers = [
        e4m3(codes[r * columns + c]) * scales[r // block * grid[1] + c // block]
        for r in range(rows)
        for c in range(columns)
    ]
    stored: dict[str, Stored | None] = {
        f"{module}.weight": ("F8_E4M3", (rows, columns), bytes(codes)),
        f"{module}.weight_scale_inv": ("F32", grid, floats32(*scales)[2]),
    }
    return stored, numbers


def nvfp4(module: str) -> tuple[dict[str, Stored | None], list[float]]:
    """A module in NVFP4 as ModelOpt writes it (16 numbers a scale, two a byte), and its numbers."""
    _, (rows, columns), _ = drafter_tensors()[f"{module}.weight"]
    raw = bytes((37 * i + 5) % 256 for i in range(rows * columns // 2))
    codes = [code for byte in raw for code in (byte & 15, byte >> 4)]
    scales = bytes(40 + i % 30 for i in range(rows * columns // 16))
    whole = struct.unpack("<f", struct.pack("<f", 0.013))[0]
    numbers = [
        (-1 if code >> 3 else 1) * E2M1[code & 7] * e4m3(scales[i // 16]) * whole
        for i, code in enumerate(codes)
    ]
    stored: dict[str, Stored | None] = {
        f"{module}.weight": ("U8", (rows, columns // 2), raw),
        f"{module}.weight_scale": ("F8_E4M3", (rows, columns // 16), scales),
        f"{module}.weight_scale_2": ("F32", (), struct.pack("<f", whole)),
        f"{module}.input_scale": floats(module, dtype="F32"),
    }
    return stored, numbers


def int8(module: str) -> tuple[dict[str, Stored | None], list[float]]:
    """A module in INT8 with a scale for each row, as llm-compressor's W8A8, and its numbers."""
    _, (rows, columns), _ = drafter_tensors()[f"{module}.weight"]
    values = [(5 * i + 3) % 255 - 127 for i in range(rows * columns)]
    scales = [struct.unpack("<f", struct.pack("<f", 1 / (7 + i)))[0] for i in range(rows)]
    stored: dict[str, Stored | None] = {
        f"{module}.weight": ("I8", (rows, columns), struct.pack(f"{rows * columns}b", *values)),
        f"{module}.weight_scale": ("F32", (rows, 1), floats32(*scales)[2]),
    }
    return stored, [value * scales[i // columns] for i, value in enumerate(values)]


def words(numbers: list[list[int]], order: tuple[int, ...] = (), bits: int = 4) -> bytes:
    """Rows of numbers, as many in a word as fit; `order` has the number of each place in a word."""
    order = order or tuple(range(32 // bits))
    return b"".join(
        struct.pack(
            "<I", sum(number << bits * order.index(i) for i, number in enumerate(row[at : at + len(order)]))
        )
        for row in numbers
        for at in range(0, len(row), len(order))
    )


def four_bits(
    module: str, groups: int, seed: int
) -> tuple[list[list[int]], list[list[int]], list[list[float]]]:
    """Numbers [in, out], zeros and scales (of F16) [groups, out] for a module."""
    _, (rows, columns), _ = drafter_tensors()[f"{module}.weight"]
    numbers = [[(seed * i + 3 * j + i * j) % 16 for j in range(rows)] for i in range(columns)]
    zeros = [[(5 * i + j) % 15 for j in range(rows)] for i in range(groups)]
    scales = [[(1 + i + j % 7) / 64 for j in range(rows)] for i in range(groups)]
    return numbers, zeros, scales


def multiplied(
    numbers: list[list[int]], zeros: list[list[int]], scales: list[list[float]], group: list[int], less: int
) -> list[float]:
    """The weight [out, in], flat: `group` is that of each input."""
    return [
        (row[out] - zeros[group[place]][out] - less) * scales[group[place]][out]
        for out in range(len(numbers[0]))
        for place, row in enumerate(numbers)
    ]


def half(scales: list[list[float]]) -> Stored:
    flat = [number for row in scales for number in row]
    return "F16", (len(scales), len(scales[0])), struct.pack(f"<{len(flat)}e", *flat)


def gptq(module: str, less: int = 1) -> tuple[dict[str, Stored | None], list[float]]:
    """A module as AutoGPTQ and GPTQModel pack it, with inputs in the order of their activations."""
    numbers, zeros, scales = four_bits(module, 4, 7)
    inputs, outputs = len(numbers), len(numbers[0])
    group = [(3 * place) % 4 for place in range(inputs)]
    columns = [[row[out] for row in numbers] for out in range(outputs)]
    by_column = words(columns)  # [out, in / 8], to be turned
    count = inputs // 8
    turned = b"".join(
        by_column[4 * (out * count + at) : 4 * (out * count + at) + 4]
        for at in range(count)
        for out in range(outputs)
    )
    stored: dict[str, Stored | None] = {
        f"{module}.weight": None,
        f"{module}.qweight": ("I32", (count, outputs), turned),
        f"{module}.qzeros": ("I32", (4, outputs // 8), words(zeros)),
        f"{module}.scales": half(scales),
        f"{module}.g_idx": ("I32", (inputs,), struct.pack(f"<{inputs}i", *group)),
    }
    return stored, multiplied(numbers, zeros, scales, group, less)


def awq(module: str) -> tuple[dict[str, Stored | None], list[float]]:
    """A module as AutoAWQ packs it: a word has columns 0, 2, 4, 6, 1, 3, 5, 7."""
    numbers, zeros, scales = four_bits(module, 4, 5)
    inputs, outputs, order = len(numbers), len(numbers[0]), (0, 2, 4, 6, 1, 3, 5, 7)
    stored: dict[str, Stored | None] = {
        f"{module}.weight": None,
        f"{module}.qweight": ("I32", (inputs, outputs // 8), words(numbers, order)),
        f"{module}.qzeros": ("I32", (4, outputs // 8), words(zeros, order)),
        f"{module}.scales": half(scales),
    }
    group = [place // (inputs // 4) for place in range(inputs)]
    return stored, multiplied(numbers, zeros, scales, group, 0)


def asymmetric(module: str, bits: int = 4, groups: int = 3) -> tuple[dict[str, Stored | None], list[float]]:
    """A module in a few bits as compressed-tensors packs it: zero points are packed along the rows."""
    _, (rows, columns), _ = drafter_tensors()[f"{module}.weight"]
    numbers = [[(7 * i + 3 * j + i * j) % (1 << bits) for j in range(columns)] for i in range(rows)]
    zeros = [[(5 * i + 9 * j) % (1 << bits) for i in range(rows)] for j in range(groups)]
    scales = [struct.unpack("<f", struct.pack("<f", 1 / (3 + i)))[0] for i in range(rows * groups)]
    turned = words(zeros, bits=bits)  # [groups, rows / those of a word], to be turned
    count = math.ceil(rows / (32 // bits))
    places = [4 * (group * count + at) for at in range(count) for group in range(groups)]
    stored: dict[str, Stored | None] = {
        f"{module}.weight": None,
        f"{module}.weight_packed": (
            *("I32", (rows, math.ceil(columns / (32 // bits)))),
            words(numbers, bits=bits),
        ),
        f"{module}.weight_scale": ("F32", (rows, groups), floats32(*scales)[2]),
        f"{module}.weight_zero_point": (
            *("I32", (count, groups)),
            b"".join(turned[place : place + 4] for place in places),
        ),
        f"{module}.weight_shape": ("I64", (2,), struct.pack("<2q", rows, columns)),
    }
    size = columns // groups
    return stored, [
        (numbers[i][j] - zeros[j // size][i]) * scales[i * groups + j // size]
        for i in range(rows)
        for j in range(columns)
    ]


def asymmetric_int8(module: str) -> tuple[dict[str, Stored | None], list[float]]:
    """A module in INT8 with a zero point for each row, and its numbers."""
    stored, numbers = int8(module)
    rows, columns = (stored[f"{module}.weight"] or ("", (), b""))[1]
    zeros = [(11 * i) % 40 - 20 for i in range(rows)]
    stored[f"{module}.weight_zero_point"] = ("I8", (rows, 1), struct.pack(f"{rows}b", *zeros))
    scales = [struct.unpack("<f", struct.pack("<f", 1 / (7 + i)))[0] for i in range(rows)]
    return stored, [number - zeros[i // columns] * scales[i // columns] for i, number in enumerate(numbers)]


def is_nearest(written: float, exact: float) -> bool:
    """Whether a number of BF16 is at most half a unit in the last place from the exact one."""
    return abs(written - exact) <= math.ldexp(1.0, math.frexp(exact)[1] - 9) if exact else written == 0


def of_layers(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The projections of the layer: "q_proj.weight_scale" -> what is stored."""
    return {".".join(name.split(".")[-2:]): stored for name, stored in tensors.items() if "_proj" in name}


def outcomes(folder: Path, *engines: str) -> list[str]:
    return [verdict.outcome for verdict in eaglectl.inspect(str(folder), engines=engines).requested]


def asymmetric_table(bits: int) -> dict[str, object]:
    weights = {"num_bits": bits, "symmetric": False, "group_size": 16}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


INT8_TABLE = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
    "ignore": ["lm_head", "re:.*fc"],
}
CASES = {
    "4 bits with zero points": (
        lambda: asymmetric("fc"),
        "fc",
        asymmetric_table(4),
        ("sglang", "differs"),
        ("ignore", ["lm_head", "fc", "model.fc"]),
    ),
    "INT8 with zero points": (
        lambda: asymmetric_int8("embed_tokens"),
        "embed_tokens",
        INT8_TABLE,
        ("vllm", "fails"),
        ("ignore", ["lm_head", "re:.*fc", "embed_tokens", "model.embed_tokens"]),
    ),
    # the method, the module, what an engine does with it, and the list of excluded modules
    "FP8 in blocks": (
        lambda: blocks("lm_head", 16),
        "lm_head",
        {**DYNAMIC, "weight_block_size": [16, 16], "modules_to_not_convert": ["model.fc", "fc"]},
        ("vllm", "fails"),
        ("modules_to_not_convert", ["model.fc", "fc", "lm_head", "model.lm_head"]),
    ),
    "NVFP4": (
        lambda: nvfp4("fc"),
        "fc",
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        ("sglang", "differs"),
        ("ignore", ["lm_head", "fc", "model.fc"]),
    ),
    "INT8": (
        lambda: int8("embed_tokens"),
        "embed_tokens",
        INT8_TABLE,
        ("vllm", "fails"),
        ("ignore", ["lm_head", "re:.*fc", "embed_tokens", "model.embed_tokens"]),
    ),
}
GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": True}
AWQ_CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True}
PACKED = {
    "GPTQ": (lambda: gptq("fc"), GPTQ_CONFIG),
    "GPTQ, second format": (lambda: gptq("fc", 0), {**GPTQ_CONFIG, "checkpoint_format": "gptq_v2"}),
    "AWQ": (lambda: awq("fc"), AWQ_CONFIG),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_edge_of_gptq_or_awq_is_written_in_plain_numbers_rounded_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, config = PACKED[name]
    stored, numbers = make()
    folder = drafter_folder(tmp_path, config={"quantization_config": config}, tensors=stored)
    assert (
        eaglectl.inspect(str(folder)).drafter.dims
        == eaglectl.inspect(drafter_folder(tmp_path, "plain")).drafter.dims
    )
    assert outcomes(folder, "sglang") == ["fails"]  # no kernel for groups of 16 in bfloat16 either
    monkeypatch.setattr(rewriting, "BLOCK", 3 * 16)  # blocks of rows that are no whole words
    assert call("convert", folder, "--for", "sglang", "-o", tmp_path / "out").code == 0
    written = read_safetensors(tmp_path / "out/model.safetensors")
    dtype, shape, raw = written["fc.weight"]
    assert (dtype, shape) == ("BF16", drafter_tensors()["fc.weight"][1])
    assert [pair for pair in zip(bfloat16(raw), numbers, strict=True) if not is_nearest(*pair)] == []
    assert not [part for part in written if part.startswith("fc.") and part != "fc.weight"]
    # nothing quantised is left
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    assert outcomes(tmp_path / "out", "sglang", "vllm") == ["as trained", "as trained"]


@pytest.mark.parametrize("name", CASES)
def test_a_quantised_edge_is_written_in_plain_numbers_rounded_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, module, config, (engine, before), (key, names) = CASES[name]
    stored, numbers = make()
    tensors = {**scaled(*MODULES), **stored}
    folder = drafter_folder(tmp_path, config={"quantization_config": config}, tensors=tensors)
    assert outcomes(folder, engine) == [before]
    monkeypatch.setattr(rewriting, "BLOCK", 3 * 16)  # blocks of rows that are no multiple of a scale's
    out = tmp_path / "out"
    assert call("convert", folder, "--for", engine, "-o", out).code == 0
    assert outcomes(out, engine) == ["as trained"]
    written = read_safetensors(out / "model.safetensors")
    dtype, shape, raw = written[f"{module}.weight"]
    assert (dtype, shape) == ("BF16", drafter_tensors()[f"{module}.weight"][1])
    wrong = [pair for pair in zip(bfloat16(raw), numbers, strict=True) if not is_nearest(*pair)]
    assert wrong == []
    assert not [part for part in written if part.startswith(f"{module}.") and part != f"{module}.weight"]
    assert json.loads((out / "config.json").read_text())["quantization_config"][key] == names
    assert of_layers(written) == of_layers(scaled(*MODULES))


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_exact_before_they_are_rounded(name: str) -> None:
    make, module, *_ = CASES[name]
    stored, numbers = make()
    parts = {part.rpartition(".")[2]: value for part, value in stored.items() if value is not None}
    assert dequantised_rows(module, parts).flatten().tolist() == numbers


@pytest.mark.parametrize(
    ("size", "count", "rows"),
    [(320, 3, 128), (384, 3, 128), (2880, 45, 64), (2880, 18, 160), (96, 3, 32), (64, 64, 1), (100, 1, 128)],
)
def test_a_scale_is_of_the_block_that_gives_their_number(size: int, count: int, rows: int) -> None:
    from eaglectl.reference.quantised import block_size

    assert block_size(size, count) == rows


def test_a_dry_run_says_what_is_dequantised_and_why(tmp_path: Path) -> None:
    config = {"quantization_config": {**MODELOPT, "ignore": ["lm_head"]}}
    tensors = {**scaled(*MODULES, "fc"), "fc.input_scale": floats("fc", dtype="F32")}
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    text = call("convert", folder, "--for", "sglang", "--dry-run", "-o", tmp_path / "out").out
    assert "fc is written dequantised, as BF16: SGLang 0.5.23 builds it without quantisation" in text
    assert "fc.input_scale of a module that is dequantised" in " ".join(text.split())
    assert not (tmp_path / "out").exists()
    unchanged = call("convert", folder, "--for", "vllm", "--dry-run", "-o", tmp_path / "out").out
    assert "dequantised" not in unchanged


def test_the_release_that_is_named_decides(tmp_path: Path) -> None:
    groups = {"group_0": {"targets": ["lm_head"], "weights": {"num_bits": 8, "type": "int"}}}
    table = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = {"quantization_config": {**table, "ignore": ["re:.*proj", "re:.*fc"]}}
    folder = drafter_folder(tmp_path, config=config, tensors=packed("lm_head"))
    out = tmp_path / "out"
    assert outcomes(folder, "vllm==0.19.0", "vllm==0.21.0") == ["fails", "as trained"]
    assert call("convert", folder, "--engine", "vllm==0.19.0", "-o", out).code == 0
    assert outcomes(out, "vllm==0.19.0", "vllm==0.32.0") == ["as trained", "as trained"]
    # nothing quantised is left, so nothing may say that something is
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    unchanged = tmp_path / "unchanged"
    assert call("convert", folder, "--engine", "vllm==0.21.0", "-o", unchanged).code == 0
    assert "lm_head.weight_packed" in read_safetensors(unchanged / "model.safetensors")


def test_a_packed_head_is_plain_for_a_runner_that_compares_heads(tmp_path: Path) -> None:
    groups = {"group_0": {"targets": ["lm_head"], "weights": {"num_bits": 8, "type": "int"}}}
    table = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = {"quantization_config": {**table, "ignore": ["re:.*proj", "re:.*fc"]}}
    folder, out = drafter_folder(tmp_path, config=config, tensors=packed("lm_head")), tmp_path / "out"
    assert outcomes(folder, "vllm==0.32.0") == ["fails"]
    done = call("convert", "-v", folder, "--engine", "vllm==0.32.0", "-o", out)
    assert done.code == 0 and "stops at a packed one with its V2 runner" in " ".join(done.out.split())
    assert outcomes(out, "vllm==0.32.0") == ["as trained"]


def test_the_command_that_validate_prints_repairs_it(tmp_path: Path) -> None:
    groups = {"group_0": {"targets": ["lm_head"], "weights": {"num_bits": 8, "type": "int"}}}
    table = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = {"quantization_config": {**table, "ignore": ["re:.*proj", "re:.*fc"]}}
    folder = drafter_folder(tmp_path, config=config, tensors=packed("lm_head"))
    report = eaglectl.validate(folder, engines=("vllm==0.18.0",))
    repair = next(finding.repair for finding in report.findings if finding.rule.id == "EGL1084")
    assert [offered.verb for offered in repair.commands] == ["convert"]
    assert "--engine=vllm==0.18.0" in call("validate", "-v", folder, "--engine", "vllm==0.18.0").out


def test_no_conversion_is_offered_after_which_the_release_has_the_same_fault(tmp_path: Path) -> None:
    groups = {"group_0": {"targets": ["lm_head"], "weights": {"num_bits": 8, "type": "int"}}}
    table = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = {"quantization_config": {**table, "ignore": ["re:.*proj", "re:.*fc"]}}
    # one that says how many columns its words have, and one that does not, which is not multiplied out
    for name, lost in (("whole", {}), ("lost", {"lm_head.weight_shape": None})):
        folder = drafter_folder(tmp_path, name, config=config, tensors={**packed("lm_head"), **lost})
        report = eaglectl.validate(folder, engines=("vllm==0.32.0",))
        (repair,) = [finding.repair for finding in report.findings if finding.rule.id == "EGL2001"]
        assert len(repair.conversions) == (0 if lost else 1)
        assert "start vLLM with VLLM_USE_V2_MODEL_RUNNER=0" in repair.text
        assert ("no conversion changes that vLLM 0.32.0" in repair.text) == bool(lost)


def test_what_a_side_file_states_is_written_into_the_config(tmp_path: Path) -> None:
    lists = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    folder = drafter_folder(tmp_path, tensors=scaled(*MODULES, "fc"))
    side = {"producer": {"name": "modelopt", "version": "0.29"}, "quantization": lists}
    (folder / "hf_quant_config.json").write_text(json.dumps(side))
    out = tmp_path / "out"
    assert call("convert", folder, "--for", "sglang", "-o", out).code == 0
    assert not (out / "hf_quant_config.json").exists()
    table = json.loads((out / "config.json").read_text())["quantization_config"]
    assert table["quantization"]["exclude_modules"] == ["lm_head", "fc", "model.fc"]
    assert outcomes(out, "sglang", "vllm") == ["as trained", "as trained"]


def test_a_method_that_the_reference_does_not_read_is_refused_with_an_engine_that_does(
    tmp_path: Path,
) -> None:
    columns = drafter_tensors()["fc.weight"][1][1]
    reordered = {**packed("fc", 4), "fc.weight_g_idx": ("I32", (columns,), bytes(4 * columns))}
    groups = {"group_0": {"targets": ["re:.*fc"], "weights": {"num_bits": 4, "type": "int"}}}
    table = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = {"quantization_config": {**table, "ignore": ["re:.*proj", "lm_head"]}}
    folder = drafter_folder(tmp_path, config=config, tensors=reordered)
    text = refusal(1, "convert", folder, "--for", "sglang", "-o", tmp_path / "out")
    assert "builds fc without quantisation" in text
    assert "--for vllm" in text or "no known release" in text


@pytest.mark.parametrize("bits", [3, 5])
def test_a_packed_fc_whose_shape_its_bits_do_not_give_is_named(bits: int, tmp_path: Path) -> None:
    config = {"quantization_config": asymmetric_table(bits)}
    folder = drafter_folder(
        tmp_path, config=config, tensors={**scaled(*MODULES), **asymmetric("fc", bits)[0]}
    )
    assert "fc is packed, and config.json does not state" in refusal(1, "inspect", folder)


@pytest.mark.parametrize("bits", [3, 4])
def test_zero_points_are_those_of_the_groups(bits: int) -> None:
    stored, numbers = asymmetric("fc", bits)
    parts = {part.rpartition(".")[2]: value for part, value in stored.items() if value is not None}
    assert dequantised_rows("fc", parts).flatten().tolist() == numbers


@pytest.mark.parametrize(
    ("columns", "words", "bits"), [(96, 10, 3), (96, 12, 4), (96, 24, 8), (3, 1, 8), (4096, 820, 6)]
)
def test_the_bits_of_numbers_follow_from_their_words(columns: int, words: int, bits: int) -> None:
    from eaglectl.reference.quantised import number_bits

    assert number_bits(columns, words) == bits


def test_three_bits_that_go_over_the_ends_of_words_are_refused() -> None:
    parts = {
        "qweight": ("I32", (12, 64), bytes(4 * 12 * 64)),
        "qzeros": ("I32", (4, 6), bytes(4 * 4 * 6)),
        "scales": ("F16", (4, 64), bytes(2 * 4 * 64)),
    }
    with pytest.raises(eaglectl.RefusedError, match=r"fc\.qzeros: the reference runs"):
        dequantised_rows("fc", parts, {"quant_method": "gptq", "bits": 3})


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16}
# parts that do not fit the others: how the module is made, and what takes a part's place
MISFITS: dict[str, tuple[Callable[[str], tuple[dict[str, Stored | None], list[float]]], str, Stored]] = {
    "a group that is not there": (gptq, "g_idx", ("I32", (48,), struct.pack("<48i", *[99] * 48))),
    "a group below 0": (gptq, "g_idx", ("I32", (48,), bytes([255]) * 4 * 48)),
    "few groups": (gptq, "g_idx", ("I32", (3,), bytes(12))),
    "few zeros": (gptq, "qzeros", ("I32", (1, 2), bytes(8))),
    "zeros without an axis": (awq, "qzeros", ("I32", (), bytes(4))),
    "no scale": (int8, "weight_scale", ("F32", (0,), b"")),
    "a scale of three axes": (nvfp4, "weight_scale_2", ("F32", (2, 3, 4), bytes(96))),
    "a scale of more columns": (int8, "weight_scale", ("F32", (1, 1, 2), bytes(8))),
    "an empty shape": (asymmetric, "weight_shape", ("I64", (0,), b"")),
    "a shape of no words": (asymmetric, "weight_shape", ("I64", (2,), bytes(16))),
    "zero points of other rows": (asymmetric, "weight_zero_point", ("I32", (1, 7), bytes(28))),
}


@pytest.mark.parametrize("name", MISFITS)
def test_parts_that_do_not_fit_are_no_fault_of_eaglectl(name: str, tmp_path: Path) -> None:
    make, part, instead = MISFITS[name]
    stored, _ = make("fc")
    assert f"fc.{part}" in stored
    stored[f"fc.{part}"] = instead
    parts = {place.rpartition(".")[2]: value for place, value in stored.items() if value is not None}
    with pytest.raises(RefusedError, match="fc: the parts of its quantised weight do not fit each other"):
        dequantised_rows("fc", parts)
    folder = drafter_folder(tmp_path, config={"quantization_config": GPTQ}, tensors=stored)
    for words in (("inspect",), ("validate",), ("convert", "--for", "sglang", "-o", tmp_path / "out")):
        assert call(words[0], folder, *words[1:]).code in (0, 1, 2, 3)  # and not 70


def test_without_torch_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"quantization_config": {**MODELOPT, "ignore": ["lm_head"]}}
    folder = drafter_folder(tmp_path, config=config, tensors=scaled(*MODULES, "fc"))
    monkeypatch.setattr(dequantising, "find_spec", lambda name: None)
    assert "dequantising fc needs torch" in refusal(
        2, "convert", folder, "--for", "sglang", "-o", tmp_path / "o"
    )
