"""Which facts and claims about SGLang a scan of its sources shows, and its statements on behaviour."""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.engines.behaviour import IDS, Behaviour, Flag
from eaglectl.engines.sglang import ENGINE, RUNNER
from tools.scan.extraction import Found
from tools.scan.plan import (
    Check,
    Difference,
    Row,
    ScanPlan,
    count_changes,
    count_rows,
    id_places,
    id_rows,
    lacks,
    reads,
    shows,
    target_differences,
)
from tools.scan.sglang_sources import PARTS, WATCHED

FLAGS = {
    "fc_norm": ("fc_norm", "use_aux_norm"),
    "norm_output": ("norm_output",),
    "norm_before_fc": ("eagle_config.norm_before_fc", "norm_before_fc"),
}
COUNTS = ("num_aux_hidden_states", f"eagle_config.{IDS}", IDS)


def _unmentioned(word: str) -> Check:
    return lambda found: word in found["unmentioned"]


def _needs(kind: str, key: str) -> Check:
    def check(found: Found) -> bool | None:
        drafter = found["classes"][kind]
        return None if drafter is None else key in drafter["needs"]

    return check


def _both(key: str) -> Check:
    """Whether both classes show a part."""

    def check(found: Found) -> bool | None:
        classes = [drafter for drafter in found["classes"].values() if drafter]
        return all(drafter[key] for drafter in classes) if classes else None

    return check


def _borrowed_mlp(found: Found) -> bool | None:
    return None if found["mlp"] is None else not any(found["mlp"]["biases"].values())


def _one_activation(found: Found) -> bool | None:
    return None if found["mlp"] is None else bool(found["mlp"]["refuses_other_activations"])


def _without_d2t(found: Found) -> bool:
    return all(drafter["starts_without_d2t"] for drafter in found["classes"].values() if drafter)


# facts that the sources show; the others show only when the engine runs
CHECKS: Mapping[str, Check] = {
    "speculators": _unmentioned("transformer_layer_config"),
    "qk-norms": shows("llama", "has_qk_norms", expected=False),
    "residual": _unmentioned("norm_before_residual"),
    "attention-bias": shows("llama", "qkv_bias", expected=False),
    "parallel": _unmentioned("mask_hidden"),
    "draft-vocab-size": _needs("llama", "draft_vocab_size"),
    "tied-head": lambda f: reads(f, "llama", "tie_word_embeddings"),
    "d2t-missing": _without_d2t,
    "layers-overstated": lambda f: reads(f, "llama", "num_hidden_layers"),
    "mla-prefix": shows("mla", "prefixes_model"),
    "wrapped-names": shows("llama", "knows_unprefixed_and_prefixed"),
    "later-input-layernorm": shows("llama", "later_layers_use_input_layernorm", expected=False),
    "norm-output": lambda f: reads(f, "llama", "norm_output"),
    "fc-norm": lambda f: reads(f, "llama", "fc_norm"),
    "norm-before-fc": lambda f: reads(f, "llama", "norm_before_fc"),
    "norm-before-fc-absent": lacks("llama", "norm_before_fc"),
    "sliding-window": lacks("llama", "layer_types"),
    "mla-layers": shows("mla", "one_layer_only"),
    "mla-norm-before-fc": lacks("mla", "norm_before_fc"),
    "mla-quantised": shows("mla", "refuses_other_dtypes"),
    "mla-aux-count": lacks("mla", "num_aux_hidden_states"),
    "unknown-tensor": _both("skips_unknown_tensors"),
    "fc-bias": lambda f: reads(f, "llama", "bias"),
    "mlp-bias": _borrowed_mlp,
    "head-replaced": _both("shares_head_without_size"),
    "tied-to-own": lambda f: reads(f, "llama", "tie_word_embeddings"),
    "head-unfilled": _both("shares_head_without_size"),
    "one-state": shows("llama", "fuses_only_other_widths"),
    "hidden-act": _one_activation,
    "positions": lambda f: f["refuses_longer_targets"],
}
# what holds in every release so far and no data file states
CLAIMS: Mapping[str, tuple[str, Check]] = {
    "d2t holds differences": ("", _both("keeps_d2t_as_differences")),
    "both classes put model. before names": ("", _both("prefixes_model")),
}


def _flag_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    for name, paths in FLAGS.items():
        flag = known.flags.get(name, Flag())
        stated = (*flag.first, *flag.any)
        for path in paths:
            yield f"{path} is read as a switch", path in stated, _reads(found, "llama", path)


def _reads(found: Found, kind: str, path: str) -> bool | None:
    holder, _, key = path.rpartition(".")
    return reads(found, kind, key, holder or "top")


def _count_key_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    for kind in found["classes"]:
        for path in COUNTS:
            claim = f"{path} counts fc's aux states ({kind})"
            yield claim, path in known.aux_count[kind].paths, _reads(found, kind, path)


def _tables(found: Found, release: str) -> list[Difference]:
    """Differences in what is captured of each target's class, by which rule, and in names of drafters."""
    return [*target_differences(found, release), *_architectures(found)]


def _architectures(found: Found) -> list[Difference]:
    known, registered = set(ENGINE.data["architectures"].values()), set(found["architectures"])
    return [
        Difference(f"architecture {name}", name in known, name in registered)
        for name in sorted(known ^ registered)
    ]


def _changed(found: Found, known: Behaviour, before: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of an entry, as far as the sources show them."""
    changed: dict[str, Any] = {"aux_count": dict(count_changes(found, before["aux_count"]))}
    places = list(id_places(found, RUNNER))
    if places and places != before["runners"][RUNNER]["ids"]:
        changed["runners"] = {RUNNER: {"ids": places}}
    flags = dict(_flag_changes(found, before["flags"]))
    if flags:
        changed["flags"] = flags
    return changed


def _flag_changes(found: Found, before: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, paths in FLAGS.items():
        key = "any" if name == "fc_norm" else "first"
        read = [path for path in paths if _reads(found, "llama", path)]
        if set(read) != set(before.get(name, {}).get(key, ())):
            yield name, {key: read} if read else None


def _questions(found: Found, known: Behaviour) -> Iterator[str]:
    """What no entry settles: rules of targets' classes in code of another form, ids that are not found."""
    for name, row in found["targets"].items():
        if row.get("adds_one") == "unknown":
            yield f"what ids mean to {name} ({row['source']}): of no form known here; read it"
    if found["aux_ids"][RUNNER] is None:
        yield "where ids are looked up: the function that did it is gone or of no form known here; read it"


PLAN = ScanPlan(
    ENGINE,
    PARTS,
    WATCHED,
    CHECKS,
    CLAIMS,
    (id_rows, _flag_rows, _count_key_rows, count_rows),
    _tables,
    _changed,
    _questions,
    (
        "architecture",
        "aux-layers",
        "aux-unknown",
        "aux-count",
        "target-unlisted",
        "target-unknown",
        "target-state",
    ),
)
