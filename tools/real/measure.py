"""Record the acceptance of the real drafters: eaglectl's reference and vLLM on the test chats.

    python tools/real/measure.py [--engines reference vllm] [--drafters NAME=FOLDER ...]

Runs `eaglectl smoke` on fixtures/real/test.jsonl (40 chats, 64 new tokens, greedy, float32) at k = 3 and 5,
and writes fixtures/real/acceptance.json; what is in it already is kept, row by row.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from target import cache_folder, make_target

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures/real"
OUT = FIXTURES / "acceptance.json"
PYTHONS = {"reference": ROOT / ".venv/bin/python", "vllm": ROOT / ".venv-engine/bin/python"}


def smoke(
    folder: Path,
    target: Path,
    *options: object,
    engine: str = "reference",
    exit_codes: Sequence[int] = (0, 1),
) -> dict[str, Any]:
    """The JSON document of a run on a CPU with one thread, which must end in one of these exit codes."""
    python = os.environ.get(f"EAGLECTL_{engine.upper()}", PYTHONS[engine])
    command = [python, "-m", "eaglectl", "smoke", folder, "--target", target, "--run-in", engine, "--json"]
    command += ["--device", "cpu", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=environment
    )
    if ended.returncode not in exit_codes:
        raise SystemExit(ended.stderr[-3000:])
    value: dict[str, Any] = json.loads(ended.stdout)
    return value


def accepted(part: dict[str, Any]) -> list[int]:
    """Accepted draft tokens by position of a measurement in a document."""
    return [round(share["value"] * part["drafts"]) for share in part["per_position"]]


def row(name: str, engine: str, k: int, document: dict[str, Any]) -> dict[str, Any]:
    """What is recorded of a report."""
    version = "" if engine == "reference" else f" {document['engine']['version']}"
    return {
        "drafter": name,
        "engine": f"{engine}{version}",
        "k": k,
        "length": document["acceptance_length"],
        "interval": document["interval"],
        "drafts": document["drafts"],
        "accepted": accepted(document),
        "sets": {name: round(found["acceptance_length"], 4) for name, found in document["sets"].items()},
        "lossless": document["lossless"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", default=["reference", "vllm"], choices=PYTHONS)
    parser.add_argument("--drafters", nargs="+", default=["specforge", "speculators"])
    parser.add_argument("--k", nargs="+", type=int, default=[3, 5])
    options = parser.parse_args()
    target = make_target(cache_folder())
    rows = json.loads(OUT.read_text()) if OUT.exists() else []
    known = {(found["drafter"], found["engine"].split()[0], found["k"]) for found in rows}
    for engine in options.engines:
        for given in options.drafters:
            name, _, place = given.partition("=")
            for k in options.k:
                if (name, engine, k) in known:
                    continue
                folder, prompts = Path(place or FIXTURES / name), FIXTURES / "test.jsonl"
                document = smoke(folder, target, "-k", k, "--prompts", prompts, engine=engine)
                rows.append(row(name, engine, k, document))
                OUT.write_text(json.dumps(rows, indent=1) + "\n")
                print(f"{name:14} {rows[-1]['engine']:20} k={k} {rows[-1]['length']:.4f}", flush=True)


if __name__ == "__main__":
    main()
