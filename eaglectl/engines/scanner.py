"""Read a vLLM wheel's sources and say which facts of vllm_releases.json hold in it: `python -m eaglectl.engines.scanner WHEEL`.

Nothing is imported from the wheel. A new release costs one run, and a review of what it prints.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglectl.engines import vllm
from eaglectl.engines.catalogue import parse_engine
from eaglectl.engines.extraction import Found, extract
from eaglectl.engines.facts import is_within
from eaglectl.engines.wheels import Sources
from eaglectl.errors import EaglectlError, Unreadable, printable

Sight = Callable[[Found], bool | None]
IDS = "eagle_aux_hidden_state_layer_ids"
NESTED = f"eagle_config.{IDS}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that the sources and the data do not agree on: `expected` by the data, `found` in the sources."""

    what: str
    expected: object
    found: object


def _reads(found: Found, family: str, key: str, place: str = "top") -> bool | None:
    drafter = found["classes"][family]
    return None if drafter is None else place in drafter["reads"].get(key, ())


def _of(family: str, key: str) -> Sight:
    return lambda found: None if found["classes"][family] is None else bool(found["classes"][family][key])


def _lacks(family: str, key: str, place: str = "top") -> Sight:
    def sight(found: Found) -> bool | None:
        reads = _reads(found, family, key, place)
        return None if reads is None else not reads

    return sight


def _top_only(key: str) -> Sight:
    """Whether every class reads a key at the top of the config and nowhere else."""

    def sight(found: Found) -> bool | None:
        read = [drafter["reads"].get(key, []) for drafter in found["classes"].values() if drafter]
        return all(places == ["top"] for places in read) if read else None

    return sight


def _unknown(families: Sequence[str], how: str) -> Sight:
    def sight(found: Found) -> bool | None:
        seen = {found["classes"][family]["unknown_tensor"] for family in families if found["classes"][family]}
        return None if not seen else seen == {how}

    return sight


def _keeps(found: Found, kind: str, key: str) -> bool:
    return key in ((found["speculators"] or {}).get(kind) or {"keeps": ()})["keeps"]


def _drops_key(kind: str, key: str, since: str = "") -> Sight:
    """Whether a speculators reader drops a key that the Llama class reads."""

    def sight(found: Found) -> bool | None:
        reads = _reads(found, "llama", key)
        return bool(reads) and kind in (found["speculators"] or {}) and not _keeps(found, kind, key)

    return sight


def _ids(found: Found, runner: str) -> Sequence[str]:
    return found["aux_ids"][runner] or ()


