"""Record which targets a release captures layers of: `python -m tools.scan.record ENGINE SOURCES...`.

SOURCES are wheels, or folders with what they hold; of llama.cpp, the folder
vendor/llama.cpp of an unpacked sdist of llama-cpp-python.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eaglectl.engines import data
from eaglectl.engines.behaviour import EvidenceKind, is_since, release_order
from eaglectl.engines.data import read
from tools.scan import sglang_sources, vllm_sources
from tools.scan.llamacpp_sources import targets as llamacpp_targets
from tools.scan.plan import DRAFTERS
from tools.scan.sources import Sources

DATA = Path(data.__file__).parent
RECORDS = DATA.parent.parent / "tests/engine/targets"
RULES = ("captures", "adds_one", "default", "language_model", "backend", "state", "last", "relays")
LLAMACPP = re.compile(r"llama_cpp_python-([\d.]+)/")
RUN = {"captured": True, "refused": False}
PARTS = {"vllm": vllm_sources.PARTS["targets"], "sglang": sglang_sources.PARTS["targets"]}
Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]


def main() -> None:
    """Add the releases of the arguments to an engine's data file, or replace them there, and what was run."""
    engine, *folders = sys.argv[1:]
    found = {**known(engine), **dict(tables(engine, [Path(folder) for folder in folders]))}
    write(engine, {release: found[release] for release in sorted(found, key=release_order)})


def known(engine: str) -> Tables:
    """The rows of each release that the data file has."""
    stated = json.loads((DATA / f"{engine}_targets.json").read_text())
    found: dict[str, dict[str, Mapping[str, Any]]] = {release: {} for release in stated.get("read", ())}
    for name, spans in stated.get("architectures", {}).items():
        for release in found:
            begun = [span for span in spans if is_since(span["from"], release)]
            if begun and begun[-1]["captures"] is not None:
                found[release][name] = {key: value for key, value in begun[-1].items() if key != "from"}
    return found


def releases_read(engine: str) -> tuple[str, ...]:
    """The releases whose sources were read, oldest first."""
    return tuple(read(f"{engine}_targets.json")["read"])


def target_evidence(engine: str, release: str, architecture: str) -> EvidenceKind:
    """How it is known what a release does with an architecture: it was run with such a target, or read."""
    stated = read(f"{engine}_targets.json")
    run = (*stated["run_in"].get(release, ()), *stated["refused_in"].get(release, ()))
    return "run" if architecture in run else "read"


def tables(engine: str, folders: list[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each release, with the row of each of its architectures."""
    for folder in folders:
        if engine == "llama.cpp":
            release = LLAMACPP.search(str(folder.resolve()))
            assert release, f"{folder}: not in the unpacked sdist of llama-cpp-python"
            yield release[1], without_drafters(llamacpp_targets(folder))
        else:
            sources = Sources(folder)
            yield sources.release, without_drafters(PARTS[engine](sources))


def records(engine: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """What the engine itself did with tiny targets, by release and architecture."""
    paths = sorted(RECORDS.glob(f"{engine}-*.json"))
    return {path.stem.removeprefix(f"{engine}-"): json.loads(path.read_text()) for path in paths}


def runs(engine: str, found: Tables) -> Mapping[str, list[str]]:
    """The registered architectures that each release was run with, as far as it started or refused them."""
    return {
        release: sorted(
            name for name, row in rows.items() if row["outcome"] in RUN and name in found[release]
        )
        for release, rows in records(engine).items()
    }


def refused(engine: str, found: Tables) -> Mapping[str, list[str]]:
    """The architectures that a release does not register, and refused when it was run with them."""
    return {
        release: sorted(
            name
            for name, row in rows.items()
            if row["outcome"] == "refused" and not any(name in table for table in found.values())
        )
        for release, rows in records(engine).items()
    }


def without_drafters(rows: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of targets."""
    return {name: row for name, row in rows.items() if not name.endswith(DRAFTERS)}


def rule(row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a row says of layers; None where the release has no such architecture."""
    return row and {key: row[key] for key in RULES if key in row}


def digest(table: Mapping[str, Mapping[str, Any]]) -> str:
    """A digest of the rules of one release's table."""
    rules = {name: rule(row) for name, row in sorted(table.items())}
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]


def write(engine: str, found: Tables) -> None:
    """Write the rows by architecture: what holds from a release on, until the next."""
    path = DATA / f"{engine}_targets.json"
    stated = json.loads(path.read_text())
    lines = []
    for name in sorted({name for table in found.values() for name in table}):
        spans = [json.dumps(span) for span in spans_of(name, found)]
        lines.append(f"  {json.dumps(name)}: [{', '.join(spans)}]")
    head = {key: value for key, value in stated.items() if key not in ("read", "architectures")}
    for key, rows in (("run_in", runs(engine, found)), ("refused_in", refused(engine, found))):
        head[key] = rows or stated.get(key, {})
    head["read"] = {release: digest(table) for release, table in found.items()}
    parts = [f" {json.dumps(key)}: {_written(value)}" for key, value in head.items()]
    listed = ",\n".join(lines)
    path.write_text("{\n" + ",\n".join(parts) + f',\n "architectures": {{\n{listed}\n }}\n}}\n')


def _written(value: Any) -> str:
    """A value in JSON, each of its own items on a line."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]" if value else "[]"
    if isinstance(value, dict) and len(value) > 2:
        return (
            "{\n"
            + ",\n".join(f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items())
            + "\n }"
        )
    return json.dumps(value)


def spans_of(name: str, found: Tables) -> Iterator[Mapping[str, Any]]:
    """The rows of one architecture, each with the release that it came with."""
    before: Mapping[str, Any] | None = None
    for release, table in found.items():
        row = table.get(name)
        if rule(row) != rule(before):
            yield {"from": release, **(row or {"captures": None, "source": "not in the registry"})}
        before = row


if __name__ == "__main__":
    main()
