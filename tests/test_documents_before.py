"""The JSON documents, exit codes and rules of commit 38637f1, held to as data: no key or rule may be lost.

`python -m tests.test_documents_before`, in a checkout of that commit, writes tests/documents_before.json.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import call

pytestmark = pytest.mark.slow
MODELOPT = ("-four-aux", "-fp8", "-fp8-kv", "-full-vocab", "-ids", "-ids-unsorted", "-two-layers")
PAGE = Path(__file__).with_name("documents_before.json")
TINY, TINY_31, TARGET = "fixtures/tiny/eagle3", "fixtures/tiny/eagle3.1", "fixtures/tiny/target"
PROMPTS = ("--prompts", "fixtures/tiny/prompts.jsonl", "--max-tokens", "16")
NO_ENGINES = ["--no-engines"]  # the default at that commit
FOLDERS = sorted(str(path.parent) for path in Path("fixtures/producers").glob("*/*/config.json"))


def calls() -> Iterator[tuple[str, ...]]:
    """Every call that is compared; OUT is a folder of the test."""
    for folder in FOLDERS:
        yield "inspect", folder
        yield "validate", folder, "--headers-only"
        yield "convert", folder, "--dry-run", "-o", "OUT/converted"
    yield "inspect", TINY, TINY_31, "--target", TARGET
    yield "validate", TINY, TINY_31, "--target", TARGET
    yield "convert", TINY, "--target", TARGET, "-o", "OUT/written"
    yield "verify", "OUT/written"
    yield "validate", "OUT/written", "--target", TARGET, "--engine", "vllm==0.32.0"
    yield "diff", TINY, "OUT/written", "--target", TARGET
    yield "diff", TINY, TINY_31, "--target", TARGET
    yield ("rules",)
    yield ("engines",)
    mla = "fixtures/producers/automodel/mla"
    yield "convert", mla, "--aux-layers", "2,4,5", "--dry-run", "-o", "OUT/absorbed"
    yield "inspect", "nowhere"
    yield "smoke", TINY, "--target", TARGET, "--run-in", "reference", *PROMPTS, "--probe", "drift"
    yield "smoke", TINY, "--target", TARGET, "--run-in", "reference", *PROMPTS, "--against", TINY_31


def shape(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a document as a path, with the type of its value."""
    yield path, "float" if type(document) is int else type(document).__name__
    if isinstance(document, dict) and path.split(".")[-1] not in FREE:
        for key, value in document.items():
            yield from shape(value, f"{path}.{key}")
    elif isinstance(document, list):
        for value in document:
            yield from shape(value, f"{path}[]")


# keys whose values are a config's, or mappings of names
FREE = ("config", "commands", "resolved", "arguments", "lowered", "scaling", "before", "after", "run_in")


def look(arguments: tuple[str, ...], out: Path) -> tuple[int, Any]:
    words = [word.replace("OUT", str(out)) for word in arguments]
    if arguments[0] == "validate" and "--engine" not in arguments:
        words += NO_ENGINES
    done = call(*words, "--json")
    return done.code, json.loads(done.out or done.err)


def record() -> dict[str, Any]:
    shapes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    codes, rules = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for arguments in calls():
            code, document = look(arguments, Path(folder))
            codes[" ".join(arguments)] = code
            for path, kind in shape(document):
                shapes[document["schema"]][path].add(kind)
            if arguments == ("rules",):
                rules = {rule["id"]: f"{rule['name']} {rule['severity']}" for rule in document["rules"]}
    documents = {
        name: {path: " ".join(sorted(kinds)) for path, kinds in sorted(paths.items())}
        for name, paths in sorted(shapes.items())
    }
    return {"exit_codes": codes, "rules": rules, "documents": documents}


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return record()


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(PAGE.read_text())
    return document


def test_documents_have_the_keys_of_before(now: dict[str, Any], before: dict[str, Any]) -> None:
    lost = [
        f"{name} {path}: {kinds}"
        for name, paths in before["documents"].items()
        for path, kinds in paths.items()
        if not set(kinds.split()) <= set(now["documents"].get(name, {}).get(path, "").split())
    ]
    assert lost == []


def test_rules_are_those_of_before(now: dict[str, Any], before: dict[str, Any]) -> None:
    assert {id: now["rules"].get(id) for id in before["rules"]} == before["rules"]


def test_calls_end_as_before(now: dict[str, Any], before: dict[str, Any]) -> None:
    """But where a guess became a question (2) or a doubt (3), of the producers that leave something open."""
    changed = {
        call: (code, now["exit_codes"][call])
        for call, code in before["exit_codes"].items()
        if now["exit_codes"][call] != code
    }
    assert set(changed.values()) <= {(0, 2), (0, 3)}
    doubted = {call.split()[1].removeprefix("fixtures/producers/") for call in changed}
    assert doubted <= OPEN


# what their files leave open: layers, their convention, rope or a switch
OPEN = {
    *(f"automodel/{name}" for name in ("eagle3.1", "gqa", "mla", "sidecar")),
    *(f"lightseekorg/{name}" for name in ("mla", "mla-eagle3.1")),
    *(f"modelopt/hf{name}" for name in ("", *MODELOPT)),
    *(f"sglang/{name}" for name in ("mla-absorbed", "two-layers")),
    *(f"specforge/{name}" for name in ("eagle3.1", "gqa-ids", "norm-output-false")),
    *(f"torchspec/{name}" for name in ("mla", "mla-deepseek-v3")),
}

if __name__ == "__main__":
    PAGE.write_text(json.dumps(record(), indent=1) + "\n")
