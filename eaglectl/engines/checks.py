"""Which facts and claims about vLLM a scan of its sources shows, each as a check of the scan."""

from collections.abc import Callable, Mapping, Sequence

from eaglectl.engines.extraction import Found
from eaglectl.engines.layers import IDS

# whether the sources show something; None where they hold nothing to look at
Check = Callable[[Found], bool | None]


def reads(found: Found, kind: str, key: str, place: str = "top") -> bool | None:
    """Whether a drafter class reads a key at a place; None where the release has no such class."""
    drafter = found["classes"][kind]
    return None if drafter is None else place in drafter["reads"].get(key, ())


def _of(kind: str, key: str, *, expected: bool = True) -> Check:
    def check(found: Found) -> bool | None:
        drafter = found["classes"][kind]
        return None if drafter is None else bool(drafter[key]) is expected

    return check


def _lacks(kind: str, key: str, place: str = "top") -> Check:
    def check(found: Found) -> bool | None:
        is_read = reads(found, kind, key, place)
        return None if is_read is None else not is_read

    return check


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
    "prefix": _of("llama", "prefixes_model"),
    "unknown-tensor": _unknown(("llama", "mla", "qwen3"), "refused"),
    "unknown-tensor-early": _unknown(("llama", "qwen3"), "KeyError"),
    "unknown-tensor-dropped": _unknown(("mla",), "dropped"),
    "identity-d2t": _of("llama", "d2t_only_if_reduced"),
    "multi-layer": _lacks("llama", "num_hidden_layers"),
    "layers-overstated": lambda f: reads(f, "llama", "num_hidden_layers"),
    "aux-count": _lacks("llama", "num_aux_hidden_states"),
    "aux-count-unstated": lambda f: (
        bool(reads(f, "llama", "num_aux_hidden_states")) and not reads(f, "llama", IDS)
    ),
    "fc-norm-absent": _lacks("llama", "fc_norm"),
    "fc-norm-dropped": _lacks("mla", "fc_norm"),
    "fc-norm-not-applied": lambda f: (
        bool(reads(f, "mla", "fc_norm")) and not f["classes"]["mla"]["applies_fc_norm"]
    ),
    "fc-norm-unstated": _top_only("fc_norm"),
    "norm-output-absent": _lacks("llama", "norm_output"),
    "norm-output-unstated": _top_only("norm_output"),
    "norm-before-fc-absent": _lacks("llama", "norm_before_fc"),
    "norm-before-fc-nested": lambda f: (
        bool(reads(f, "llama", "norm_before_fc")) and not reads(f, "llama", "norm_before_fc", "eagle_config")
    ),
    "norm-before-fc-mla": lambda f: _lacks("mla", "norm_before_fc")(f) is not False,
    "residual-absent": _lacks("llama", "norm_before_residual"),
    "residual-unstated": lambda f: reads(f, "llama", "norm_before_residual"),
    "attention-bias-absent": _lacks("llama", "attention_bias"),
    "bias-unstated": lambda f: ".bias" in f["ignored_suffixes"],
    "parallel-absent": _of("llama", "has_mask_hidden", expected=False),
    "sliding-window-qwen3": _lacks("qwen3", "layer_types"),
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
    "positions": lambda f: not f["raises_max_positions"],
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
