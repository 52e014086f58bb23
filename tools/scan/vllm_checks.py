"""Which facts and claims about vLLM a scan of its sources shows, and its statements on behaviour."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eaglectl.drafter.drafter import DefaultLayers
from eaglectl.engines.behaviour import IDS, Behaviour, is_since, is_within
from eaglectl.engines.vllm import ENGINE
from tools.scan.extraction import Found
from tools.scan.plan import (
    Check,
    Difference,
    Row,
    ScanPlan,
    count_changes,
    count_rows,
    default_layers,
    id_places,
    id_rows,
    lacks,
    reads,
    shows,
    spaced,
    target_differences,
)
from tools.scan.vllm_sources import PARTS, WATCHED


def _top_only(key: str) -> Check:
    """Whether every class reads a key at the top of the config and nowhere else."""

    def check(found: Found) -> bool | None:
        read = [drafter["reads"].get(key, []) for drafter in found["classes"].values() if drafter]
        return all(places == ["top"] for places in read) if read else None

    return check


def _unknown(kinds: Sequence[str], how: str) -> Check:
    def check(found: Found) -> bool | None:
        classes = [found["classes"][kind] for kind in kinds]
        outcomes = {drafter["unknown_tensor"] for drafter in classes if drafter}
        return outcomes == {how} if outcomes else None

    return check


def keeps(found: Found, kind: str, key: str) -> bool:
    """Whether the reader of a kind of speculators config keeps a key."""
    return key in ((found["speculators"] or {}).get(kind) or {"keeps": ()})["keeps"]


def _drops_key(kind: str, key: str) -> Check:
    """Whether a speculators reader drops a key that the Llama class reads."""

    def check(found: Found) -> bool | None:
        is_read = reads(found, "llama", key)
        return bool(is_read) and kind in (found["speculators"] or {}) and not keeps(found, kind, key)

    return check


# facts that the sources show; the others show only when the engine runs
CHECKS: Mapping[str, Check] = {
    "no-class-mla": lambda f: f["classes"]["mla"] is None,
    "no-class-qwen3": lambda f: f["classes"]["qwen3"] is None,
    "prefix": shows("llama", "prefixes_model"),
    "unknown-tensor": _unknown(("llama", "mla", "qwen3"), "refused"),
    "unknown-tensor-early": _unknown(("llama", "qwen3"), "KeyError"),
    "unknown-tensor-dropped": _unknown(("mla",), "dropped"),
    "identity-d2t": shows("llama", "d2t_only_if_reduced"),
    "multi-layer": lacks("llama", "num_hidden_layers"),
    "layers-overstated": lambda f: reads(f, "llama", "num_hidden_layers"),
    "aux-count": lacks("llama", "num_aux_hidden_states"),
    "aux-count-unstated": lambda f: (
        bool(reads(f, "llama", "num_aux_hidden_states")) and not reads(f, "llama", IDS)
    ),
    "fc-norm-absent": lacks("llama", "fc_norm"),
    "fc-norm-dropped": lacks("mla", "fc_norm"),
    "fc-norm-not-applied": lambda f: (
        bool(reads(f, "mla", "fc_norm")) and not f["classes"]["mla"]["applies_fc_norm"]
    ),
    "fc-norm-unstated": _top_only("fc_norm"),
    "norm-output-absent": lacks("llama", "norm_output"),
    "norm-output-unstated": _top_only("norm_output"),
    "norm-before-fc-absent": lacks("llama", "norm_before_fc"),
    "norm-before-fc-nested": lambda f: (
        bool(reads(f, "llama", "norm_before_fc")) and not reads(f, "llama", "norm_before_fc", "eagle_config")
    ),
    "norm-before-fc-mla": lambda f: lacks("mla", "norm_before_fc")(f) is not False,
    "residual-absent": lacks("llama", "norm_before_residual"),
    "residual-unstated": lambda f: reads(f, "llama", "norm_before_residual"),
    "attention-bias-absent": lacks("llama", "attention_bias"),
    "bias-unstated": lambda f: ".bias" in f["ignored_suffixes"],
    "parallel-absent": shows("llama", "has_mask_hidden", expected=False),
    "sliding-window-qwen3": lacks("qwen3", "layer_types"),
    "ids-unsorted": lambda f: f["sorts_aux_layers"] or None,
    "tied-head": lambda f: not any(reads(f, kind, "tie_word_embeddings") for kind in f["classes"]),
    "speculators-unknown": lambda f: "eagle3" not in (f["speculators"] or {}),
    "speculators-norm-before-fc": _drops_key("eagle3", "norm_before_fc"),
    "speculators-norm-output": _drops_key("eagle3", "norm_output"),
    "speculators-fc-norm": _drops_key("eagle3", "fc_norm"),
    "speculators-model-type": lambda f: bool(
        (f["speculators"] or {}).get("eagle3", {}).get("refuses_other_model_types")
    ),
    "aux-ids-unread": lambda f: not any(f["aux_ids"].values()),
    # tables of yarn do not follow the override
    "positions": lambda f: not f["raises_max_positions"] or None,
    "target-unlisted": lambda f: f["listed_targets"] is not None,
}
# what holds in every release so far and no data file states
CLAIMS: Mapping[str, tuple[str, Check]] = {
    "missing tensors are not reported": (
        "",
        lambda f: (
            f["checks_missing_only_if_returned"]
            and not any(d["reports_what_it_loaded"] for d in f["classes"].values() if d)
        ),
    ),
    "the speculators reader of P-EAGLE drops fc_norm and norm_output": (
        "",
        lambda f: (
            "peagle" not in (f["speculators"] or {})
            or (not keeps(f, "peagle", "fc_norm") and not keeps(f, "peagle", "norm_output"))
        ),
    ),
    "the speculators reader drops num_aux_hidden_states": (
        "",
        lambda f: not keeps(f, "eagle3", "num_aux_hidden_states"),
    ),
}


def _behaviour_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    """Defaults: of layers, of the runner, of the speculators reader."""
    for layers in sorted({_default_of(known, name) for name in known.runners}):
        yield (
            f"without ids the layers are {spaced(layers)}",
            True,
            default_layers(found["default_aux_layers"]) == layers,
        )
    is_default = found["runner"]["is_V2_default"]
    yield "the V2 runner is the default for every target", _is_second_only(known), is_default
    default = known.speculators_defaults.get("eagle3", {}).get("norm_before_residual", False)
    yield "speculators configs without norm_before_residual mean true", default, _residual_default(found)


def _is_second_only(known: Behaviour) -> bool:
    return [rule.value for rule in known.default_runner] == [("V2",)]


def _runner_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    if found.get("runners") is not None:
        for name in sorted({*known.runners, *found["runners"]}):
            yield f"the {name} runner has EAGLE-3", name in known.runners, name in found["runners"]
    if "V2" in known.runners and found["runner"]["unsupported"]:
        is_first_only = not known.runners["V2"].drafts_in_parallel
        yield "parallel drafting of EAGLE runs on the V1 runner", is_first_only, _refuses_parallel(found)


def _refuses_parallel(found: Found) -> bool:
    return any("parallel drafting" in feature for feature in found["runner"]["unsupported"])


def _qwen3_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    counts = IDS in known.aux_count["qwen3"].paths
    yield "Qwen3 counts the ids at the top too", counts, reads(found, "qwen3", IDS)


def _residual_default(found: Found) -> bool | None:
    reader = (found["speculators"] or {}).get("eagle3")
    return None if reader is None else reader["norm_before_residual"] is True


def _default_of(known: Behaviour, name: str) -> str:
    return str(DefaultLayers(known.runners[name].default_layers[-1].value))


def _tables(found: Found, release: str) -> list[Difference]:
    """Differences from the tables of architectures, targets and rewritten model types."""
    listed = [*_architectures(found, release), *_targets(found, release), *_model_types(found, release)]
    return [*listed, *target_differences(found, release)]


def _architectures(found: Found, release: str) -> list[Difference]:
    known = {name for name, releases in ENGINE.data["architectures"].items() if is_within(releases, release)}
    registered = set(found["architectures"] or ())
    missing = sorted(name for name in known if not {name, f"Eagle3{name}"} & registered)
    new = sorted(name for name in registered - known if "peagle" not in name.lower())
    return [Difference(f"architecture {name}", True, False) for name in missing] + [
        Difference(f"architecture {name}", False, True) for name in new
    ]


def _targets(found: Found, release: str) -> list[Difference]:
    if found["listed_targets"] is None:
        return []
    known = {name for first, name in ENGINE.data["targets"] if is_since(first, release)}
    listed = set(found["listed_targets"])
    return [
        Difference(f"target {name} is listed", name in known, name in listed)
        for name in sorted(known ^ listed)
    ]


def _model_types(found: Found, release: str) -> list[Difference]:
    rewritten = ENGINE.data["rewritten_model_types"].items()
    known = {name for name, releases in rewritten if is_within(releases, release)}
    missing = known - set(found["rewritten_model_types"])
    return [Difference(f"model_type {name} is rewritten", True, False) for name in sorted(missing)]


def _changed(found: Found, known: Behaviour, before: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of an entry, as far as the sources show them."""
    changed: dict[str, Any] = {
        "runners": dict(_runner_changes(found, known, before["runners"])),
        "aux_count": dict(count_changes(found, before["aux_count"])),
    }
    if found["runner"]["is_V2_default"]:
        changed["default_runner"] = [{"value": ["V2"]}]
    residual = _residual_default(found)
    if residual is not None:
        changed["speculators_defaults"] = {"eagle3": {"norm_before_residual": residual}}
    return changed


