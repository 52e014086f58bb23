"""Prompts from traffic: texts, chats and token ids, as they are read, sampled, checked and run."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.run.job import EngineJob, tokenise
from eaglectl.run.prompts import Prompt, batches_by_length, choose_prompts, read_prompts
from tests import servers
from tests.builders import Outcome, call
from tests.tiny import TARGET, TINY

DRAFTER = TINY / "eagle3"
USER = {"role": "user", "content": "Hello."}
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "Bern"}'}}
TOOL = {"type": "function", "function": {"name": "f"}}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content or m.tool_calls[0].function.arguments.city }}"
    "{% endfor %}{% if tools %}[{{ tools[0].function.name }}]{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
OPENING = "{% if add_generation_prompt %}<assistant>{% endif %}"
TOKENIZER = ("tokenizer", "special_tokens", "chat_template", "vocab", "merges")


def prompts_file(folder: Path, *lines: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def ids(*tokens: Any) -> dict[str, Any]:
    return {"prompt_token_ids": list(tokens)}


def chat(*messages: Any, **keys: Any) -> dict[str, Any]:
    return {"messages": list(messages), **keys}


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


def test_texts_token_ids_and_messages_may_stand_in_one_file(tmp_path: Path) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    told = {"role": "tool", "tool_call_id": "c", "content": "rain"}
    system = {"role": "system", "content": PARTS}
    file = prompts_file(
        tmp_path,
        "plain",
        ids(5, 0, 7) | {"set": "log"},
        {"prompt": "text", "chat": True},
        chat(system, USER, set="support", model="m", temperature=0.7),
        chat(USER, asked, told, tools=[TOOL]),
        chat(USER, tools={}),
    )
    assert read_prompts(file) == (
        Prompt("plain"),
        Prompt("", "log", token_ids=(5, 0, 7)),
        Prompt("text", is_chat=True),
        Prompt("", "support", messages=({"role": "system", "content": "one\ntwo"}, USER)),
        Prompt("", messages=(USER, asked, told), tools=(TOOL,)),
        Prompt("", messages=(USER,)),
    )


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
        ('{"prompt_token_ids": [NaN]}', "is not JSON"),
        ('{"prompt_token_ids": [1' + "0" * 5000 + "]}", "out of range"),
        (ids(1) | {"prompt": "text"}, 'has "prompt", "prompt_token_ids"; each is a whole prompt: keep one'),
        (ids(1) | {"chat": True}, 'has "prompt_token_ids", "chat"; each is a whole prompt: keep one'),
        ({"chat": False}, 'needs a non-empty "prompt", or "messages", or "prompt_token_ids"'),
        (chat(), r"Expected `array` of length >= 1 - at `\$\.messages`"),
        ({"messages": "Hello."}, r"Expected `array \| null`, got `str` - at `\$\.messages`"),
        (chat("Hello."), r"Expected `object`, got `str` - at `\$\.messages\[0\]`"),
        (chat({"content": "Hello."}), r'\[0\] must be an object with a "role"'),
        (chat(USER, {"role": "user"}), r'\[1\] needs a "content"'),
        (chat({"role": "user", "content": []}), r'\[0\] needs a "content"'),
        (
            chat({"role": "user", "content": [{"type": "image_url"}]}),
            'part of type "image_url"; only text is',
        ),
        (chat({"role": "user", "content": ["text"]}), "a content part that is no"),
        (chat(USER, {"role": "assistant", "content": "Hi."}), "is the assistant's answer"),
        (chat(USER, prompt="text"), 'has "prompt", "messages"; each is a whole prompt'),
        (chat(USER, chat=True), 'has "messages", "chat"; each is a whole prompt'),
        (chat(USER, chat_template="{{ messages }}"), '"chat_template" changes the text'),
        (chat(USER, chat_template_kwargs={"tokenize": True}), 'has "tokenize", which is not a variable'),
        (chat(USER, chat_template_kwargs=[1]), r"got `array` - at `\$\.chat_template_kwargs`"),
        (chat(USER, add_generation_prompt=1), r"got `int` - at `\$\.add_generation_prompt`"),
        (chat(USER, tools=["f"]), r"Expected `object`, got `str` - at `\$\.tools\[0\]`"),
        (chat(USER, set=3), r"Expected `str`, got `int` - at `\$\.set`"),
        ({"prompt": "x", "chat": "true"}, r"Expected `bool`, got `str` - at `\$\.chat`"),
        (r'{"prompt": "\ud800"}', "is not JSON"),
        ('{"prompt": ' + "[" * 100000, "is not JSON"),
        ("{not json", "is not JSON"),
        ({"prompt": ""}, "needs a non-empty"),
        ({"text": "x"}, "needs a non-empty"),
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
    assert "has no tokenizer that transformers can load; put its tokenizer.json" in text.document["message"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([1, 100_000], "line 2) has token id 100000, but the target has "),
        ([1] * 506, "line 2) has 506 tokens, but the target's context of 512 has room for 505 before 4"),
    ],
)
def test_ids_that_the_target_cannot_take_are_refused(
    tokens: list[int], words: str, bare: Path, tmp_path: Path
) -> None:
    outcome = smoke(bare, prompts_file(tmp_path, ids(1, 2), ids(*tokens)))
    assert outcome.code == 2 and words in outcome.document["message"]


@pytest.mark.parametrize(
    "command", [("smoke", "--run-in", "reference"), ("diagnose",), ("ready",), ("calibrate", "-o", "OUT")]
)
def test_a_text_of_more_tokens_than_fit_is_named_by_every_run(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    prompts = prompts_file(tmp_path, "short", "x = 1 " * 2000)
    words = [word.replace("OUT", str(tmp_path / "out")) for word in command]
    done = call(*words, DRAFTER, "--target", TARGET, "--prompts", prompts, "--device", "cpu", "--json")
    assert done.code in (2, 3)
    assert re.search(
        r"line 2\) has \d{4,} tokens, but the target's context of 512 has room for 4\d\d", done.out
    )


def test_a_server_is_sent_token_ids_as_they_are(tmp_path: Path) -> None:
    seen: list[Any] = []
    servers.smoke(tmp_path / "a", servers.SGLANG, seen, f"{json.dumps(ids(1, 63))}\ntext\n")
    assert [request["prompt"] for request in seen] == [[1, 63], "text"]
    with pytest.raises(UsageError, match="token id 64, but the target has 64 tokens"):
        servers.smoke(tmp_path / "b", servers.SGLANG, [], json.dumps(ids(64)))


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


def test_a_prompt_may_hold_any_character_and_a_file_a_mark_at_its_head(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes('\ufeff{"prompt": "one\u2028line\x85still", "chat": true}\r\nplain\x0ctext\r\n'.encode())
    found = [(prompt.text, prompt.is_chat) for prompt in read_prompts(path)]
    assert found == [("one\u2028line\x85still", True), ("plain\x0ctext", False)]


def test_a_batch_is_bounded_by_its_tokens_and_by_its_texts() -> None:
    lengths = [3000, 10, 500, 900, 5000, 500, *[10] * 16]
    batches = batches_by_length([[0] * length for length in lengths], 100)
    assert [[lengths[index] for index in batch] for batch in batches] == [
        [10] * 16,
        [10, 500, 500, 900],
        [3000],
        [5000],
    ]


def test_a_sample_is_the_same_everywhere_in_the_order_of_the_file_and_no_larger(tmp_path: Path) -> None:
    file = prompts_file(tmp_path, *(f"prompt {number}" for number in range(10)))
    drawn = {seed: choose_prompts(file, 3, seed) for seed in (0, 1)}
    assert [prompt.text for prompt in drawn[0].prompts] == ["prompt 4", "prompt 7", "prompt 9"]
    assert drawn[1].prompts != drawn[0].prompts
    assert (drawn[0].total, drawn[0].sample, drawn[0].file) == (10, 3, "prompts.jsonl")
    assert drawn[0].sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert choose_prompts(file, 10).prompts == read_prompts(file)
    for sample in (0, -1, 11):
        with pytest.raises(
            UsageError, match=f"--sample {sample}: .* has 10 prompts; pass a number from 1 to 10"
        ):
            choose_prompts(file, sample)


def target_with(template: str | None, folder: Path) -> Path:
    """The tokenizer of the trained pair with another chat template."""
    target = folder / "target"
    shutil.copytree(TARGET, target, ignore=shutil.ignore_patterns("*.safetensors"))
    if template is not None:
        (target / "chat_template.jinja").write_text(template)
    return target


def tokens(target: Path, *prompts: Prompt) -> list[list[int]]:
    pytest.importorskip("transformers")
    drafter = eaglectl.inspect(str(TINY / "eagle3"), target=str(TARGET)).drafter
    return tokenise(EngineJob(TINY / "eagle3", drafter, target, prompts))


LOW, PLAIN = {"chat_template_kwargs": {"effort": "low"}}, {"add_generation_prompt": False}


@pytest.mark.parametrize(
    ("keys", "end"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, "[off]<assistant>"),
        (LOW, "[low]<assistant>"),
        (PLAIN, ""),
        (PLAIN | LOW, "[low]"),
    ],
)
@pytest.mark.parametrize("line", [{"messages": [USER]}, {"prompt": "Hello.", "chat": True}])
def test_a_requests_arguments_of_the_template_are_used(
    keys: dict[str, Any], end: str, line: dict[str, Any], tmp_path: Path
) -> None:
    template = "{% if enable_thinking is false %}[off]{% endif %}{% if effort %}[{{ effort }}]{% endif %}"
    target = target_with(TEMPLATE.partition("{% if tools %}")[0] + template + OPENING, tmp_path)
    (prompt,) = read_prompts(prompts_file(tmp_path, line | keys))
    begin, *text = tokens(target, Prompt(f"<user>Hello.{end}"))[0]
    assert tokens(target, prompt) == [text] and begin == 0


def test_messages_are_written_by_the_targets_own_template(tmp_path: Path) -> None:
    called = ({**USER, "content": "Rain?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]})
    rain = {"role": "tool", "content": "no"}
    found = tokens(
        target_with(TEMPLATE, tmp_path),
        Prompt("", messages=({"role": "system", "content": "Be brief."}, USER)),
        Prompt("<system>Be brief.<user>Hello.<assistant>"),
        Prompt("", messages=(*called, rain), tools=(TOOL,)),
        Prompt("<user>Rain?<assistant>Bern<tool>no[f]<assistant>"),
    )
    # a template writes the first token of a sequence itself, where it wants one
    assert (found[0], found[2]) == (found[1][1:], found[3][1:])


def test_messages_need_a_template(tmp_path: Path) -> None:
    prompt = Prompt("", messages=(USER,), place="traffic.jsonl, line 7")
    with pytest.raises(UsageError, match=r"prompt 1 \(traffic.jsonl, line 7\): .* has no chat template"):
        tokens(target_with(None, tmp_path), prompt)


@pytest.mark.parametrize("code", ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.clear() }}"])
def test_a_template_runs_in_a_sandbox(code: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="fails on prompt 1"):
        tokens(target_with(code, tmp_path), Prompt("", messages=(USER,)))


def test_a_server_gets_messages_as_a_chat(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    template = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False}
    line = json.dumps({"messages": [USER], "tools": [TOOL], "set": "a", **template})
    pages, seen = {**servers.SGLANG, "/v1/chat/completions": servers.ANSWER}, list[Any]()
    report = servers.smoke(tmp_path, pages, seen, line, ignore_eos=True)
    assert (seen[0]["messages"], seen[0]["tools"], seen[0]["ignore_eos"]) == ([USER], [TOOL], True)
    assert {key: seen[0][key] for key in template} == template
    assert "prompt" not in seen[0] and set(report.by_set) == {"a"}
    assert report.choice is not None
    assert report.choice.sha256 == hashlib.sha256(line.encode()).hexdigest()
