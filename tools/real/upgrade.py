"""Record what training on gives: EAGLE-3 (the control) against 3.1, on chats that nothing was trained on.

    python tools/real/upgrade.py

Reads what `drafters.py upgrade upgrade-specforge upgrade-random-fc` made in the cache, runs `eaglectl smoke`
on the gate and test chats (100, 64 new tokens, greedy, float32) with `--against`, and the drift probe on
every fifth of them, and writes fixtures/real/upgrade.json; what is in it already is kept.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from drafters import upgrade_source
from measure import accepted, smoke
from target import cache_folder, make_target

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/real"
OUT = FIXTURES / "upgrade.json"
PROBED = 5  # of the chats every fifth
# what is run, what it is compared with, and draft tokens
PAIRS = (
    ("3.1", "control", 3),
    ("3.1", "control", 7),
    ("control", "before", 3),
)
# by folder: what is compared, and whether the drift probe is run
RUNS = {
    "upgrade": (PAIRS, True),
    "upgrade-random-fc": (PAIRS, True),
    "upgrade-specforge": ((PAIRS[0], ("3.1 as served", "control", 3), *PAIRS[1:]), False),
}
# SpecForge 0.2.0 trains `norm_output` as EAGLE-3's feedback and writes true, which engines take at its word
READINGS = {
    ("upgrade-specforge", "3.1"): ("--source-semantics", "specforge=pre-879"),
    ("upgrade-specforge", "3.1 as served"): ("--source-semantics", "specforge=post-879"),
}


def place(cache: Path, run: str, name: str) -> Path:
    """A drafter's folder: `before` is the one that both starts are made from."""
    return upgrade_source(cache, run) if name == "before" else cache / run / name.split()[0] / "trained"


def measured(part: dict[str, Any]) -> dict[str, Any]:
    """A measurement as it is recorded."""
    return {
        "length": round(part["acceptance_length"], 4),
        "interval": [round(bound, 4) for bound in part["interval"]],
        "drafts": part["drafts"],
        "accepted": accepted(part),
    }


def ratio(part: dict[str, Any]) -> list[float]:
    return [round(value, 4) for value in (part["value"], *part["interval"])]


def compared(document: dict[str, Any]) -> dict[str, Any]:
    """Both lengths of a comparison, and the ratio of the first to the second in all and by set."""
    other = document["against"]
    return {
        "first": measured(document),
        "second": measured(other),
        "ratio": ratio(other["ratio"]),
        "rounds": ratio(other["rounds"]),
        "sets": {name: ratio(part["ratio"]) for name, part in other["sets"].items()},
    }


def main() -> None:
    cache = cache_folder().absolute()
    target = make_target(cache)
    chats = [
        line for name in ("gate", "test") for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()
    ]
    texts = {"all": chats, "probed": chats[::PROBED]}
    files = {name: cache / f"upgrade-{name}.jsonl" for name in texts}
    for name, file in files.items():
        file.write_text("".join(line + "\n" for line in texts[name]))
    rows: list[dict[str, Any]] = json.loads(OUT.read_text()) if OUT.exists() else []
    known = {(row["run"], row["kind"], row["drafter"], row["against"], row["k"]) for row in rows}

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        OUT.write_text(json.dumps(rows, indent=1) + "\n")
        print(json.dumps(row)[:300], flush=True)

    for run, (pairs, is_probed) in RUNS.items():
        for first, second, k in pairs:
            head = {"run": run, "kind": "ratio", "drafter": first, "against": second, "k": k}
            if tuple(head.values()) not in known:
                options = ("--against", place(cache, run, second), *READINGS.get((run, first), ()))
                options += ("--prompts", files["all"], "-k", k)
                # 3: too few prompts to tell, which is recorded as the rest is
                document = smoke(place(cache, run, first), target, *options, exit_codes=(0, 1, 3))
                record(head | compared(document))
        for name in ("before", "control", "3.1") if is_probed else ():
            head = {"run": run, "kind": "drift", "drafter": name, "against": None, "k": 7}
            if tuple(head.values()) not in known:
                probe = ("--probe", "drift", "--prompts", files["probed"], "-k", 3)
                document = smoke(place(cache, run, name), target, *probe, exit_codes=(0, 1, 3))
                conditions = {
                    part["name"]: measured(part)
                    | {"state_growth": [round(x, 2) for x in part["state_growth"]]}
                    for part in document["probes"]["drift"]
                }
                record(head | {"conditions": conditions})


if __name__ == "__main__":
    main()