def _runner_changes(
    found: Found, known: Behaviour, before: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    present = found.get("runners") or list(known.runners)
    for name in known.runners:
        if name not in present:
            yield name, None
            continue
        states = _runner_states(found, name)
        if changed := {key: value for key, value in states.items() if value != before[name][key]}:
            yield name, changed


def _runner_states(found: Found, name: str) -> Mapping[str, Any]:
    """The keys of a runner as the sources show them."""
    states: dict[str, Any] = {"ids": list(id_places(found, name))}
    if default := default_layers(found["default_aux_layers"]):
        states["default_layers"] = [{"value": default}]
    if name == "V2" and found["runner"]["unsupported"]:
        states["drafts_in_parallel"] = not _refuses_parallel(found)
    return states


def _questions(found: Found, known: Behaviour) -> Iterator[str]:
    if _is_second_only(known) and not found["runner"]["is_V2_default"]:
        names = ", ".join(found["runner"]["architectures"]) or "no architecture"
        yield f"default_runner: V2 is no longer the default for every target; these sources name {names}"
    for name in sorted(set(found.get("runners") or ()) - set(known.runners)):
        yield f"the {name} runner is new: state all of its keys"


PLAN = ScanPlan(
    ENGINE,
    PARTS,
    WATCHED,
    CHECKS,
    CLAIMS,
    (_runner_rows, id_rows, _behaviour_rows, count_rows, _qwen3_rows),
    _tables,
    _changed,
    _questions,
    (
        "architecture",
        "model-type",
        "aux-layers",
        "aux-unknown",
        "aux-runner",
        "target-lacks",
        "target-unknown",
    ),
)