# facts that the sources show; the others were found by running, and are not looked at
SIGHTS: Mapping[str, Sight] = {
    "no-class-mla": lambda f: f["classes"]["mla"] is None,
    "no-class-qwen3": lambda f: f["classes"]["qwen3"] is None,
    "prefix": _of("llama", "prefixes_model"),
    "unknown-tensor": _unknown(("llama", "mla", "qwen3"), "refused"),
    "unknown-tensor-early": _unknown(("llama", "qwen3"), "KeyError"),
    "unknown-tensor-dropped": _unknown(("mla",), "dropped"),
    "identity-d2t": _of("llama", "d2t_only_if_reduced"),
    "multi-layer": _lacks("llama", "num_hidden_layers"),
    "layers-overstated": lambda f: _reads(f, "llama", "num_hidden_layers"),
    "aux-count": _lacks("llama", "num_aux_hidden_states"),
    "aux-count-unstated": lambda f: bool(_reads(f, "llama", "num_aux_hidden_states")) and not _reads(f, "llama", IDS),
    "fc-norm-absent": _lacks("llama", "fc_norm"),
    "fc-norm-dropped": _lacks("mla", "fc_norm"),
    "fc-norm-not-applied": lambda f: bool(_reads(f, "mla", "fc_norm")) and not f["classes"]["mla"]["applies_fc_norm"],
    "fc-norm-unstated": _top_only("fc_norm"),
    "norm-output-absent": _lacks("llama", "norm_output"),
    "norm-output-unstated": _top_only("norm_output"),
    "norm-before-fc-absent": _lacks("llama", "norm_before_fc"),
    "norm-before-fc-nested": lambda f: bool(_reads(f, "llama", "norm_before_fc")) and not _reads(f, "llama", "norm_before_fc", "eagle_config"),
    "norm-before-fc-mla": lambda f: _lacks("mla", "norm_before_fc")(f) is not False,
    "residual-absent": _lacks("llama", "norm_before_residual"),
    "residual-unstated": lambda f: _reads(f, "llama", "norm_before_residual"),
    "attention-bias-absent": _lacks("llama", "attention_bias"),
    "bias-unstated": lambda f: ".bias" in f["ignored_suffixes"],
    "parallel-absent": lambda f: not f["classes"]["llama"]["has_mask_hidden"],
    "sliding-window-qwen3": _lacks("qwen3", "layer_types"),
    "ids-unsorted": lambda f: f["sorts_aux_layers"] or None,
    "tied-head": lambda f: not any(_reads(f, family, "tie_word_embeddings") for family in f["classes"]),
    "speculators-unknown": lambda f: "eagle3" not in (f["speculators"] or {}),
    "speculators-norm-before-fc": _drops_key("eagle3", "norm_before_fc"),
    "speculators-norm-output": _drops_key("eagle3", "norm_output"),
    "speculators-fc-norm": _drops_key("eagle3", "fc_norm"),
    "speculators-model-type": lambda f: bool((f["speculators"] or {}).get("eagle3", {}).get("refuses_other_model_types")),
    "aux-ids-unread": lambda f: not f["aux_ids"]["V1"],
    "positions": lambda f: not f["raises_max_positions"],
    "target-unlisted": lambda f: f["listed_targets"] is not None,
}  # fmt: skip
# what the code takes for granted, with the releases in which it is so
CLAIMS: Mapping[str, tuple[str, Sight]] = {
    "ids are read at the top of the config (V1 runner)": (">=0.11.1", lambda f: IDS in _ids(f, "V1")),
    "ids are read in eagle_config (V1 runner)": (">=0.22.0", lambda f: NESTED in _ids(f, "V1")),
    "ids are read at the top of the config (V2 runner)": (">=0.17.0", lambda f: IDS in _ids(f, "V2")),
    "ids are read in eagle_config (V2 runner)": ("<0", lambda f: NESTED in _ids(f, "V2")),
    "ids are read in eagle_config.layer_ids (V2 runner)": (">=0.27.0", lambda f: "eagle_config.layer_ids" in _ids(f, "V2")),
    "without ids the layers are (2, n // 2, n - 3)": ("", lambda f: f["default_aux_layers"] == "(2, n // 2, n - 3)"),
    "the V2 runner is the default for every target": (">=0.29.0", lambda f: f["runner"]["is_V2_default"]),
    "parallel drafting of EAGLE runs on the V1 runner": (">=0.24.0", lambda f: any("parallel drafting for EAGLE" in one for one in f["runner"]["unsupported"])),
    "missing tensors are not reported": ("", lambda f: f["checks_missing_only_if_returned"] and not any(d["reports_what_it_loaded"] for d in f["classes"].values() if d)),
    "fc takes three aux states where nothing says how many": (">=0.22.0", lambda f: f["classes"]["llama"]["default_aux_count"] == 3),
    "Qwen3 counts the ids at the top too": (">=0.24.0", lambda f: _reads(f, "qwen3", IDS)),
    "speculators configs without norm_before_residual mean true": (">=0.10.1", lambda f: f["speculators"]["eagle3"]["norm_before_residual"] is True),
    "the speculators reader of P-EAGLE drops fc_norm and norm_output": ("", lambda f: "peagle" not in (f["speculators"] or {}) or (not _keeps(f, "peagle", "fc_norm") and not _keeps(f, "peagle", "norm_output"))),
    "the speculators reader drops num_aux_hidden_states": ("", lambda f: not _keeps(f, "eagle3", "num_aux_hidden_states")),
}  # fmt: skip


