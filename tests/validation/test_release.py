"""Rules on what is published with a drafter: every bad case is a good drafter, a patch, and exactly the
findings it must give.
"""

import hashlib
import json
from pathlib import Path

import pytest

import eaglectl
from eaglectl.judge.rule import Policy
from eaglectl.operations.converting import ConvertOptions
from tests.builders import drafter_folder
from tests.validation.patches import Patch, check

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


def sums(**changes: str) -> object:
    def write(folder: Path) -> None:
        digests = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())
        }
        lines = [f"{digest}  {name}" for name, digest in {**digests, **changes}.items() if digest]
        (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")

    return write


def allowed(**lists: tuple[str, ...]) -> dict[str, Policy]:
    return {"policy": Policy(allowed={name.replace("_", "-"): patterns for name, patterns in lists.items()})}


WRONG = "0" * 64
HEADERS = {"headers_only": True, "select": ["EGL904"]}
SGLANG = (
    "python -m sglang.launch_server --model-path a/b --speculative-algorithm EAGLE3"
    " --speculative-draft-model-path a/head --speculative-num-steps 4 --speculative-eagle-topk 1"
    " --speculative-num-draft-tokens 5"
)
VLLM = (
    """vllm serve a/b --speculative-config='{"method": %s, "model": "a/head", "num_speculative_tokens": 4}'"""
)


def launch(*commands: str) -> dict[str, bytes]:
    """A card with these commands."""
    return {"README.md": b"\n".join((CARD, *(command.encode() for command in commands)))}


CASES = (
    Patch("a good card", (), files={"README.md": CARD}),
    Patch("a good record", (), files=record()),
    Patch("good checksums", (), also=sums()),  # type: ignore[arg-type]
    Patch("no card", (), given={"select": ["EGL9"]}, blind=("EGL902", "EGL903")),
    Patch("a record of an unknown kind", ("EGL901",), files=record(schema="other/1"), says="other/1"),
    Patch(
        "a record of another version",
        ("EGL901",),
        files=record(eagle="3.1"),
        says="EAGLE '3.1' and the files are EAGLE 3",
    ),
    Patch(
        "a record of other layers",
        ("EGL901",),
        files=record(boundaries=[2, 16, 29]),
        says="boundaries [2, 16, 29] and the files [2, 4, 5]",
    ),
    Patch(
        "a record of other tensors",
        ("EGL901",),
        files=record(tensors=[{"name": "fc_norm.0.weight"}]),
        says="fc_norm.0.weight",
    ),
    Patch("a record of broken parts", (), files=record(tensors=[3], boundaries=None)),
    Patch(
        "no record where one is required",
        (),
        given={"select": ["EGL901"], "policy": Policy(required=frozenset({"EGL901"}))},
        blind=("EGL901",),
    ),
    Patch(
        "a card without facts",
        ("EGL902",),
        files={"README.md": b"vllm serve x"},
        says="no license and no base_model",
    ),
    Patch(
        "a card without a licence",
        ("EGL902",),
        files={"README.md": CARD.replace(b"license", b"licence")},
        says="no license in",
    ),
    Patch(
        "a card without commands",
        ("EGL903",),
        files={"README.md": CARD.replace(b"vllm serve", b"run").replace(b"--spec", b"--")},
        says="no launch command",
    ),
    Patch("a card that launches as it should", (), files=launch(SGLANG, VLLM % '"eagle3"')),
    Patch("a command that no shell reads", (), files=launch("sglang 'x --speculative-algorithm EAGLE")),
    Patch(
        "SGLang's algorithm of EAGLE-1",
        ("EGL909",),
        files=launch(SGLANG.replace("EAGLE3", "EAGLE")),
        says="the acceptance length is 1.00",
    ),
    Patch(
        "SGLang's short name of it, over two lines",
        ("EGL909",),
        files=launch(SGLANG.replace("algorithm EAGLE3", "algo=NEXTN \\\n ")),
        says="--speculative-algo NEXTN",
    ),
    Patch(
        "SGLang's draft tokens that its steps do not make",
        ("EGL909",),
        files=launch(SGLANG.replace("tokens 5", "tokens 4")),
        says="4 steps with --speculative-eagle-topk 1 are 5 draft tokens",
    ),
    Patch(
        "SGLang without the drafter",
        ("EGL909",),
        files=launch(SGLANG.replace("--speculative-draft-model-path a/head", "")),
        says="names no drafter",
    ),
    Patch(
        "vLLM's method of EAGLE-1",
        ("EGL909",),
        files=launch(VLLM % '"eagle"'),
        says='"method": "eagle", and this drafter\'s is "eagle3"',
    ),
    Patch(
        "vLLM by dotted keys, without a number",
        ("EGL909",),
        files=launch("vllm serve a/b --speculative-config.method eagle3 --speculative_config.model a/head"),
        says="no num_speculative_tokens",
    ),
    Patch(
        "vLLM's options over the lines of a JSON object",
        ("EGL909",),
        files=launch("vllm serve a/b \\", "  --speculative-config '{", '  "method": "eagle"', "}' --port 1"),
        says='"method": "eagle"',
    ),
    Patch(
        "a JSON object over several lines that is right",
        (),
        files=launch(
            "vllm serve a/b --speculative-config '{", '"model": "h", "num_speculative_tokens": 3', "}'"
        ),
    ),
    Patch("an apostrophe before a command", (), files=launch("don't", VLLM % '"eagle3"')),
    Patch(
        "an apostrophe beside an option hides its paragraph and no more",
        ("EGL909",),
        files=launch("don't --speculative-algorithm", "", VLLM % '"eagle"'),
        says='"method": "eagle"',
    ),
    Patch(
        "vLLM's options of its V0 engine",
        ("EGL909",),
        files=launch("vllm serve a/b --speculative-model a/head --num-speculative-tokens 3"),
        says="vLLM has no --speculative-model",
    ),
    Patch(
        "a key that vLLM refuses",
        ("EGL909",),
        files=launch((VLLM % '"eagle3"').replace('"model"', '"draft_model"')),
        says='has "draft_model", which vLLM 0.32.0 refuses',
    ),
    Patch(
        "vLLM's short options",
        ("EGL909",),
        files=launch("vllm serve a/b --spec-method eagle --spec-model a/head --spec-tokens 3"),
        says='"method": "eagle"',
    ),
    Patch("llama.cpp's options", (), files=launch("llama-server -m a --spec-type draft-eagle3")),
    Patch(
        "SGLang's other name of the drafter",
        (),
        files=launch(SGLANG.replace("-model-path a/h", "-model a/h")),
    ),
    Patch(
        "an option that SGLang has not",
        ("EGL909",),
        files=launch(f"{SGLANG} --speculative-draft-sliding-window 2048"),
        says="has no --speculative-draft-sliding-window",
    ),
    Patch(
        "a quantisation that the drafter takes over",
        ("EGL909",),
        files=launch(f"{SGLANG} --quantization awq"),
        says="--quantization awq is taken over by the drafter",
    ),
    Patch(
        "a quantisation that it does not",
        (),
        files=launch(f"{SGLANG} --quantization awq --speculative-draft-model-quantization unquant"),
    ),
    Patch("a wrong digest", ("EGL904",), also=sums(**{"config.json": WRONG}), says="config.json has SHA-256"),  # type: ignore[arg-type]
    Patch(
        "a wrong digest of weights",
        ("EGL904",),
        also=sums(**{"model.safetensors": WRONG}),
        says="model.safetensors has SHA-256",
    ),  # type: ignore[arg-type]
    Patch(
        "a wrong digest of closed weights",
        (),
        also=sums(**{"model.safetensors": WRONG}),
        given=HEADERS,
        blind=("EGL904",),
    ),  # type: ignore[arg-type]
    Patch(
        "a wrong digest beside closed weights",
        ("EGL904",),
        also=sums(**{"config.json": WRONG}),
        given=HEADERS,
    ),  # type: ignore[arg-type]
    Patch(
        "weights without a digest",
        ("EGL904",),
        also=sums(**{"model.safetensors": ""}),
        says="not in SHA256SUMS",
    ),  # type: ignore[arg-type]
    Patch(
        "a digest without a file", ("EGL904",), also=sums(**{"tokenizer.json": WRONG}), says="no such file"
    ),  # type: ignore[arg-type]
    Patch("checksums that are none", ("EGL904", "EGL904"), files={"SHA256SUMS": b"hello\n"}, says="line 1"),
    Patch(
        "a home folder",
        ("EGL905",),
        files={"README.md": CARD + b"from /home/alice/runs/7\n"},
        says="/home/alice",
    ),
    Patch(
        "a home folder on Windows",
        ("EGL905",),
        files={"NOTICE.txt": b'"C:\\\\Users\\\\alice\\\\x"'},
        says="alice",
    ),
    Patch(
        "a home of root",
        ("EGL905",),
        files={"generation_config.json": b'{"_from": "/root/exp3"}'},
        says="/root/exp3",
    ),
    Patch(
        "anybody's home folder",
        (),
        files={"README.md": CARD + b"see /home/user/models and https://example.org/home/alice\n"},
    ),
    Patch(
        "an untrained start",
        ("EGL906",),
        files=record(upgrade={"fc_norm": "ones", "needs_finetune": True}),
        says="untrained start",
    ),
    Patch(
        "a licence that is allowed",
        (),
        files={"README.md": CARD},
        given=allowed(licences=("Apache-2.0", "mit")),
    ),
    Patch(
        "a licence that is not allowed",
        ("EGL907",),
        files={"README.md": CARD},
        given=allowed(licences=("mit",)),
        says="apache-2.0 is not among mit",
    ),
    Patch(
        "no licence where some are allowed",
        ("EGL907",),
        given=allowed(licences=("mit",)),
        says="no license is named",
    ),
    Patch(
        "a base model that is allowed",
        (),
        files={"README.md": CARD},
        given=allowed(base_models=("example/*",)),
    ),
    Patch(
        "a base model that is not allowed",
        ("EGL908",),
        files={"README.md": CARD},
        given=allowed(base_models=("meta/*",)),
        says="example/target-8b",
    ),
)


@pytest.mark.parametrize("patch", CASES, ids=lambda patch: patch.why)
def test_a_release_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


@pytest.mark.parametrize("layout", ["vllm", "sglang", "speculators", "modelopt"])
def test_what_convert_writes_has_notes_alone(layout: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    eaglectl.convert(
        str(drafter_folder(tmp_path)), str(out), ConvertOptions(layout=layout, target_name="example/target")
    )
    report = eaglectl.validate(str(out), eaglectl.ValidateOptions(select=["EGL0", "EGL9"]))
    assert {(one.rule.id, one.severity) for one in report.findings} == {
        ("EGL902", "note"),
        ("EGL903", "note"),
    }


def test_the_command_in_the_place_of_a_wrong_one_keeps_its_target_drafter_and_count(tmp_path: Path) -> None:
    patch = Patch("", (), files=launch(SGLANG.replace("EAGLE3", "EAGLE")), given={"select": ["EGL909"]})
    (finding,) = patch.report(tmp_path).findings
    assert finding.fix == f"write `{SGLANG}`."
