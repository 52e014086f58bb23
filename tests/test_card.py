"""The card that `upload` makes: its block is eaglectl's, all else is the user's, byte for byte."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.files.front_matter import front_matter
from eaglectl.publish.card import BEGIN, END
from tests.builders import (
    ABSENT,
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    target_of,
    write_record,
    write_safetensors,
)
from tests.cards import ANSWERS, answers, card, matter, record, release, smoke_file
from tests.conftest import FIXTURES

TAGS = ["eagle3", "speculative-decoding", "draft-model", "vllm", "sglang", "arxiv:2503.01840"]
MADE = {
    "license": "apache-2.0",
    "base_model": "example/target-8b",
    "library_name": "vllm",
    "pipeline_tag": "text-generation",
    "tags": TAGS,
}
DRY = ("org/drafter", "--dry-run")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path)


def test_a_card_is_made_where_there_is_none(folder: Path) -> None:
    text = card(folder)
    assert matter(text) == MADE
    assert "# drafter" in text and "| aux layers | 2, 4, 5 (" in text
    assert text.count("vllm serve") == text.count("sglang.launch_server") == 1
    assert '"model": "org/drafter"' in text
    assert not (folder / "README.md").exists()


def test_what_the_user_wrote_stays_byte_for_byte(folder: Path) -> None:
    stated = (
        "---\nlicense: apache-2.0  # ours\nlibrary_name: other\ntags: [mine]\nbase_model:\n  -"
        " example/target-8b\n"
    )
    text = card(folder, f"{stated}---\n# Ours\n\ntext  \nwithout an end".encode())
    assert text.startswith(f"{stated}pipeline_tag: text-generation\n---\n# Ours\n")
    assert f"---\n# Ours\n\ntext  \nwithout an end\n\n{BEGIN}" in text
    assert "vllm serve example/target-8b" in text


def test_only_the_keys_between_the_first_two_lines_of_dashes_are_facts() -> None:
    named, two = {"license": ["mit"]}, {"base_model": ["org/a", "org/b"]}
    for text, facts in (
        ("---\r\nlicense: 'mit'\r\ntags:\r\n---\r\n", {**named, "tags": []}),
        ('---\nbase_model: [org/a, "org/b"] # two\n---', two),
        ("---\nbase_model:\n- org/a\n- org/b # the target\n---\n", two),
        ("---\nlicense: mit\n---\nlicense: other\n", named),
        *((text, {}) for text in ("---\n- a\n---\n", "---\nlicense: mit\n", "license: mit\n", "")),
        ("\n---\nlicense: mit\n---\n", {}),
    ):
        assert front_matter(text) == facts, text


def test_only_the_block_is_written_again(folder: Path) -> None:
    first = card(folder, b"# Ours\n\nbefore\n")
    edited = first.replace("before", "changed").replace("## The drafter", "## Spoiled") + "\nafter\n"
    assert card(folder, edited.encode()) == first.replace("before", "changed") + "\nafter\n"
    windows = card(folder, b"---\r\nlicense: mit\r\n---\r\n# Ours\r\n")
    assert windows.count("\n") == windows.count("\r\n") and matter(windows)["tags"] == TAGS


@pytest.mark.parametrize(
    "line",
    [
        "license: [",
        "date: 2026-02-30",
        "date: !!timestamp x",
        "size: !!int x",
        "size: !!int ''",
        "is_open: !!bool x",
        f"size: {'9' * 5000}",
        f"a: {'[' * 1000}{']' * 1000}",
        f"a: {'{a: ' * 1000}",
        "- " * 1000,
        "\n".join(f"{' ' * depth}a:" for depth in range(1000)),
    ],
)
def test_front_matter_that_the_hub_could_not_read_is_not_published(folder: Path, line: str) -> None:
    (folder / "README.md").write_text(f"---\n{line}\n---\n# Ours\n")
    done = call("upload", folder, *DRY, *ANSWERS)
    assert done.code == 1 and "README.md: the Hub cannot read its front matter: " in done.err


@pytest.mark.parametrize(
    "text", [f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", "---\nlicense: mit\n"]
)
def test_broken_marks_are_told_and_not_guessed(folder: Path, text: str) -> None:
    (folder / "README.md").write_text(text)
    done = call("upload", folder, *DRY)
    assert done.code == 1 and "README.md" in done.err


def gate_row(k: int, before: float, after: float, ratio: float, low: float, high: float) -> dict[str, Any]:
    lengths = {"acceptance_length_before": before, "acceptance_length": after}
    return {"k": k, **lengths, "ratio": ratio, "interval": [low, high]}


GATE = {
    "rows": [gate_row(3, 2.5, 2.45, 0.98, 0.975, 0.99), gate_row(7, 3.0, 3.1, 1.0333, 1.01, 1.05)],
    **{"prompts": 40, "tolerance": 0.97, "is_passed": True},
    **{"engine": "torch 2.13", "device": "cuda", "dtype": "bfloat16"},
}
UPGRADE = {
    "fc_norm": "refit",
    "norm_output": "absorbed",
    "is_exact": False,
    "refit": {"strength": 0.01, "relative_residual": 0.084},
    "calibration": {"tokens": 123456},
}


def recorded(folder: Path, **parts: Any) -> None:
    """An eaglectl.json with these parts."""
    known = {"schema": "eaglectl/provenance/1", "eagle": "3", "boundaries": [2, 4, 5], "tensors": []}
    write_record(folder, **{**known, **parts})


NO_GATE = {"fc_norm": "calibrated", "norm_output": "flag", "is_exact": True}
# what a record holds, what the card says of it, and what it does not say
RECORDS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "measured": (
        {"gate": GATE, "upgrade": UPGRADE},
        (
            "Acceptance length: tokens per step of the target",
            "| 3 | 2.500 | 2.450 | 0.980 [0.975, 0.990] |\n| 7 | 3.000 | 3.100 | 1.033 [1.010, 1.050] |",
            "same 40 prompts, none of them from calibration (torch 2.13, cuda, bfloat16); the ratio's lower",
            "| fc_norm | on: every state is divided by its RMS, and fc is refit to the normed states (8.4%",
            "| norm_output | on: the norm's weights moved into lm_head |",
            "| calibrated on | 123,456 tokens of prompts and the target's own answers |",
        ),
        ("| acceptance | not compared", "Not trained"),
    ),
    "not measured": (
        {"gate": None, "upgrade": NO_GATE},
        (
            "| acceptance | not compared with the source's (`--no-gate`) |",
            "| norm_output | on; no weight changed; the function is unchanged |",
            "| calibrated on | nothing |",
        ),
        ("## Acceptance",),
    ),
    "measured before the bytes moved": (
        {"previous": {"previous": {"upgrade": UPGRADE, "gate": GATE}}},
        ("## How it became EAGLE-3.1", "| 3 | 2.500 | 2.450 |", "before it was rewritten in this layout"),
        (),
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_what_a_gate_measured_comes_with_what_it_means(folder: Path, case: str) -> None:
    parts, shown, hidden = RECORDS[case]
    recorded(folder, **parts)
    text = card(folder)
    assert [words for words in shown if words not in text] == []
    assert [words for words in hidden if words in text] == []


@pytest.mark.parametrize("depth", [0, 2])
def test_an_untrained_start_is_not_published_unless_a_policy_says_so(folder: Path, depth: int) -> None:
    start = {"fc_norm": "ones", "norm_output": "flag", "needs_finetune": True}
    parts: dict[str, Any] = {"upgrade": start, "gate": None}
    for _ in range(depth):
        parts = {"previous": parts}
    recorded(folder, **parts)
    done = call("upload", folder, *DRY)
    assert done.code == 1 and "EGL906" in done.err
    (folder.parent / "release.toml").write_text('[severities]\nEGL906 = "note"\n')
    text = card(folder, policy=str(folder.parent / "release.toml"))
    assert "> **Not trained: do not serve it.**" in text
    assert text.index("Not trained") < text.index("## Serving")


@pytest.mark.parametrize(
    "parts",
    [
        {"gate": {}},
        {"gate": {**GATE, "rows": [{**gate_row(3, 2.5, 2.45, 0.98, 0.975, 0.99), "ratio": "1"}]}},
        {"gate": {**GATE, "rows": [{**gate_row(3, 2.5, 2.45, 0.98, 0.975, 0.99), "interval": [1.0]}]}},
        {"gate": {**GATE, "prompts": None}},
        {"upgrade": {**UPGRADE, "fc_norm": []}},
        {"upgrade": {**UPGRADE, "calibration": {"tokens": "many"}}},
    ],
)
def test_a_record_that_eaglectl_did_not_write_is_told(folder: Path, parts: dict[str, Any]) -> None:
    recorded(folder, **parts)
    done = call("upload", folder, *DRY)
    assert done.code == 3 and "eaglectl.json cannot be used" in done.err and "Traceback" not in done.err


def test_what_smoke_measured_is_shown_and_recorded(folder: Path, tmp_path: Path) -> None:
    text = card(folder, smoke=smoke_file(tmp_path))
    about = (
        "Measured with vllm 0.32.0 on cuda in bfloat16, 20 prompts, 400 drafts of k=3 tokens, greedy. Every"
    )
    assert f"{about} output equals plain decoding." in text
    assert "| all | 20 | 2.310 [2.200, 2.400] | 70.0%, 40.0% |" in text
    assert "This shows what this release does. Acceptance differs with prompts" in text
    assert "Few prompts" not in text and "Throughput" not in text
    kept = record(folder, smoke=smoke_file(tmp_path))["published"]["smoke"]
    assert (kept["acceptance_length"], kept["engine"]["version"]) == (2.31, "0.32.0")
    assert "resolved" not in kept["engine"] and "source" not in kept


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema": "other"}, 2),
        ({"verdict": "fail"}, 2),
        ({"k": None}, 3),
        (None, 3),
        ({"acceptance_length": "2.31"}, 3),
        ({"per_position": [{"value": float("nan"), "interval": [0, 1]}]}, 3),
        ({"engine": "vllm"}, 3),
        ({"acceptance_length": 10**400}, 3),
        ({"temperature": "hot"}, 3),
        ({"speed": {"text": "x"}}, 3),
        ({"files": None}, 3),
        ({"files": {}}, 1),
        *(({key: ABSENT}, 3) for key in ("verdict", "seed", "prompts_digest", "engine")),
    ],
)
def test_a_document_that_is_no_good_measurement_is_told(
    folder: Path, tmp_path: Path, change: dict[str, Any] | None, code: int
) -> None:
    path = smoke_with(tmp_path, **(change or {}))
    if change is None:
        path.write_text("{")
    done = call("upload", folder, *DRY, "--smoke", path)
    assert done.code == code, done
    for key, value in (change or {}).items():
        assert value is not ABSENT or f"has no {key}; write it again by" in done.err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_was_measured_of_other_files_is_not_published(folder: Path, tmp_path: Path, name: str) -> None:
    path = smoke_file(tmp_path)
    if name == "config.json":
        (folder / name).write_text(json.dumps(drafter_config(_note="another")))
    else:
        write_safetensors(folder / name, drafter_tensors(), {"format": "pt", "run": "2"})
    done = call("upload", folder, *DRY, "--smoke", path)
    assert done.code == 1 and f"had another {name}" in done.err
    assert f"run `eaglectl smoke {folder} --json" in done.err


def measured(prompts: int, length: float) -> dict[str, Any]:
    interval = {"acceptance_length": length, "interval": [length - 0.1, length + 0.1]}
    per_position = [{"value": 0.5, "interval": [0.4, 0.6]}]
    return {**interval, "per_position": per_position, "drafts": 200, "tokens": 500, "prompts": prompts}


def smoke_with(folder: Path, **changes: Any) -> Path:
    path = smoke_file(folder)
    document = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not ABSENT}))
    return path


SECONDS = {"drafted": 2.0, "plain": 5.0, "meaning": "one prompt after the other"}
SPEED = {"text": "2.03x at 1, 1.71x at 4", "how": "vLLM 0.32.0 with CUDA graphs", "repeats": 5}
SPEED |= {"device": "cuda", "card": "NVIDIA H200"}


def test_acceptance_is_shown_by_set_of_prompts_and_with_its_speed(folder: Path, tmp_path: Path) -> None:
    sets = {"code": measured(8, 2.9), "a | b": measured(12, 1.9)}
    path = smoke_with(tmp_path, sets=sets, tokens=1000, seconds=SECONDS, speed=SPEED)
    text = card(folder, smoke=path)
    rows = [line for line in text.splitlines() if line.endswith("50.0% |")]
    assert rows[0] == "| code | 8 | 2.900 [2.800, 3.000] | 50.0% |" and rows[1].startswith("| a \\| b | 12 |")
    speed = "**2.03x at 1, 1.71x at 4** (median of 5 repeats, NVIDIA H200; vLLM 0.32.0 with CUDA graphs)."
    assert f"Tokens/s with the drafter over those without, by requests at a time: {speed}\n" in text
    kept = record(folder, smoke=path)["published"]["smoke"]
    assert (kept["sets"], kept["seconds"], kept["speed"]) == (sets, SECONDS, SPEED)


def test_few_prompts_are_told_and_a_speed_of_a_cpu_is_not_on_a_card(folder: Path, tmp_path: Path) -> None:
    few = "only 15 prompts were measured: under 16, an interval says little about other prompts"
    for change in ({"device": "cpu"}, {"text": ""}):
        text = card(folder, smoke=smoke_with(tmp_path, prompts=15, speed={**SPEED, **change}))
        assert f"> **Few prompts:** {few}." in text and "okens/s" not in text


def test_what_was_not_compared_is_told_on_the_card(folder: Path, tmp_path: Path) -> None:
    target = target_of(tmp_path / "target")
    gap = "was not available when this was published"
    assert gap in card(folder) and gap not in card(folder, target=str(target))
    # of two targets that the files name, the other one is here
    (folder / "config.json").write_text(json.dumps(drafter_config(target_model_name_or_path="target")))
    assert gap in card(folder)


@pytest.mark.parametrize("name", ["specforge/eagle3.1", "modelopt/hf"])
def test_what_could_not_be_judged_is_not_published(name: str) -> None:
    done = call("upload", FIXTURES / "producers" / name, *DRY, *ANSWERS)
    assert done.code == 3 and "could not be judged, and nothing was sent" in done.err


@pytest.mark.parametrize(
    ("options", "needs"),
    [((), ("--license", "--base-model")), (ANSWERS[:2], ("--base-model",)), (ANSWERS[2:], ("--license",))],
)
def test_a_licence_and_a_target_are_asked_for(
    folder: Path, options: tuple[str, ...], needs: tuple[str, ...]
) -> None:
    done = call("upload", folder, *DRY, *options)
    assert (done.code, done.out) == (2, "")
    assert {option for option in ("--license", "--base-model") if option in done.err} == {*needs}
    (folder / "README.md").write_text("---\nlicense:\nbase_model: example/target-8b\n---\n")
    if not options:
        assert "README.md has license without a value" in call("upload", folder, *DRY).err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--license", "mit"), "--license mit and README.md (apache-2.0) differ"),
        (("--base-model", "other/x"), "--base-model other/x and README.md (example/target-8b) differ"),
        (("--license", "Apache License\nx: y"), "an identifier was expected"),
        (("--base-model", "/models/target"), "org/name on the Hub was expected"),
    ],
)
def test_answers_that_cannot_be_are_usage(folder: Path, options: tuple[str, str], says: str) -> None:
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nbase_model: example/target-8b\n---\n")
    done = call("upload", folder, *DRY, *options)
    assert done.code == 2 and says in done.err


def test_the_training_is_on_the_card_as_its_file_states_it(folder: Path) -> None:
    from huggingface_hub import ModelCard

    text = card(
        folder, card=eaglectl.CardAnswers("mit", "example/target-8b", FIXTURES / "cards/training.json")
    )
    data = ModelCard(text).data
    assert data.datasets == ["HuggingFaceH4/ultrachat_200k"]
    assert data.language == ["en", "no"] and data.license == "mit"
    assert (
        "| data | [HuggingFaceH4/ultrachat_200k](https://huggingface.co/datasets/HuggingFaceH4/ultra" in text
    )
    assert " (split train\\_sft, 200,000 samples), in-house support chats (12,0" in text
    assert "| answers | written by the target for the prompts of the data |" in text
    assert "| learning rate | 0.0001 |" in text and "| trained with | SpecForge 0.2 |" in text


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"schema": "other"}, 2, "eaglectl/training/1"),
        ({"epochs": 0}, 2, "epochs: 0 is less than"),
        ({"datasets": [{"name": "a", "size": 3}]}, 2, "datasets[0]"),
        ({"datasets": [{"split": "a"}]}, 2, "'name' is a required property"),
        ({"unknown": 1}, 2, "'unknown' was unexpected"),
        (None, 3, "not valid JSON"),
    ],
)
def test_a_bad_file_on_the_training_is_told(
    folder: Path, tmp_path: Path, change: dict[str, Any] | None, code: int, says: str
) -> None:
    path = tmp_path / "training.json"
    good = json.loads((FIXTURES / "cards/training.json").read_text())
    path.write_text("{" if change is None else json.dumps({**good, **change}))
    done = call("upload", folder, *DRY, "--training", path, *ANSWERS)
    assert done.code == code and says in done.err, done.err


EVIL = "x\n# Mine <b>y</b> [l](http://evil) | `c`"


def test_words_of_a_training_file_put_no_markup_into_the_card(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "training.json"
    document = {"datasets": [{"name": EVIL, "split": EVIL}], "method": EVIL, "framework": EVIL}
    path.write_text(json.dumps({"schema": "eaglectl/training/1", **document}))
    text = card(folder, card=eaglectl.CardAnswers("mit", "example/target-8b", path))
    assert "<b>" not in text and "\n# Mine" not in text and "datasets" not in matter(text)
    assert text.count("x\\\\n# Mine &lt;b&gt;y&lt;/b&gt;") == 4


NO_REPOSITORIES = [
    "a/b\nlicense: mit\ninjected: yes",
    "a/b\n---\n# Mine\n<script>alert(1)</script>",
    "a/b](http://evil) <img src=x onerror=alert(1)>",
    "a/b\n```\n# out of the fence",
    "<!-- eaglectl: end -->/x",
    "'; rm -rf ~ #/x",
    "a/b\u202e\u200b",
    "a/" + "b" * 1_000_000,
]


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", NO_REPOSITORIES, ids=range(len(NO_REPOSITORIES)))
def test_a_verifiers_name_that_is_no_repository_is_in_no_card(name: str, tmp_path: Path) -> None:
    config = drafter_config(speculators_config={"verifier": {"name_or_path": name}})
    folder = drafter_folder(tmp_path, config=config)
    text = card(folder)
    assert matter(text) == MADE
    assert "with [example/target-8b](" in text and "vllm serve example/target-8b " in text
    assert call("convert", folder, "-o", tmp_path / "out").code == 0
    converted = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert matter(converted) == {"library_name": "vllm", "tags": ["speculative-decoding", "eagle3"]}
    for page in (text, converted):
        assert not re.search(r"injected|script|evil|<img|fence|rm -rf|\u202e|b{99}", page)
        assert len(page) < 5000
    # what was written can be written again
    assert card(folder, text.encode()) == text


def test_a_record_puts_no_markup_into_the_card(folder: Path) -> None:
    how = {"engine": EVIL, "device": EVIL, "dtype": EVIL}
    gate = {"rows": [gate_row(3, 2.0, 2.1, 1.05, 1.0, 1.1)], "prompts": 9, "tolerance": 0.97, **how}
    upgrade = {"fc_norm": EVIL, "norm_output": EVIL, "calibration": None}
    write_record(folder, upgrade=upgrade, gate=gate)
    text = card(folder)
    assert text.count("x\\\\n# Mine &lt;b&gt;y&lt;/b&gt; \\[l\\](http:/&#8203;/evil) \\| \\`c\\`") == 5
    assert "<b>" not in text and "\n# Mine" not in text


def test_a_plan_shows_the_card_where_it_is_asked_for(folder: Path) -> None:
    done = call("-v", "upload", folder, *DRY, *ANSWERS)
    text = card(folder)
    assert "".join(f"  {line}".rstrip() + "\n" for line in text.splitlines()) in done.out
    assert "## Overview" not in call("upload", folder, *DRY, *ANSWERS).out
    assert "newest revision" in text


def test_the_digests_are_checked_by_the_command_of_the_card(folder: Path, tmp_path: Path) -> None:
    shown = card(folder).partition("## Check a download")[2]
    assert "(cd drafter && sha256sum -c SHA256SUMS)" in shown and "eaglectl verify" not in shown  # no address
    drafter = release(folder, tmp_path / "download" / "drafter", card=answers(folder))
    check = ["sh", "-c", "(cd drafter && sha256sum -c SHA256SUMS)"]
    assert subprocess.run(check, cwd=drafter.parent, capture_output=True, check=False).returncode == 0
    (drafter / "config.json").write_text("{}")
    assert subprocess.run(check, cwd=drafter.parent, capture_output=True, check=False).returncode == 1
