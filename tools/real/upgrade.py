"""Record what training on gives: EAGLE-3 (the control) against 3.1, on chats that nothing was trained on.

    python tools/real/upgrade.py [CASE ...]

Reads what `drafters.py upgrade` made in the cache, runs `eaglectl smoke` on the gate and test chats (100, 64
new tokens, greedy, float32) with `--against`, and the drift probe on every fifth of them, and
writes fixtures/real/upgrade.json; what is in it already is kept.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from target import cache_folder, make_target

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures/real"
OUT = FIXTURES / "upgrade.json"
PROBED = 5  # of the chats every fifth
# what is run, what it is compared with, and draft tokens
PAIRS = (
    ("3.1", "control", 3),
    ("3.1", "control", 7),
    ("control", "before", 3),
)


def place(cache: Path, case: str, name: str) -> Path:
    """A drafter's folder: `before` is the one that both starts are made from."""
    folder = cache / case
    return {"before": folder / "source", "start": folder / "3.1/start"}.get(name, folder / name / "trained")


def smoke(folder: Path, target: Path, *arguments: object) -> dict[str, Any]:
    """The JSON document of a run by the reference."""
    command = [sys.executable, "-m", "eaglectl", "smoke", folder, "--target", target, "--engine", "reference"]
    command += ["--device", "cpu", "--json", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=environment
    )
    if ended.returncode not in (0, 1, 3):
        raise SystemExit(ended.stderr[-3000:])
    value: dict[str, Any] = json.loads(ended.stdout)
    return value


def measured(part: dict[str, Any]) -> dict[str, Any]:
    """A measurement as it is recorded."""
    accepted = [round(share["value"] * part["drafts"]) for share in part["per_position"]]
    return {
        "length": round(part["acceptance_length"], 4),
        "interval": [round(bound, 4) for bound in part["interval"]],
        "drafts": part["drafts"],
        "accepted": accepted,
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=["upgrade"], help="folders of the cache")
    options = parser.parse_args()
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
    known = {(row["case"], row["kind"], row["drafter"], row["against"], row["k"]) for row in rows}

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        OUT.write_text(json.dumps(rows, indent=1) + "\n")
        print(json.dumps(row)[:300], flush=True)

    for case in options.cases:
        for first, second, k in PAIRS:
            if (case, "ratio", first, second, k) in known:
                continue
            other = ("--against", place(cache, case, second), "--prompts", files["all"], "-k", k)
            found = compared(smoke(place(cache, case, first), target, *other))
            record({"case": case, "kind": "ratio", "drafter": first, "against": second, "k": k} | found)
        for name in ("before", "control", "3.1"):
            if (case, "drift", name, None, 7) in known:
                continue
            document = smoke(
                place(cache, case, name), target, "--probe", "drift", "--prompts", files["probed"], "-k", 3
            )
            conditions = {
                part["name"]: measured(part) | {"state_growth": [round(x, 2) for x in part["state_growth"]]}
                for part in document["probes"]["drift"]
            }
            head = {"case": case, "kind": "drift", "drafter": name, "against": None, "k": 7}
            record(head | {"conditions": conditions})


if __name__ == "__main__":
    main()