def compare(found: Found, release: str) -> list[Difference]:
    """Where the sources and the data of `release` differ: facts, what the code takes for granted, architectures."""
    facts = {fact.id: fact.releases for fact in vllm.ENGINE.facts}
    rows = [(fact_id, facts[fact_id], sight) for fact_id, sight in SIGHTS.items()]
    rows += [(claim, releases, sight) for claim, (releases, sight) in CLAIMS.items()]
    differences = []
    for what, releases, sight in rows:
        seen = sight(found)
        expected = is_within(releases, release)
        if seen is not None and bool(seen) != expected:
            differences.append(Difference(what, expected, bool(seen)))
    return [*differences, *_architectures(found, release), *_targets(found, release), *_model_types(found, release)]


def _architectures(found: Found, release: str) -> list[Difference]:
    known = {name for name, releases in vllm.data()["architectures"].items() if is_within(releases, release)}
    registered = set(found["architectures"] or ())
    missing = sorted(name for name in known if not {name, f"Eagle3{name}"} & registered)
    new = sorted(name for name in registered - known if "peagle" not in name.lower())
    return [Difference(f"architecture {name}", True, False) for name in missing] + [
        Difference(f"architecture {name}", False, True) for name in new
    ]


def _targets(found: Found, release: str) -> list[Difference]:
    if found["listed_targets"] is None:
        return []
    known = {name for first, name in vllm.data()["targets"] if is_within(f">={first}", release)}
    listed = set(found["listed_targets"])
    return [Difference(f"target {name} is listed", name in known, name in listed) for name in sorted(known ^ listed)]


def _model_types(found: Found, release: str) -> list[Difference]:
    known = {name for name, releases in vllm.data()["rewritten_model_types"].items() if is_within(releases, release)}
    missing = known - set(found["rewritten_model_types"])
    return [Difference(f"model_type {name} is rewritten", True, False) for name in sorted(missing)]


def changes(before: Found, after: Found, path: str = "") -> list[Difference]:
    """Every value that differs between two scans."""
    differences: list[Difference] = []
    for key in dict.fromkeys([*before, *after]):
        where, old, new = f"{path}{key}", before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += changes(old, new, f"{where}.")
        elif isinstance(old, list) and isinstance(new, list):
            differences += [Difference(f"{where}: {one}", True, False) for one in old if one not in new]
            differences += [Difference(f"{where}: {one}", False, True) for one in new if one not in old]
        elif old != new and key != "release":
            differences.append(Difference(where, old, new))
    return differences


def main(arguments: Sequence[str] | None = None) -> int:
    """Scan, print, and end with 1 where the data no longer says what the sources do, with 3 where they cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m eaglectl.engines.scanner", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("sources", type=Path, help="a vLLM wheel, or a folder with its Python files")
    parser.add_argument(
        "--against",
        metavar="RELEASE_OR_SCAN",
        help="a known release (the wheel's own, else the newest), or a scan's JSON",
    )
    parser.add_argument("--json", action="store_true", help="print all that was found")
    asked = parser.parse_args(arguments)
    try:
        found = extract(Sources(asked.sources))
        differences, base = _against(found, asked.against)
    except EaglectlError as error:
        print(f"eaglectl: {error}", file=sys.stderr)
        return error.exit_code
    if asked.json:
        print(json.dumps(found, indent=2))
    else:
        _print(found, differences, base)
    return 1 if differences else 0


def _against(found: Found, text: str | None) -> tuple[list[Difference], str]:
    if text and text.endswith(".json"):
        try:
            return changes(json.loads(Path(text).read_text()), found), text
        except (OSError, ValueError) as error:
            raise Unreadable(f"{printable(text)}: no scan that can be read: {error}") from None
    known = vllm.releases()
    release = found["release"] if found["release"] in known else known[-1]
    if text:
        (release,) = parse_engine(f"vllm=={text}").releases[:1]
    return compare(found, release), f"the data of {release}"


def _print(found: Found, differences: Sequence[Difference], base: str) -> None:
    unseen = len(vllm.ENGINE.facts) - len(SIGHTS)
    print(
        f"vllm {found['release']} against {base}: {len(SIGHTS)} facts and {len(CLAIMS)} claims looked at, {unseen} facts show only when it runs"
    )
    for one in differences:
        print(f"  {one.what}: {_word(one.expected)} before, {_word(one.found)} in these sources")
    print("nothing changed" if not differences else f"{len(differences)} changed; review vllm_releases.json")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "holds" if value else "does not hold"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
