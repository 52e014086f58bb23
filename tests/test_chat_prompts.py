"""Prompts from traffic: chat messages, sets, samples by seed, and the template that writes them."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.run.job import EngineJob
from eaglectl.run.probes import _instructed, _written
from eaglectl.run.prompts import Prompt, choose_prompts, digest_prompts, prompt_digest, read_prompts
from eaglectl.run.tokens import tokenise
from tests.builders import drafter_folder
from tests.servers import ANSWER, SGLANG, server
from tests.test_token_prompts import prompts_file
from tests.tiny import TARGET, TINY

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


def test_messages_are_read_with_their_set_and_the_text_of_their_parts(tmp_path: Path) -> None:
    system = {"role": "system", "content": PARTS}
    file = prompts_file(
        tmp_path, {"messages": [system, USER], "set": "support", "model": "m", "temperature": 0.7}, "plain"
    )
    assert read_prompts(file) == (
        Prompt("", "support", messages=({"role": "system", "content": "one\ntwo"}, USER)),
        Prompt("plain"),
    )


def test_a_conversation_with_tool_calls_is_kept_whole(tmp_path: Path) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    told = {"role": "tool", "tool_call_id": "c", "content": "rain"}
    (prompt,) = read_prompts(prompts_file(tmp_path, {"messages": [USER, asked, told], "tools": [TOOL]}))
    assert (prompt.messages, prompt.tools) == ((USER, asked, told), (TOOL,))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"messages": []}, r"Expected `array` of length >= 1 - at `\$\.messages`"),
        ({"messages": "Hello."}, r"Expected `array \| null`, got `str` - at `\$\.messages`"),
        ({"messages": ["Hello."]}, r"Expected `object`, got `str` - at `\$\.messages\[0\]`"),
        ({"messages": [{"content": "Hello."}]}, r'\[0\] must be an object with a "role"'),
        ({"messages": [USER, {"role": "user"}]}, r'\[1\] needs a "content"'),
        ({"messages": [{"role": "user", "content": []}]}, r'\[0\] needs a "content"'),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            'a content part of type "image_url"; only text is run',
        ),
        ({"messages": [{"role": "user", "content": ["text"]}]}, "a content part that is no"),
        ({"messages": [USER, {"role": "assistant", "content": "Hi."}]}, "is the assistant's answer"),
        ({"messages": [USER], "prompt": "text"}, 'has "prompt", "messages"; each is a whole prompt'),
        ({"messages": [USER], "chat": True}, 'has "messages", "chat"; each is a whole prompt'),
        ({"messages": [USER], "chat_template": "{{ messages }}"}, '"chat_template" changes what'),
        (
            {"messages": [USER], "chat_template_kwargs": {"tokenize": True}},
            'has "tokenize", which is no variable',
        ),
        (
            {"messages": [USER], "chat_template_kwargs": [1]},
            r"Expected `object \| null`, got `array` - at `\$\.chat_template_kwargs`",
        ),
        (
            {"messages": [USER], "add_generation_prompt": 1},
            r"Expected `bool \| null`, got `int` - at `\$\.add_generation_prompt`",
        ),
        ({"messages": [USER], "tools": {}}, None),
        ({"messages": [USER], "tools": ["f"]}, r"Expected `object`, got `str` - at `\$\.tools\[0\]`"),
        ({"messages": [USER], "set": 3}, r"Expected `str`, got `int` - at `\$\.set`"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: Any, words: str | None, tmp_path: Path) -> None:
    file = prompts_file(tmp_path, "fine", line)
    if words is None:
        assert len(read_prompts(file)) == 2
        return
    with pytest.raises(UsageError, match=f"prompts.jsonl, line 2.*{words}"):
        read_prompts(file)


def test_digests_tell_messages_apart() -> None:
    prompts = [
        Prompt("", messages=(USER,)),
        Prompt("", messages=({**USER, "role": "system"},)),
        Prompt("", messages=(USER,), tools=(TOOL,)),
        Prompt("Hello."),
        Prompt("", messages=(USER,), template_arguments={"enable_thinking": False}),
        Prompt("", messages=(USER,), template_arguments={"enable_thinking": True}),
    ]
    assert len({prompt_digest(prompt) for prompt in prompts}) == 6
    assert len({digest_prompts([prompt]) for prompt in prompts}) == 6


def test_a_sample_is_the_same_everywhere_and_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = prompts_file(tmp_path, *(f"prompt {number}" for number in range(10)))
    drawn = {seed: choose_prompts(file, 3, seed) for seed in (0, 1)}
    assert [prompt.text for prompt in drawn[0].prompts] == SAMPLE_OF_SEED_0
    assert drawn[1].prompts != drawn[0].prompts
    assert (drawn[0].total, drawn[0].sample, drawn[0].file) == (10, 3, "prompts.jsonl")
    assert drawn[0].sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert choose_prompts(file, 10).prompts == read_prompts(file)


SAMPLE_OF_SEED_0 = ["prompt 4", "prompt 7", "prompt 9"]


@pytest.mark.parametrize("sample", [0, -1, 11])
def test_a_sample_that_the_file_cannot_give_is_refused(sample: int, tmp_path: Path) -> None:
    file = prompts_file(tmp_path, *(f"prompt {number}" for number in range(10)))
    with pytest.raises(UsageError, match=f"--sample {sample}: .* holds 10 prompts; a number from 1 to 10"):
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


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a switch of the template": ({"chat_template_kwargs": {"enable_thinking": False}}, "[off]<assistant>"),
    "a text for the template": ({"chat_template_kwargs": {"effort": "low"}}, "[low]<assistant>"),
    "no opening of an answer": ({"add_generation_prompt": False}, ""),
    "both": ({"add_generation_prompt": False, "chat_template_kwargs": {"effort": "low"}}, "[low]"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.parametrize("line", [{"messages": [USER]}, {"prompt": "Hello.", "chat": True}])
def test_a_requests_arguments_of_the_template_are_used(
    case: str, line: dict[str, Any], tmp_path: Path
) -> None:
    keys, end = ARGUMENTS[case]
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
    folder, seen = drafter_folder(tmp_path), list[Any]()
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text('{"num_hidden_layers": 8, "model_type": "llama"}')
    template = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False}
    file = prompts_file(tmp_path, {"messages": [USER], "tools": [TOOL], "set": "a", **template})
    with server({**SGLANG, "/v1/chat/completions": ANSWER}, seen) as url:
        options = eaglectl.SmokeOptions(run_in=url, prompts=file, max_tokens=20, ignore_eos=True)
        report = eaglectl.smoke(str(folder), str(tmp_path / "target"), options)
    assert (seen[0]["messages"], seen[0]["tools"], seen[0]["ignore_eos"]) == ([USER], [TOOL], True)
    assert {key: seen[0][key] for key in template} == template
    assert "prompt" not in seen[0] and set(report.by_set) == {"a"}
    assert report.choice is not None
    assert report.choice.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_report_names_its_file_and_sample(tmp_path: Path) -> None:
    from eaglectl.report.acceptance import facts
    from tests.pages import smoke_report

    document = json.dumps(facts(smoke_report()))
    assert "a sample of 99, x (SHA-256 bbbbbbbbbbbb)" in document


CHAT = Prompt(
    "",
    messages=(
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "user", "content": "And now?"},
    ),
)


def test_another_template_of_the_drift_probe_is_not_the_targets_own() -> None:
    chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role }}{% endfor %}"
    for own, opening in (
        (chatml, "### assistant:\n"),
        ("[INST]{{ messages[0].content }}[/INST]", "<|im_start|>assistant\n"),
        (None, "<|im_start|>assistant\n"),
    ):
        assert _written(CHAT, own).text.endswith(opening)


def test_messages_are_written_turn_by_turn_into_another_template() -> None:
    turns = "### system:\nBe short.\n\n### user:\nHello\n\n### assistant:\n\n\n### user:\nAnd now?\n\n"
    assert _written(CHAT, "<|im_start|>") == Prompt(f"{turns}### assistant:\n")
    assert _written(Prompt("Hi"), "<|im_start|>").text == "### user:\nHi\n\n### assistant:\n"


def test_a_foreign_system_prompt_goes_before_the_first_text_of_the_user() -> None:
    messages = _instructed(CHAT).messages
    assert messages[1]["content"].startswith("You are the keeper") and messages[1]["content"].endswith(
        "Hello"
    )
    assert (messages[0], *messages[2:]) == (CHAT.messages[0], *CHAT.messages[2:])
    assert _instructed(Prompt("Hi", is_chat=True)).is_chat
    assert _instructed(Prompt("Hi")).text.endswith("\n\nHi")
