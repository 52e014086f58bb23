"""Record `eaglectl ready` on the real pair, in the reference and in the engines that run here.

    python tools/real/ready.py [--engines reference vllm sglang] [--cases default nested order speculators]

Each row is one call of `ready` on fixtures/real/test.jsonl (12 of its chats, 48 new tokens, k=3): what it
says of the stored files and of its conversion, the rounds that the engine itself counted, and what the call
took. fixtures/real/ready.json keeps the rows that are in it already.

The cases are SpecForge's drafter as it was written (no layer ids: the default), with its ids as TorchSpec
nests them, and trained on the same states in another order, which its nested ids state; and speculators'.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from measure import accepted
from target import cache_folder, make_target

from tests.stored_otherwise import Misread, fc_blocks

FIXTURES = ROOT / "fixtures/real"
OUT = FIXTURES / "ready.json"
PROMPTS, TOKENS = 12, 48
# the reference runs for the newest vLLM, which is not installed where it runs
ENGINES = {
    "reference": (".venv", ("--engine", "vllm==0.32.0")),
    "vllm": (".venv-engine", ("--engine", "vllm")),
    "sglang": (".venv-sglang", ("--engine", "sglang")),
}
CASES = ("default", "nested", "order", "speculators")
# outputs of layers, in the order of the columns of fc
NESTED = {"nested": [1, 14, 26], "order": [26, 1, 14]}


def stored(case: str, place: Path) -> Path:
    """The folder of a case as its trainer would have written it."""
    if case not in NESTED:
        return FIXTURES / ("specforge" if case == "default" else case)
    ids = NESTED[case]
    config: dict[str, Any] = {
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    }
    if case == "nested":  # TorchSpec's mark: without it the convention of the ids is a question
        config["_torchspec_version"] = "0.1.0"
    order = [sorted(ids).index(layer) for layer in ids]
    return Misread("", "", fc_blocks(*order), config).apply(FIXTURES / "specforge", place)


def ready(folder: Path, target: Path, engine: str, cache: Path) -> dict[str, Any]:
    """The document of one call, with its seconds, those of the processor, and its peak memory in MB."""
    venv, options = ENGINES[engine]
    python = os.environ.get(f"EAGLECTL_{engine.upper()}", ROOT / venv / "bin/python")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    if engine == "sglang":
        from tests.engine.sglang.settings import ARGUMENTS, HOOKED

        environment |= HOOKED | {"EAGLECTL_TEST": str(cache)}
        options = (*options, *(f"--engine-arg={key}={json.dumps(value)}" for key, value in ARGUMENTS.items()))
    command = [python, "-m", "eaglectl", "ready", folder, "--target", target, *options, "--json"]
    command += [
        "--prompts",
        FIXTURES / "test.jsonl",
        "--sample",
        PROMPTS,
        "--max-tokens",
        TOKENS,
        "--device=cpu",
    ]
    begin, out = time.perf_counter(), cache.with_name("out.json")
    with out.open("w") as file:
        process = subprocess.Popen([str(word) for word in command], stdout=file, env=environment)
        _, _, usage = os.wait4(process.pid, 0)
    if not out.stat().st_size:
        raise SystemExit(f"{folder.name} in {engine}: no document, see above")
    document: dict[str, Any] = json.loads(out.read_text())
    return document | {
        "wall": round(time.perf_counter() - begin),
        "cpu": round(usage.ru_utime + usage.ru_stime),
        "peak": round(usage.ru_maxrss / 1024),
    }


def side(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is recorded of the stored or of the converted files."""
    if part is None:
        return None
    run = part["acceptance"]
    kept = {name: part[name] for name in ("outcome", "reasons", "gap", "reading")}
    if run is None:
        return kept
    names = ("engine", "version", "acceptance_length", "interval", "drafts", "prompts")
    return kept | {name: run[name] for name in names} | {"accepted": accepted(run)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    options = parser.parse_args()
    target = make_target(cache_folder())
    rows = json.loads(OUT.read_text()) if OUT.exists() else []
    known = {(row["case"], row["engine"]) for row in rows}
    for engine in options.engines:
        for case in options.cases:
            if (case, engine) in known:
                continue
            with tempfile.TemporaryDirectory() as name:
                folder = stored(case, Path(name) / case)
                document = ready(folder, target, engine, Path(name) / "cache")
            (state,) = document["engines"]
            row = {"case": case, "engine": engine, "release": state["release"]}
            row |= {"verdict": document["verdict"], "gain": state["gain"]}
            row |= {"stored": side(state["stored"]), "converted": side(state["converted"])}
            row |= {name: document[name] for name in ("wall", "cpu", "peak")}
            row["line"] = document["line"].replace(str(folder), case).replace(str(target), "TARGET")
            rows.append(row)
            OUT.write_text(json.dumps(rows, indent=1) + "\n")
            print(f"{case:12} {engine:10} {row['line']}", flush=True)


if __name__ == "__main__":
    main()
