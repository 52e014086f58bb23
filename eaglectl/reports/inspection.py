"""An inspection in words: what the screen and the page of `inspect` both show."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.drafter.tensors import Dimensions
from eaglectl.engines import vllm
from eaglectl.engines.engine import Verdict
from eaglectl.formats.catalogue import by_name
from eaglectl.reports.findings import Inspection
from eaglectl.reports.wording import layers, release_range, size

Pairs = tuple[tuple[str, str], ...]
WORDS = {
    "as trained": "runs as trained",
    "differs": "runs differently than trained",
    "fails": "does not load",
    "unknown": "cannot be told",
}
SAME = {True: "yes", False: "no", None: "unknown"}
LEVELS = ("problem", "question", "warning", "note")
SHOWN_KINDS = 3
AUX_HEAD = ("engine", "ids it reads", "from", "boundaries", "as trained")
SERVED_HEAD = ("engine", "releases", "outcome", "why")
TENSOR_HEAD = ("tensor", "dtype", "shape", "bytes", "canonical")


@dataclass(frozen=True, slots=True)
class Served:
    """What releases of an engine do with the checkpoint as it lies; without an outcome a remark on those left out."""

    engine: str
    releases: str
    outcome: str
    why: str


def headline(drafter: Drafter) -> tuple[str, str, str]:
    """What it is, who wrote it, and what says so."""
    return f"EAGLE-{drafter.version} drafter", f" from {by_name(drafter.producer).title}", f"  ({drafter.evidence})"


def facts(found: Inspection) -> Pairs:
    """What the drafter is, a name and a value each."""
    drafter, dims = found.drafter, found.drafter.dims
    target = drafter.target
    known = [f"{target.depth} layers" if target.depth else "", target.model_type or ""]
    return (
        ("target", (target.name or "not named") + "".join(f", {part}" for part in known if part)),
        ("network", f"{dims.layers} layer{'s' * (dims.layers > 1)}, {_attention(dims)}, hidden {dims.hidden}, MLP {dims.intermediate}" + (", q/k norms" if Feature.QK_NORM in drafter.features() else "")),
        ("aux input", f"{dims.aux} states of width {dims.target_hidden} into fc"),
        ("norms", _norms(drafter)),
        ("vocabulary", _vocabulary(drafter)),
        ("rope", _rope(drafter)),
        ("embedding", "its own" if "embed_tokens.weight" in drafter.tensors else "the target's (none in the file)"),
        ("head", "its own" if "lm_head.weight" in drafter.tensors else "the target's (none in the file)"),
        ("weights", f"{_parameters(found):,} parameters, {size(found.checkpoint.nbytes)} in {len(found.checkpoint.weight_files)} file(s), {', '.join(drafter.dtypes)}"),
        ("quantised", "yes, passed through unchanged" if drafter.quantisation is not None else "no"),
    )  # fmt: skip


def _attention(dims: Dimensions) -> str:
    if dims.attention == "MLA":
        return (
            f"MLA {dims.heads} heads, q rank {dims.q_lora_rank or 'none'}, kv rank {dims.kv_lora_rank},"
            f" {dims.qk_nope_head_dim}+{dims.qk_rope_head_dim}/{dims.v_head_dim}"
        )
    return f"{dims.attention} {dims.heads} heads on {dims.kv_heads} of {dims.head_dim}"


def _norms(drafter: Drafter) -> str:
    norms = drafter.norms
    output = {True: "after the norm (norm_output)", False: "before the norm", None: "unknown (norm_output)"}[
        norms.norm_output
    ]
    aux = (
        "each aux state (fc_norm)"
        if norms.fc_norm
        else "all aux states at once (norm_before_fc)"
        if norms.norm_before_fc
        else "none before fc"
    )
    return f"{aux}; fed back {output}; residual {'normed' if norms.norm_before_residual else 'un-normed'}"


def _vocabulary(drafter: Drafter) -> str:
    dims = drafter.dims
    if not drafter.has_reduced_vocabulary:
        return f"all {dims.vocab} target tokens"
    maps = " and ".join(name for name in ("d2t", "t2d") if name in drafter.tensors) or "no map"
    return f"{dims.draft_vocab} of {dims.vocab} target tokens ({dims.draft_vocab / dims.vocab:.1%}), {maps}"


def _rope(drafter: Drafter) -> str:
    rope = drafter.rope
    scaling = (
        f", {rope.scaling.get('rope_type')} scaling"
        + (f" x{rope.scaling['factor']:g}" if "factor" in rope.scaling else "")
        if rope.scaling
        else ""
    )
    return f"base {rope.theta:g}{scaling}{', interleaved' if rope.is_interleaved else ''}"


def _parameters(found: Inspection) -> int:
    total = 0
    for name, tensor in found.drafter.tensors.items():
        count = 1
        for axis in tensor.shape:
            count *= axis
        total += count if name not in ("d2t", "t2d") else 0
    return total


def aux_rows(found: Inspection) -> Iterator[tuple[str, str, str, str, str]]:
    """By engine: the ids that it reads, from which key, the boundaries that they mean to it, and whether those were trained."""
    for reading in found.readings:
        ids = ", ".join(map(str, reading.ids)) if reading.ids else "-"
        boundaries = layers(reading.boundaries, is_default=reading.is_default)
        yield reading.engine, ids, reading.key, boundaries, SAME[reading.same_as(found.drafter.aux)]


def served(found: Inspection) -> Iterator[Served]:
    """The releases asked for, or vLLM's by what they do, the newest first, and SGLang's."""
    if found.asked:
        yield from (_served(verdict, verdict.release) for verdict in found.asked)
        return
    of_vllm = [verdict for verdict in found.verdicts if verdict.engine == "vllm"]
    groups: dict[tuple[str, tuple[str, ...]], list[Verdict]] = {}
    for verdict in reversed(of_vllm):
        groups.setdefault((verdict.outcome, verdict.reasons), []).append(verdict)
    kinds = list(groups.values())
    yield from (_served(kind[0], release_range(kind, vllm.releases())) for kind in kinds[:SHOWN_KINDS])
    if len(kinds) > SHOWN_KINDS:
        oldest = kinds[SHOWN_KINDS - 1][-1].release
        more = f"{len(kinds) - SHOWN_KINDS} more kinds of trouble before {oldest}; ask with --engine 'vllm<{of_vllm[-1].release}'"
        yield Served("vllm", "older", "", more)
    yield from (_served(verdict, verdict.release) for verdict in found.verdicts if verdict.engine == "sglang")


def _served(verdict: Verdict, releases: str) -> Served:
    return Served(verdict.engine, releases, verdict.outcome, "; ".join(verdict.reasons))


def in_order(notes: Sequence[Note]) -> list[Note]:
    """Notes, the most pressing first."""
    return sorted(notes, key=lambda note: LEVELS.index(note.level))


def next_command(found: Inspection) -> str:
    """What to run where the newest vLLM does not run it as trained; nothing where it does."""
    if _latest(found)["vllm"].outcome == "as trained":
        return ""
    asks = " (answer the questions above with its options)" if found.drafter.told("question") else ""
    return f"eaglectl convert {shlex.quote(found.commands['source'])}{asks}"


def serve_commands(found: Inspection) -> Pairs:
    """The engines whose newest release runs it as trained, and how to start each."""
    fit = [engine for engine, verdict in _latest(found).items() if verdict.outcome == "as trained"]
    if "tensorrt-llm" in found.commands:
        fit.append("tensorrt-llm")  # its layers are a serving setting, whatever the file says
    return tuple((engine, found.commands[engine]) for engine in fit)


def _latest(found: Inspection) -> dict[str, Verdict]:
    return {verdict.engine: verdict for verdict in found.verdicts}


def tensor_rows(found: Inspection) -> Iterator[tuple[str, str, str, str, str]]:
    """Every stored tensor and the canonical name it has part in."""
    names = {stored: name for name, tensor in found.drafter.tensors.items() for stored in tensor.stored}
    for name, tensor in found.checkpoint.tensors.items():
        yield name, tensor.dtype, str(list(tensor.shape)), str(tensor.nbytes), names.get(name, "-")
