"""Prompts as token ids: read from files, checked, and run without a tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import UsageError
from eaglectl.run.prompts import Prompt, digest_prompts, prompt_digest, read_prompts
from tests.builders import Outcome, call, drafter_folder
from tests.servers import SGLANG, server
from tests.tiny import TARGET, TINY

DRAFTER = TINY / "eagle3"
TOKENIZER = ("tokenizer", "special_tokens", "chat_template", "vocab", "merges")


def prompts_file(folder: Path, *lines: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def ids(*tokens: Any) -> dict[str, Any]:
    return {"prompt_token_ids": list(tokens)}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained target without its tokenizer."""
    folder = tmp_path_factory.mktemp("bare") / "target"
    shutil.copytree(TARGET, folder)
    removed = [path for path in folder.iterdir() if path.name.startswith(TOKENIZER)]
    assert removed
    for path in removed:
        path.unlink()
    return folder


def test_texts_and_token_ids_may_stand_in_one_file(tmp_path: Path) -> None:
    file = prompts_file(tmp_path, "plain", ids(5, 0, 7) | {"set": "log"}, {"prompt": "text", "chat": True})
    assert read_prompts(file) == (
        Prompt("plain"),
        Prompt("", "log", token_ids=(5, 0, 7)),
        Prompt("text", is_chat=True),
    )


def test_digests_tell_token_ids_apart_and_keep_those_of_texts() -> None:
    assert prompt_digest(Prompt("a")) == "ca978112ca1bbdca"
    assert prompt_digest(Prompt("", token_ids=(1, 2))) != prompt_digest(Prompt("", token_ids=(2, 1)))
    one, other = (digest_prompts([Prompt("", token_ids=tokens)]) for tokens in ((1, 2), (12,)))
    assert one != other


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (ids(), r"Expected `array` of length >= 1 - at `\$\.prompt_token_ids`"),
        ({"prompt_token_ids": "1 2"}, r"Expected `array \| null`, got `str` - at `\$\.prompt_token_ids`"),
        ({"prompt_token_ids": None}, 'needs a non-empty "prompt", or "messages", or "prompt_token_ids"'),
        (ids(1, -2), r"Expected `int` >= 0 - at `\$\.prompt_token_ids\[1\]`"),
        (ids(True), r"Expected `int`, got `bool` - at `\$\.prompt_token_ids\[0\]`"),
        (ids(1.0), r"Expected `int`, got `float`"),
        (ids("1"), r"Expected `int`, got `str`"),
        (ids([1]), r"Expected `int`, got `array`"),
        ('{"prompt_token_ids": [NaN]}', "is not JSON"),
        ('{"prompt_token_ids": [1' + "0" * 5000 + "]}", "out of range"),
        (ids(1) | {"prompt": "text"}, 'has "prompt", "prompt_token_ids"; each is a whole prompt: leave one'),
        (ids(1) | {"chat": True}, 'has "prompt_token_ids", "chat"; each is a whole prompt: leave one'),
        ({"chat": False}, 'needs a non-empty "prompt", or "messages", or "prompt_token_ids"'),
    ],
)
def test_a_wrong_line_is_named(line: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"prompts.jsonl, line 2.*{words}"):
        read_prompts(prompts_file(tmp_path, "fine", line))


def smoke(target: Path, prompts: Path, *more: str) -> Outcome:
    pytest.importorskip("transformers")
    options = ("--target", target, "--prompts", prompts, "--run-in", "reference", "--max-tokens", "4")
    return call("smoke", DRAFTER, *options, *more, "--json")


def test_token_ids_run_without_a_tokenizer(bare: Path, tmp_path: Path) -> None:
    file = prompts_file(tmp_path, ids(1, 5, 9, 11), ids(3, 4, 20))
    measured = smoke(bare, file, "--probe", "sensitivity").document
    assert measured["prompts"] == 2 and measured["lossless"] is True
    assert measured["probes"]["sensitivity"]
    text = smoke(bare, prompts_file(tmp_path, ids(1, 5), "a text"))
    assert text.code == 3
    assert text.document["message"].endswith(
        "has no tokenizer; put its tokenizer.json and tokenizer_config.json beside its weights"
    )


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([1, 100_000], "line 2) has token id 100000, and the target has "),
        ([1] * 5000, "line 2) has 5000 tokens, and the target's context of "),
    ],
)
def test_ids_that_the_target_cannot_take_are_refused(
    tokens: list[int], words: str, bare: Path, tmp_path: Path
) -> None:
    outcome = smoke(bare, prompts_file(tmp_path, ids(1, 2), ids(*tokens)))
    assert outcome.code == 2 and words in outcome.document["message"]


def test_a_target_without_a_vocabulary_cannot_check_them(bare: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"num_hidden_layers": 8, "model_type": "llama"}')
    folder = drafter_folder(tmp_path)
    with server(SGLANG, []) as url:
        file = prompts_file(tmp_path, ids(1, 2))
        outcome = call("smoke", folder, "--target", target, "--run-in", url, "--prompts", file)
    assert outcome.code == 3 and "states no vocab_size" in outcome.err


def test_drift_needs_texts(bare: Path, tmp_path: Path) -> None:
    outcome = smoke(bare, prompts_file(tmp_path, ids(1, 2, 3)), "--probe", "drift")
    assert outcome.code == 2 and "line 1 is token ids; give --prompts as text" in outcome.document["message"]


def test_a_server_is_sent_token_ids_as_they_are(tmp_path: Path) -> None:
    folder, seen = drafter_folder(tmp_path), []
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text('{"num_hidden_layers": 8, "vocab_size": 64}')
    with server(SGLANG, seen) as url:
        file = prompts_file(tmp_path, ids(1, 63), "text")
        eaglectl.smoke(
            str(folder),
            str(tmp_path / "target"),
            eaglectl.SmokeOptions(run_in=url, prompts=file, max_tokens=20),
        )
        wrong = prompts_file(tmp_path, ids(64))
        with pytest.raises(UsageError, match="token id 64, and the target has 64 tokens"):
            eaglectl.smoke(
                str(folder), str(tmp_path / "target"), eaglectl.SmokeOptions(run_in=url, prompts=wrong)
            )
    assert [request["prompt"] for request in seen] == [[1, 63], "text"]


def test_calibration_takes_token_ids_without_a_tokenizer(bare: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    file = prompts_file(tmp_path, *(ids(*range(start, start + 6)) for start in range(4)))
    options = eaglectl.CalibrateOptions(prompts=file, answer_tokens=4, device="cpu")
    statistics = eaglectl.calibrate(str(DRAFTER), str(bare), None, options)
    assert len(statistics.prompts) == 4 and statistics.tokens > 0


@pytest.mark.slow
def test_the_gate_runs_on_token_ids_without_a_tokenizer(bare: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    file = prompts_file(tmp_path, *(ids(*range(start, start + 8)) for start in range(1, 13)))
    options = eaglectl.UpgradeOptions(prompts=file, tolerance=0.01, device="cpu", max_tokens=8)
    done = eaglectl.upgrade(
        str(DRAFTER), tmp_path / "out", options, eaglectl.ConvertOptions(target=str(bare))
    )
    assert done.gate is not None and done.gate.prompts == 4 and done.out is not None
