"""Rules on what is published with a drafter: bad cases, each with exactly its findings."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

import eaglectl
from eaglectl.judge.rule import AllowTable, Policy
from tests.builders import drafter_folder
from tests.validation.patches import Patch, add, exact, only

CARD = b"""---
license: apache-2.0  # ours
base_model:
  - example/target-8b
tags: [eagle3]
---
    vllm serve example/target-8b --speculative-config '{}'
"""
RECORD = {
    "schema": "eaglectl/provenance/1",
    "eagle": "3",
    "boundaries": [2, 4, 5],
    "layout": "vllm",
    "tensors": [{"name": "fc.weight", "action": "renamed", "from": ["model.fc.weight"]}],
}


def record(**changes: object) -> dict[str, bytes]:
    return {"eaglectl.json": json.dumps({**RECORD, **changes}).encode()}


def sums(**changes: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
        lines = [f"{digest}  {name}" for name, digest in (digests | changes).items() if digest]
        (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")

    return write


def allowed(why: str, finds: str = "", says: str = "", **lists: tuple[str, ...]) -> Patch:
    """The card, under a policy that allows these."""
    return add(why, finds, {"README.md": CARD}, says, given={"policy": Policy(allow=AllowTable(**lists))})


MIT = Policy(allow=AllowTable(licences=("mit",)))
REQUIRED = {"select": ["EGL901"], "policy": Policy(required=frozenset({"EGL901"}))}
WRONG, WEIGHTS = "0" * 64, "model.safetensors"
HEADERS = {"headers_only": True, "select": ["EGL904"]}
SGLANG = (
    "python -m sglang.launch_server --model-path a/b --speculative-algorithm EAGLE3"
    " --speculative-draft-model-path a/head --speculative-num-steps 4 --speculative-eagle-topk 1"
    " --speculative-num-draft-tokens 5"
)
VLLM = """vllm serve a/b --speculative-config='{"method": %s, "model": "a/h", "num_speculative_tokens": 4}'"""
DOTTED = "vllm serve a/b --speculative-config.method eagle3 --speculative_config.model a/head"
V0 = "vllm serve a/b --speculative-model a/head --num-speculative-tokens 3"
OLD, RIGHT = '"method": "eagle"', '"model": "h", "num_speculative_tokens": 3'
AWQ = f"{SGLANG} --quantization awq"


def launched(why: str, says: str, *commands: str) -> Patch:
    """A card with these commands, of which the rule on launch lines says this, if anything."""
    card = b"\n".join((CARD, *(command.encode() for command in commands)))
    return add(why, "EGL909" if says else "", {"README.md": card}, says)


CASES = (
    add("a good card", "", {"README.md": CARD}),
    add("a good record", "", record()),
    Patch("good checksums", "", also=sums()),
    Patch("no card", "", given=only("EGL9"), blind=("EGL902", "EGL903")),
    add("a record of an unknown kind", "EGL901", record(schema="other/1"), "other/1"),
    add("a record of another version", "EGL901", record(eagle="3.1"), "the files are EAGLE 3"),
    add("a record of other layers", "EGL901", record(boundaries=[2, 16, 29]), "but the files [2, 4, 5]"),
    add("other tensors", "EGL901", record(tensors=[{"name": "fc_norm.0.weight"}]), "fc_norm.0.weight"),
    add("a record of broken parts", "", record(tensors=[3], boundaries=None)),
    Patch("no record where one is required", "", given=REQUIRED, blind=("EGL901",)),
    add("a card without facts", "EGL902", {"README.md": b"vllm serve x"}, "and no base_model"),
    add("no licence", "EGL902", {"README.md": CARD.replace(b"license", b"licence")}, "no license in"),
    add(
        "no commands",
        "EGL903",
        {"README.md": CARD.partition(b"    vllm")[0]},
        "no launch command",
    ),
    launched("a card that launches as it should", "", SGLANG, VLLM % '"eagle3"'),
    launched("a command that no shell reads", "", "sglang 'x --speculative-algorithm EAGLE"),
    launched("SGLang's algorithm of EAGLE-1", "acceptance length is 1.00", SGLANG.replace("EAGLE3", "EAGLE")),
    launched("SGLang's short name", "algo NEXTN", SGLANG.replace("algorithm EAGLE3", "algo=NEXTN \\\n ")),
    launched("SGLang's draft tokens", "topk 1 are 5 draft tokens", SGLANG.replace("tokens 5", "tokens 4")),
    launched(
        "SGLang alone", "which names the drafter", SGLANG.replace("--speculative-draft-model-path a/head", "")
    ),
    launched("SGLang's drafter left out", "which names the drafter", SGLANG.replace(" a/head", "")),
    launched("vLLM's method of EAGLE-1", f'{OLD}, but this drafter\'s is "eagle3"', VLLM % '"eagle"'),
    launched("vLLM by dotted keys, without a number", "no num_speculative_tokens", DOTTED),
    launched("JSON over lines", OLD, "vllm serve a \\", "--speculative-config '{", OLD, "}' --port 1"),
    launched("one that is right", "", "vllm serve a/b --speculative-config '{", RIGHT, "}'"),
    launched("an apostrophe before a command", "", "don't", VLLM % '"eagle3"'),
    launched("apostrophes hide a paragraph", OLD, "don't --speculative-algorithm", "", VLLM % '"eagle"'),
    launched("vLLM's options of its V0 engine", "vLLM has no --speculative-model", V0),
    launched("a wrong key", "vLLM 0.32.0 refuses", (VLLM % '"eagle3"').replace("model", "draft_model")),
    launched("short options", OLD, "vllm serve a/b --spec-method eagle --spec-model a/head --spec-tokens 3"),
    launched("llama.cpp's options", "", "llama-server -m a --spec-type draft-eagle3"),
    launched("SGLang's other name of the drafter", "", SGLANG.replace("-model-path a/h", "-model a/h")),
    launched("an option it has not", "has no --spec", f"{SGLANG} --speculative-draft-sliding-window 9"),
    launched("a quantisation taken over", "to the drafter too, whose weights", AWQ),
    launched("one that is not", "", f"{AWQ} --speculative-draft-model-quantization unquant"),
    Patch("a wrong digest", "EGL904", also=sums(**{"config.json": WRONG}), says="config.json has SHA-256"),
    Patch("weights", "EGL904", also=sums(**{WEIGHTS: WRONG}), says="model.safetensors has SHA-256"),
    Patch("closed weights", "", also=sums(**{WEIGHTS: WRONG}), given=HEADERS, blind=("EGL904",)),
    Patch("beside closed weights", "EGL904", also=sums(**{"config.json": WRONG}), given=HEADERS),
    Patch("weights without a digest", "EGL904", also=sums(**{WEIGHTS: ""}), says="not in SHA256SUMS"),
    Patch(
        "a digest without a file",
        "EGL904",
        also=sums(**{"tokenizer.json": WRONG}),
        says="which does not exist",
    ),
    add("checksums that are none", "EGL904 EGL904", {"SHA256SUMS": b"hello\n"}, "line 1"),
    add("a home folder", "EGL905", {"README.md": CARD + b"from /home/alice/runs/7\n"}, "/home/alice"),
    add("a home folder on Windows", "EGL905", {"NOTICE.txt": b'"C:\\\\Users\\\\alice\\\\x"'}, "alice"),
    add("a home of root", "EGL905", {"generation_config.json": b'{"_from": "/root/exp3"}'}, "/root/exp3"),
    add("anybody's", "", {"README.md": CARD + b"see /home/user/models and https://example.org/home/alice\n"}),
    add("untrained", "EGL906", record(upgrade={"needs_finetune": True}), "untrained initialisation"),
    allowed("a licence that is allowed", licences=("Apache-2.0", "mit")),
    allowed("another licence", "EGL907", "not among mit", licences=("mit",)),
    Patch("no licence at all", "EGL907", given={"policy": MIT}, says="names no license"),
    allowed("a base model that is allowed", base_models=("example/*",)),
    allowed("another base", "EGL908", "example/target-8b", base_models=("meta/*",)),
)

test_a_release_gives_exactly_its_findings = exact(CASES)


@pytest.mark.parametrize("layout", ["vllm", "sglang", "speculators", "modelopt"])
def test_what_convert_writes_has_notes_alone(layout: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    eaglectl.convert(drafter_folder(tmp_path), out, layout=layout, target_name="example/target")
    found = eaglectl.validate(out, select=["EGL0", "EGL9"]).findings
    assert {(one.rule.id, one.severity) for one in found} == {("EGL902", "note"), ("EGL903", "note")}


def test_the_command_in_the_place_of_a_wrong_one_keeps_its_target_drafter_and_count(tmp_path: Path) -> None:
    (finding,) = launched("", "", SGLANG.replace("EAGLE3", "EAGLE")).report(tmp_path).findings
    assert finding.fix == f"write `{SGLANG}`."
