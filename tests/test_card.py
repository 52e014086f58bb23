"""The card that `upload` makes: its block is eaglectl's, all else is the user's, byte for byte."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.hub_cache import REPO
from eaglectl.formats.format import Answers
from eaglectl.publish import project
from eaglectl.publish.card import BEGIN, END
from tests.builders import (
    STATED,
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    write_safetensors,
)
from tests.cards import ANSWERS, answers, card, matter, record, smoke_file
from tests.conftest import FIXTURES

SPECULATORS = {"speculators_config": {"verifier": {"name_or_path": "example/target-8b"}}}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path)


def test_a_card_is_made_where_there_is_none(folder: Path) -> None:
    text = card(folder)
    assert matter(text) == {
        "license": "apache-2.0",
        "base_model": "example/target-8b",
        "library_name": "vllm",
        "pipeline_tag": "text-generation",
        "tags": ["eagle3", "speculative-decoding", "draft-model", "vllm", "sglang", "arxiv:2503.01840"],
    }
    assert "# drafter" in text and "| aux layers | 2, 4, 5 (" in text
    assert text.count("vllm serve") == text.count("sglang.launch_server") == 1
    assert '"model": "org/drafter"' in text
    assert not (folder / "README.md").exists()


def test_what_the_user_wrote_stays_byte_for_byte(folder: Path) -> None:
    mine = (
        "---\nlicense: apache-2.0  # ours\nlibrary_name: other\ntags: [mine, eagle3]\nbase_model:\n  -"
        " example/target-8b\n---\n# Ours\n\ntext  \nwithout an end"
    )
    text = card(folder, mine.encode())
    assert text.startswith(
        "---\nlicense: apache-2.0  # ours\nlibrary_name: other\ntags: [mine, eagle3,"
        " speculative-decoding, draft-model, vllm, sglang, arxiv:2503.01840]\n"
        "base_model:\n  - example/target-8b\n"
    )
    assert f"---\n# Ours\n\ntext  \nwithout an end\n\n{BEGIN}" in text
    assert matter(text)["license"] == "apache-2.0"
    assert "vllm serve example/target-8b" in text


def test_a_card_is_the_same_when_it_is_made_again(folder: Path) -> None:
    first = card(folder, b"# Ours\n")
    assert card(folder, first.encode()) == first


def test_only_the_block_is_written_again(folder: Path) -> None:
    first = card(folder, b"# Ours\n\nbefore\n")
    edited = first.replace("before", "changed").replace("## The drafter", "## Spoiled") + "\nafter\n"
    assert card(folder, edited.encode()) == first.replace("before", "changed") + "\nafter\n"


def test_line_breaks_of_windows_stay(folder: Path) -> None:
    text = card(folder, b"---\r\nlicense: mit\r\ntags:\r\n- mine\r\n---\r\n# Ours\r\n")
    assert text.count("\n") == text.count("\r\n")
    assert matter(text)["tags"] == [
        "mine",
        "eagle3",
        "speculative-decoding",
        "draft-model",
        "vllm",
        "sglang",
        "arxiv:2503.01840",
    ]


@pytest.mark.parametrize(
    "tags",
    [
        "tags: []",
        "tags:\n- a",
        "tags:\n  - a\n  - b # c",
        "tags: [a, ]",
        "license: mit\ntags:\n    - a\nlanguage: en",
    ],
)
def test_tags_are_added_in_the_lists_own_spelling(folder: Path, tags: str) -> None:
    before = yaml.safe_load(tags)["tags"] or []
    found = matter(card(folder, f"---\n{tags}\n---\nx\n".encode()))["tags"]
    assert found == [
        *before,
        "eagle3",
        "speculative-decoding",
        "draft-model",
        "vllm",
        "sglang",
        "arxiv:2503.01840",
    ]


@pytest.mark.parametrize("tags", ["tags: [a,\n  b]", "tags: a", "tags:"])
def test_tags_in_another_spelling_are_left_alone(folder: Path, tags: str) -> None:
    assert f"---\n{tags}\n" in card(folder, f"---\n{tags}\n---\nx\n".encode())


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN}\n",
        f"{END}\n",
        f"{END}\n{BEGIN}\n",
        f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n",
        "---\nlicense: mit\n",
    ],
)
def test_broken_marks_are_told_and_not_guessed(folder: Path, text: str) -> None:
    (folder / "README.md").write_text(text)
    done = call("upload", folder, "org/drafter", "--dry-run")
    assert done.code == 1 and "README.md" in done.err


GATE = {
    "rows": [
        {
            "k": 3,
            "acceptance_length_before": 2.5,
            "acceptance_length": 2.45,
            "ratio": 0.98,
            "interval": [0.975, 0.99],
        },
        {
            "k": 7,
            "acceptance_length_before": 3.0,
            "acceptance_length": 3.1,
            "ratio": 1.0333,
            "interval": [1.01, 1.05],
        },
    ],
    "prompts": 40,
    "tolerance": 0.97,
    "is_passed": True,
    "engine": "torch 2.13",
    "device": "cuda",
    "dtype": "bfloat16",
}
UPGRADE = {
    "fc_norm": "refit",
    "norm_output": "absorbed",
    "scales": [1.0, 2.0, 3.0],
    "sigma": 1.5,
    "is_exact": False,
    "refit": {"strength": 0.01, "relative_residual": 0.084},
    "calibration": {"tokens": 123456},
}


def recorded(folder: Path, **parts: Any) -> None:
    """An eaglectl.json with these parts."""
    known = {"schema": "eaglectl/provenance/1", "eagle": "3", "boundaries": [2, 4, 5], "tensors": []}
    (folder / "eaglectl.json").write_text(json.dumps({**known, **parts}))


def test_measurements_come_with_what_they_mean(folder: Path) -> None:
    recorded(folder, gate=GATE, upgrade=UPGRADE)
    text = card(folder)
    assert "Acceptance length: tokens that one step of the target gives" in text
    assert (
        "| 3 | 2.500 | 2.450 | 0.980 [0.975, 0.990] |\n| 7 | 3.000 | 3.100 | 1.033 [1.010, 1.050] |" in text
    )
    assert (
        "same 40 prompts, none of them calibrated on (torch 2.13, cuda, bfloat16); the ratio's lower"
        " bound had to reach 0.97:" in text
    )
    assert (
        "| fc_norm | on: every state is divided by its size, and fc is refit to the normed states (8.4%"
        " of what it made is left unexplained) |" in text
    )
    assert "| norm_output | on: the norm's weights went into lm_head |" in text
    assert "| calibrated on | 123,456 tokens of prompts and the target's own answers |" in text
    assert "| acceptance | not compared" not in text and "Not trained" not in text


def test_an_upgrade_without_a_gate_says_so(folder: Path) -> None:
    recorded(folder, gate=None, upgrade={"fc_norm": "calibrated", "norm_output": "flag", "is_exact": True})
    text = card(folder)
    assert "| acceptance | not compared with that of before (`--no-gate`) |" in text
    assert "| norm_output | on; no weight changed; the same function as before |" in text
    assert "| calibrated on | nothing |" in text and "## Acceptance" not in text


def test_what_a_gate_measured_goes_along_when_the_bytes_only_move(folder: Path) -> None:
    earlier = {"upgrade": UPGRADE, "gate": GATE}
    recorded(folder, previous={"previous": earlier})
    text = card(folder)
    assert "## How it became EAGLE-3.1" in text
    assert "before it was rewritten in this layout" in text and "| 3 | 2.500 | 2.450 |" in text


@pytest.mark.parametrize(
    "later",
    [{"pruning": {}}, {"downgrade": {}}, {"upgrade": {**UPGRADE, "needs_finetune": True}, "gate": None}],
)
def test_what_a_gate_measured_is_not_told_of_another_drafter(folder: Path, later: dict[str, Any]) -> None:
    from eaglectl.conversion.writing import gate_lines

    assert gate_lines({**later, "previous": {"upgrade": UPGRADE, "gate": GATE}}) == []


@pytest.mark.parametrize("depth", [0, 2])
def test_an_untrained_start_is_not_published_unless_a_policy_says_so(folder: Path, depth: int) -> None:
    parts: dict[str, Any] = {
        "upgrade": {"fc_norm": "ones", "norm_output": "flag", "needs_finetune": True},
        "gate": None,
    }
    for _ in range(depth):
        parts = {"previous": parts}
    recorded(folder, **parts)
    done = call("upload", folder, "org/drafter", "--dry-run")
    assert done.code == 1 and "EGL906" in done.err
    (folder.parent / "release.toml").write_text('[severities]\nEGL906 = "note"\n')
    text = card(folder, policy=str(folder.parent / "release.toml"))
    assert "> **Not trained, and not to be served.**" in text
    assert text.index("Not trained") < text.index("## Serving")


@pytest.mark.parametrize(
    "parts",
    [
        {"gate": {}},
        {"gate": {**GATE, "rows": 3}},
        {"gate": {**GATE, "rows": [{**GATE["rows"][0], "ratio": "1"}]}},  # type: ignore[index]
        {"gate": {**GATE, "rows": [{**GATE["rows"][0], "interval": [1.0]}]}},  # type: ignore[index]
        {"gate": {**GATE, "prompts": None}},
        {"upgrade": {}},
        {"upgrade": {**UPGRADE, "fc_norm": []}},
        {"upgrade": {**UPGRADE, "refit": 3}},
        {"upgrade": {**UPGRADE, "calibration": {"tokens": "many"}}},
    ],
)
def test_a_record_that_eaglectl_did_not_write_is_told(folder: Path, parts: dict[str, Any]) -> None:
    recorded(folder, **parts)
    done = call("upload", folder, "org/drafter", "--dry-run")
    assert done.code == 3 and "eaglectl.json cannot be used" in done.err and "Traceback" not in done.err


def test_a_word_of_a_later_eaglectl_is_shown_as_it_is(folder: Path) -> None:
    recorded(folder, upgrade={**UPGRADE, "norm_output": "new way"})
    assert "| norm_output | new way |" in card(folder)


def test_a_record_cannot_break_out_of_its_table(folder: Path) -> None:
    recorded(folder, gate={**GATE, "engine": "x\n<!-- eaglectl: end -->"})
    assert card(folder).count("\n<!-- eaglectl: end") == 1


def test_what_smoke_measured_is_shown_and_recorded(folder: Path, tmp_path: Path) -> None:
    text = card(folder, smoke=smoke_file(tmp_path))
    assert (
        "Measured with vllm 0.32.0 on cuda in bfloat16, 20 prompts, 400 drafts of k=3 tokens, greedy. Every"
        " output equals plain decoding." in text
    )
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
        ({"interval": [2.2]}, 3),
        ({"per_position": [0.7]}, 3),
        ({"per_position": [{"value": float("nan"), "interval": [0, 1]}]}, 3),
        ({"engine": "vllm"}, 3),
        ({"prompts": "20"}, 3),
        ({"acceptance_length": 10**400}, 3),
        ({"temperature": "hot"}, 3),
        ({"files": None}, 3),
        ({"files": {}}, 1),
        ({"files": {"config.json": "0" * 64, "model.safetensors": "0" * 64}}, 1),
    ],
)
def test_a_document_that_is_no_good_measurement_is_told(
    folder: Path, tmp_path: Path, change: dict[str, Any] | None, code: int
) -> None:
    path = smoke_file(tmp_path)
    document = json.loads(path.read_text())
    path.write_text(
        "{"
        if change is None
        else json.dumps({key: value for key, value in {**document, **change}.items() if value is not None})
    )
    assert call("upload", folder, "org/drafter", "--dry-run", "--smoke", path).code == code


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_was_measured_of_other_files_is_not_published(folder: Path, tmp_path: Path, name: str) -> None:
    path = smoke_file(tmp_path)
    if name == "config.json":
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | {"_note": "another"}))
    else:
        write_safetensors(folder / name, drafter_tensors(), {"format": "pt", "run": "2"})
    done = call("upload", folder, "org/drafter", "--dry-run", "--smoke", path)
    assert (
        done.code == 1
        and f"had another {name}" in done.err
        and f"run `eaglectl smoke {folder} --json" in done.err
    )


def measured(prompts: int, length: float) -> dict[str, Any]:
    position = {"value": 0.5, "interval": [0.4, 0.6]}
    interval = [length - 0.1, length + 0.1]
    return {
        "acceptance_length": length,
        "interval": interval,
        "per_position": [position],
        "drafts": 200,
        "tokens": 500,
        "prompts": prompts,
    }


def smoke_with(folder: Path, **changes: Any) -> Path:
    path = smoke_file(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


SECONDS = {"drafted": 2.0, "plain": 5.0, "meaning": "one prompt after the other"}


SPEED = {
    "text": "2.03x at 1, 1.71x at 4",
    "how": "vLLM 0.32.0 with CUDA graphs",
    "device": "cuda",
    "card": "NVIDIA H200",
    "repeats": 5,
}


def test_acceptance_is_shown_by_set_of_prompts_and_with_its_speed(folder: Path, tmp_path: Path) -> None:
    sets = {"code": measured(8, 2.9), "a | b": measured(12, 1.9)}
    path = smoke_with(tmp_path, sets=sets, tokens=1000, seconds=SECONDS, speed=SPEED)
    text = card(folder, smoke=path)
    rows = [line for line in text.splitlines() if line.endswith("50.0% |")]
    assert rows == [
        "| code | 8 | 2.900 [2.800, 3.000] | 50.0% |",
        "| a \\| b | 12 | 1.900 [1.800, 2.000] | 50.0% |",
    ]
    speed = "**2.03x at 1, 1.71x at 4** (median of 5 repeats, NVIDIA H200; vLLM 0.32.0 with CUDA graphs)."
    assert f"Tokens/s with the drafter over those without, by requests at a time: {speed}\n" in text
    kept = record(folder, smoke=path)["published"]["smoke"]
    assert (kept["sets"], kept["seconds"], kept["speed"]) == (sets, SECONDS, SPEED)


def test_the_time_of_a_run_is_no_speed(folder: Path, tmp_path: Path) -> None:
    assert "okens/s" not in card(folder, smoke=smoke_with(tmp_path, tokens=1000, seconds=SECONDS))


@pytest.mark.parametrize("change", [{"device": "cpu"}, {"text": ""}])
def test_a_speed_of_a_cpu_or_without_a_ratio_is_not_on_a_card(
    change: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    assert "okens/s" not in card(folder, smoke=smoke_with(tmp_path, speed={**SPEED, **change}))


@pytest.mark.parametrize("speed", [{"text": "x"}, {**SPEED, "text": 2}, {**SPEED, "repeats": "5"}, "fast"])
def test_a_speed_that_smoke_does_not_write_is_refused(speed: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="not as smoke writes it"):
        card(folder, smoke=smoke_with(tmp_path, speed=speed))


def test_few_prompts_are_told(folder: Path, tmp_path: Path) -> None:
    few = "only 15 prompts were measured: under 16, an interval says little about other prompts"
    path = smoke_with(tmp_path, prompts=15)
    assert f"> **Few prompts:** {few}." in card(folder, smoke=path)
    done = call("upload", folder, "org/drafter", "--dry-run", "--smoke", path, *ANSWERS)
    assert done.code == 0 and f"warning: {few}" in done.err
    enough = call("upload", folder, "org/drafter", "--dry-run", "--smoke", smoke_file(tmp_path), *ANSWERS)
    assert "warning" not in enough.err


def test_a_licence_and_a_target_are_asked_for(folder: Path) -> None:
    done = call("upload", folder, "org/drafter", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "--license ID" in done.err and "--base-model ORG/NAME" in done.err
    done = call("upload", folder, "org/drafter", "--dry-run", *ANSWERS[:2])
    assert done.code == 2 and "--base-model" in done.err and "--license" not in done.err
    done = call("upload", folder, "org/drafter", "--dry-run", *ANSWERS[2:])
    assert done.code == 2 and "--base-model" not in done.err and "--license" in done.err
    (folder / "README.md").write_text("---\nlicense:\nbase_model: example/target-8b\n---\n")
    done = call("upload", folder, "org/drafter", "--dry-run")
    assert done.code == 2 and "README.md has license without a value" in done.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--license", "mit"), "--license mit and README.md (apache-2.0) differ"),
        (("--base-model", "other/x"), "--base-model other/x and README.md (example/target-8b) differ"),
        (("--license", "Apache License\nx: y"), "an identifier was expected"),
        (("--license", "other"), "license_name"),
        (("--base-model", "/models/target"), "org/name on the Hub was expected"),
    ],
)
def test_answers_that_cannot_be_are_usage(folder: Path, options: tuple[str, str], says: str) -> None:
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nbase_model: example/target-8b\n---\n")
    done = call("upload", folder, "org/drafter", "--dry-run", *options)
    assert done.code == 2 and says in done.err


def test_the_training_is_on_the_card_as_its_file_states_it(folder: Path) -> None:
    from huggingface_hub import ModelCard

    text = card(
        folder, card=eaglectl.CardAnswers("mit", "example/target-8b", FIXTURES / "cards/training.json")
    )
    data = ModelCard(text).data
    assert data.datasets == ["HuggingFaceH4/ultrachat_200k"]
    assert data.language == ["en", "no"] and data.license == "mit"
    page = "https://huggingface.co/datasets/HuggingFaceH4/ultrachat_200k"
    name = f"[HuggingFaceH4/ultrachat_200k]({page})"
    assert (
        f"| data | {name} (split train\\_sft, 200,000 samples), in-house support chats (12,000 samples) |"
        in text
    )
    assert "| answers | written by the target for the prompts of the data |" in text
    assert "| learning rate | 0.0001 |" in text and "| trained with | SpecForge 0.2 |" in text


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"schema": "other"}, 2, "eaglectl/training/1"),
        ({"epochs": 0}, 2, "epochs: 0 is less than"),
        ({"datasets": [{"name": "a", "size": 3}]}, 2, "datasets[0]"),
        ({"language": ["English"]}, 2, "language[0]"),
        ({"datasets": [{"split": "a"}]}, 2, "'name' is a required property"),
        ({"method": None}, 2, "method: None is not of type"),
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
    done = call("upload", folder, "org/drafter", "--dry-run", "--training", path, *ANSWERS)
    assert done.code == code and says in done.err, done.err


def test_words_of_a_training_file_put_no_markup_into_the_card(folder: Path, tmp_path: Path) -> None:
    evil = "x\n# Mine <b>y</b> [l](http://evil) | `c`"
    path = tmp_path / "training.json"
    document = {"datasets": [{"name": evil, "split": evil}], "method": evil, "framework": evil}
    path.write_text(json.dumps({"schema": "eaglectl/training/1", **document}))
    text = card(folder, card=eaglectl.CardAnswers("mit", "example/target-8b", path))
    assert "<b>" not in text and "\n# Mine" not in text and "datasets" not in matter(text)
    assert text.count("x\\\\n# Mine &lt;b&gt;y&lt;/b&gt;") == 4


def test_the_papers_are_named(tmp_path: Path) -> None:
    three = card(drafter_folder(tmp_path, "three"))
    assert "https://arxiv.org/abs/2503.01840" in three and "2605.09992" not in three
    norms = {"fc_norm": True, "norm_output": True}
    tensors = {f"fc_norm.{number}.weight": floats("norm", 16) for number in range(3)}
    both = card(drafter_folder(tmp_path, "both", config=norms, tensors=tensors))
    assert "https://arxiv.org/abs/2605.09992" in both
    assert matter(both)["tags"][-2:] == ["arxiv:2503.01840", "arxiv:2605.09992"]


def test_the_card_is_for_readers_who_do_not_know_eaglectl(folder: Path) -> None:
    text = card(folder)
    assert "TARGET" not in text and "everything stated" not in text
    assert "| file format | vLLM's layout |" in text or "| file format | an unnamed trainer |" in text


def test_the_hubs_client_finds_nothing_wrong_with_the_front_matter(folder: Path) -> None:
    from huggingface_hub import ModelCard

    done = eaglectl.CardAnswers("mit", "example/target-8b", FIXTURES / "cards/training.json")
    data = ModelCard(card(folder, card=done), ignore_metadata_errors=False).data
    assert (data.base_model, data.library_name, data.pipeline_tag) == (
        "example/target-8b",
        "vllm",
        "text-generation",
    )


def test_commands_pin_the_tag(folder: Path) -> None:
    (folder / "README.md").write_text(STATED)
    to = eaglectl.Destination("org/drafter", tag="v1.0")
    done = eaglectl.upload(str(folder), to, eaglectl.UploadOptions(dry_run=True))
    text = next(bytes(file.content).decode() for file in done.plan.files if file.name == "README.md")  # type: ignore[arg-type]
    assert '"revision": "v1.0"' in text and "--speculative-draft-model-revision v1.0" in text
    assert "hf download org/drafter --revision v1.0 " in text and "newest revision" not in text
    assert "newest revision" in card(folder)


def test_an_engine_that_does_not_serve_it_is_not_in_the_card(tmp_path: Path) -> None:
    folder = drafter_folder(
        tmp_path,
        config={
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}
        },
    )
    assert (
        drafter_config()["eagle_config"] != json.loads((folder / "config.json").read_text())["eagle_config"]
    )
    options = {"answers": Answers(aux_layers=(2, 4, 5)), "engines": ["vllm"]}
    text = card(folder, **options)
    served = re.findall(r"^(vLLM|SGLang) ", text, re.MULTILINE)
    assert "SGLang" not in served or "vLLM" not in served


def test_the_record_has_the_digests_of_all_that_is_published(folder: Path) -> None:
    found = record(folder)
    assert list(found["published"]["files"]) == ["README.md", "config.json", "model.safetensors"]
    assert found["source"]["files"]["model.safetensors"] == found["published"]["files"]["model.safetensors"]


NO_REPOSITORIES = [
    "a/b\nlicense: mit\ninjected: yes",
    "a/b\n---\n# Mine\n<script>alert(1)</script>",
    "a/b](http://evil) <img src=x onerror=alert(1)>",
    "a/b\n```\n# out of the fence",
    "<!-- eaglectl: end -->/x",
    "a/b # comment",
    "a/b: {c: d}",
    "'; rm -rf ~ #/x",
    "three/parts/of-a-path",
    "a/b\u202e\u200b",
    "a/" + "b" * 1_000_000,
]


@pytest.mark.parametrize("name", NO_REPOSITORIES, ids=range(len(NO_REPOSITORIES)))
def test_a_verifiers_name_that_is_no_repository_is_in_no_card(name: str, tmp_path: Path) -> None:
    config = drafter_config(speculators_config={"verifier": {"name_or_path": name}})
    folder = drafter_folder(tmp_path, config=config)
    text = card(folder)
    assert matter(text) == {
        "license": "apache-2.0",
        "base_model": "example/target-8b",
        "library_name": "vllm",
        "pipeline_tag": "text-generation",
        "tags": ["eagle3", "speculative-decoding", "draft-model", "vllm", "sglang", "arxiv:2503.01840"],
    }
    assert "with [example/target-8b](" in text and "vllm serve example/target-8b " in text
    assert call("convert", folder, "-o", tmp_path / "out").code == 0
    converted = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert matter(converted) == {"library_name": "vllm", "tags": ["speculative-decoding", "eagle3"]}
    for page in (text, converted):
        assert not re.search(r"injected|script|evil|<img|fence|rm -rf|three/parts|\u202e|b{99}", page)
        assert len(page) < 5000
    # what was written can be written again
    assert card(folder, text.encode()) == text


@given(st.from_regex(REPO, fullmatch=True))
def test_a_repositorys_name_is_plain_text_in_yaml(name: str) -> None:
    assert yaml.safe_load(f"base_model: {name}") == {"base_model": name}


def test_a_record_puts_no_markup_into_the_card(tmp_path: Path) -> None:
    evil = "x\n# Mine <b>y</b> [l](http://evil) | `c`"
    row = {
        "k": 3,
        "acceptance_length_before": 2.0,
        "acceptance_length": 2.1,
        "ratio": 1.05,
        "interval": [1.0, 1.1],
    }
    gate = {"rows": [row], "prompts": 9, "tolerance": 0.97, "engine": evil, "device": evil, "dtype": evil}
    upgrade = {"fc_norm": evil, "norm_output": evil, "calibration": None}
    folder = drafter_folder(tmp_path)
    (folder / "eaglectl.json").write_text(json.dumps({"upgrade": upgrade, "gate": gate}))
    text = card(folder)
    assert text.count("x\\\\n# Mine &lt;b&gt;y&lt;/b&gt; \\[l\\](http:/&#8203;/evil) \\| \\`c\\`") == 5
    assert "<b>" not in text and "\n# Mine" not in text


def test_without_an_address_the_card_names_no_command_that_its_reader_cannot_get(folder: Path) -> None:
    shown = card(folder).partition("## Check a download")[2]
    assert "(cd drafter && sha256sum -c SHA256SUMS)" in shown and "eaglectl verify" not in shown


def test_with_an_address_the_card_links_it_and_says_how_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "repository", lambda: "https://git.example.org/e")
    monkeypatch.setattr("eaglectl.publish.card.repository", project.repository)
    shown = card(folder)
    assert "pip install 'git+https://git.example.org/e'\neaglectl verify drafter\n" in shown
    assert shown.count("[eaglectl 0.1.0](https://git.example.org/e)") == 2


@pytest.mark.parametrize("options", [("upload", "--show-card"), ("-v", "upload")])
def test_a_plan_shows_the_card_where_it_is_asked_for(options: tuple[str, ...], folder: Path) -> None:
    stated = ("--license", "mit", "--base-model", "example/target-8b", "--dry-run")
    done = call(*options, folder, "org/drafter", *stated)
    assert done.code == 0, done.err
    text = card(folder, card=eaglectl.CardAnswers("mit", "example/target-8b"))
    assert "".join(f"  {line}".rstrip() + "\n" for line in text.splitlines()) in done.out
    assert "## Overview" not in call("upload", folder, "org/drafter", *stated).out


def test_a_plan_shows_the_verdict(folder: Path) -> None:
    done = call("upload", folder, "org/drafter", "--license", "mit", "--base-model", "o/t", "--dry-run")
    assert re.search(r"^  verdict   pass: .* could not look, \d+ passed$", done.out, re.MULTILINE)


def test_the_digests_are_checked_by_the_command_of_the_card(folder: Path, tmp_path: Path) -> None:
    done = eaglectl.upload(str(folder), "o/d", eaglectl.UploadOptions(dry_run=True, card=answers(folder)))
    drafter = tmp_path / "download" / "drafter"
    drafter.mkdir(parents=True)
    for file in done.plan.files:
        content = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
        (drafter / file.name).write_bytes(content)
    check = ["sh", "-c", "(cd drafter && sha256sum -c SHA256SUMS)"]
    assert subprocess.run(check, cwd=drafter.parent, capture_output=True, check=False).returncode == 0
    (drafter / "config.json").write_text("{}")
    assert subprocess.run(check, cwd=drafter.parent, capture_output=True, check=False).returncode == 1
