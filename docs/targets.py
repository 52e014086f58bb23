"""docs/reference/targets.md, from the tables of targets: which release captures states of which."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import keys

from eaglectl.engines.behaviour import ranges
from eaglectl.engines.data import read
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.targets import TargetClass, target_class, target_classes, targets_data
from tools.scan.plan import LAST
from tools.scan.record import releases_read, target_evidence

PAGE = Path(__file__).with_name("reference") / "targets.md"
HEAD = """# Which targets an engine captures

Written by `make docs` from `eaglectl/engines/*_targets.json`. EAGLE-3 needs hidden states of the target, and
an engine release captures only those of certain classes (`architectures` in the target's config.json). The
tables are closed lists, one for each release, read in its sources; a target that is in none of them is
*unknown*: `validate --engine` could not look (exit 3), and no launch command is printed. If `architectures`
is not stated, the classes are those that transformers has for the `model_type`.

A cell names the releases that capture the class, the file and line of the first of them, and *run* if the
table was confirmed by running the engine with a tiny target. *no* is a class that the release has and cannot
capture, *not there* a class that it does not have.
A multimodal class *of text_config* captures the same states as the class of its language model, and hands on
what that does. *in stages* names the releases that hand the states of the class over the stages of a pipeline
(`--pipeline-parallel-size`); no other release runs EAGLE-3 there.
"""
# what users serve, by family
FAMILIES: Mapping[str, Sequence[str]] = {
    "DeepSeek V2, V3, V3.2, V4": (
        *(
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "DeepseekV32ForCausalLM",
            "DeepseekV4ForCausalLM",
        ),
        *("DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM"),
    ),
    "Step 3.5 and others": (
        *(
            "Step1ForCausalLM",
            "Step3TextForCausalLM",
            "Step3p5ForCausalLM",
            "Step3p7ForConditionalGeneration",
        ),
    ),
    "Qwen": (
        *("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        *("Qwen3OmniMoeForConditionalGeneration", "Qwen2AudioForConditionalGeneration"),
    ),
    "Gemma": (
        *("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3nForCausalLM"),
        *("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
    ),
    "GLM 4 to 5": (
        *("Glm4ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM"),
        *("Glm5NextForCausalLM", "Glm5NextForConditionalGeneration"),
        *("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"),
    ),
    "MiniMax": (
        *("MiniMaxText01ForCausalLM", "MiniMaxM2ForCausalLM", "MiniMaxM3SparseForCausalLM"),
        "MiniMaxM3SparseForConditionalGeneration",
    ),
    "Kimi (K2 is a DeepseekV3ForCausalLM)": (
        *("KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration", "KimiLinearForCausalLM"),
        "KimiVLForConditionalGeneration",
    ),
    "Llama": ("LlamaForCausalLM", "Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    "Mistral": (
        *("MistralForCausalLM", "Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
        *("MistralLarge3ForCausalLM", "PixtralForConditionalGeneration", "MixtralForCausalLM"),
    ),
    "Granite": (
        *("GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        "GraniteMoeHybridForCausalLM",
    ),
    "Phi": ("PhiForCausalLM", "Phi3ForCausalLM", "PhiMoEForCausalLM", "Phi4MMForCausalLM"),
    "gpt-oss": ("GptOssForCausalLM",),
    "Hybrids (Mamba or linear attention)": (
        *("NemotronHForCausalLM", "NemotronH_Nano_VL_V2", "JambaForCausalLM", "MambaForCausalLM"),
        *(
            "Mamba2ForCausalLM",
            "BambaForCausalLM",
            "FalconH1ForCausalLM",
            "Zamba2ForCausalLM",
            "Lfm2ForCausalLM",
        ),
    ),
    "ERNIE 4.5": (
        *("Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM", "Ernie4_5_VLMoeForConditionalGeneration"),
    ),
    "LongCat": ("LongcatFlashForCausalLM",),
    "Hunyuan": ("HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM", "HunYuanVLForConditionalGeneration"),
    "Older ones": ("OPTForCausalLM", "GPT2LMHeadModel", "BloomForCausalLM", "FalconForCausalLM"),
    "Multimodal wrappers": (
        *("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration", "MiniCPMV"),
        *("MiniCPMV4_6ForConditionalGeneration", "InternVLChatModel", "InternVLForConditionalGeneration"),
    ),
}


def page() -> str:
    """The whole page."""
    engines = tuple(ENGINES)
    parts = [HEAD, _counts(engines)]
    for family, names in FAMILIES.items():
        parts += [f"## {family}\n", _table(engines, names)]
    named = {name for names in FAMILIES.values() for name in names}
    others = [name for name in _captured(engines) if name not in named]
    parts += ["## Every other class that one of them captures\n", _table(engines, others)]
    parts += ["## Where a class does not capture\n", *_outcomes(engines)]
    parts += ["## Parallelism, structured output\n", *_notes(engines)]
    return "\n".join([*parts, keys.section()])


def _counts(engines: Sequence[str]) -> str:
    head = ["| engine | releases read | newest: captured | cannot | of these run |", "|---|---|---|---|---|"]
    rows = []
    for engine in engines:
        newest, known = ENGINES[engine].releases[-1], releases_read(engine)
        rows_now = [target_class(engine, newest, name) for name in target_classes(engine)]
        states = [row.captures for row in rows_now if row]
        stated = read(f"{engine}_targets.json")
        ran = ", ".join(f"{len(names)} in {release}" for release, names in stated["run_in"].items()) or "none"
        refused = sum(len(names) for names in stated["refused_in"].values())
        ran += f", and {refused} that it does not have" if refused else ""
        span = f"{len(known)} ({ranges(known, ENGINES[engine].releases)})"
        title = ENGINES[engine].title
        rows.append(f"| {title} | {span} | {states.count('captures')} | {states.count('lacks')} | {ran} |")
    return "\n".join([*head, *rows, ""])


def _captured(engines: Sequence[str]) -> list[str]:
    """The classes that a release captures."""
    found = {
        name
        for engine in engines
        for name, rows in target_classes(engine).items()
        if any(row.captures == "captures" for row in rows)
    }
    return sorted(found)


def _table(engines: Sequence[str], names: Sequence[str]) -> str:
    head = [
        f"| class | {' | '.join(ENGINES[engine].title for engine in engines)} | in stages |",
        f"|---{'|---' * len(engines)}|---|",
    ]
    rows = [
        f"| `{name}` | {' | '.join(_cell(engine, name) for engine in engines)} | {_stages(engines, name)} |"
        for name in names
    ]
    return "\n".join([*head, *rows, ""])


def _stages(engines: Sequence[str], name: str) -> str:
    """The releases that hand the class's states over the stages of a pipeline."""
    parts = []
    for engine in engines:
        releases = ENGINES[engine].releases
        rows = {release: target_class(engine, release, name) for release in releases}
        if relaying := [release for release, row in rows.items() if row and row.relays]:
            parts.append(f"{ENGINES[engine].title} {ranges(relaying, releases)}")
    return "; ".join(parts) or "no"


def _cell(engine: str, name: str) -> str:
    rows = {release: target_class(engine, release, name) for release in ENGINES[engine].releases}
    captured = [release for release, row in rows.items() if row and row.captures == "captures"]
    lacking = [release for release, row in rows.items() if row and row.captures == "lacks"]
    run = [release for release in rows if target_evidence(engine, release, name) == "run"]
    parts = []
    if captured:
        first = rows[captured[0]]
        parts.append(
            f"{ranges(captured, ENGINES[engine].releases)} ({'; '.join(_facts(first, rows[captured[-1]]))})"
        )
    if lacking:
        row = rows[lacking[0]]
        parts.append(f"no: {ranges(lacking, ENGINES[engine].releases)} ({row.source if row else ''})")
    if run:
        parts.append(f"*run* in {ranges(run, ENGINES[engine].releases)}")
    return "; ".join(parts) or "not there"


def _facts(first: TargetClass | None, last: TargetClass | None) -> Iterator[str]:
    """Where a class is, and by which rule it captures where that is not its engine's usual one."""
    if first is None or last is None:
        return
    yield first.source
    if last.adds_one not in ("", "always"):
        yield f"ids: +1 if {last.adds_one}"
    if last.default and "+ 1" in last.default:
        yield f"default {last.default}"
    if last.language_model:
        yield last.language_model
    if last.state:
        yield f"{last.state} from {last.since}"
    if last.last:
        yield LAST if first.last else f"{LAST} from {last.since}"
    if last.backend:
        yield f"{last.backend}' model from {last.since}"


def _outcomes(engines: Sequence[str]) -> Iterator[str]:
    for engine in engines:
        stated = read(f"{engine}_targets.json")
        yield f"* {ENGINES[engine].title}: {stated['lacking']['text']} ({stated['lacking']['source']})."
        if unread := stated.get("unread"):
            yield f"* {ENGINES[engine].title}: {unread['text']} ({unread['source']})."
        for row in stated["unregistered"]:
            span = f"from {row['from']}, class not there"
            yield f"* {ENGINES[engine].title} {span}: {row['text']} ({row['source']})."
    yield ""


def _notes(engines: Sequence[str]) -> Iterator[str]:
    for engine in engines:
        for note in targets_data(engine)["notes"]:
            span = f" {note['releases']}" if note["releases"] else ""
            yield f"* {ENGINES[engine].title}{span}: {note['text']} ({note['source']})."
    yield ""
