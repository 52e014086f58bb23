"""The OpenAI-compatible API of a server: its model, and completions.

Its answers in JSON are read strictly and held to answers.schema.json before anything uses them.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from eaglectl.errors import UnreadableError
from eaglectl.files.header import parse_json
from eaglectl.run.job import EngineJob
from eaglectl.run.prompts import GENERATION_PROMPT, Prompt
from eaglectl.run.server.http import Server
from eaglectl.run.tokens import chat_messages, has_chat_template

# draft tokens in a round; no EAGLE drafter makes as many
MAX_STEPS = 64
SCHEMA = "answers.schema.json"
# 20.0 is an integer to JSON Schema, and no count here
CHECKER = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
# the number of new tokens, the path, and the answer
Completion = tuple[int, str, Mapping[str, Any]]
Strict: Any = extend(Draft202012Validator, type_checker=CHECKER)  # type: ignore[no-untyped-call]


def get(server: Server, path: str, kind: str, body: bytes | None = None) -> Mapping[str, Any]:
    """The JSON object at `path`, an answer of `kind` (a definition of the schema). Raises UnreadableError."""
    return parse_answer(server, path, kind, server.read(path, body))


def get_optional(server: Server, path: str, kind: str) -> Mapping[str, Any]:
    """The JSON object at `path`; empty where the server has none there. Raises UnreadableError."""
    raw = server.read(path, may_lack=True)
    return parse_answer(server, path, kind, raw) if raw else {}


def parse_answer(server: Server, path: str, kind: str, raw: bytes) -> Mapping[str, Any]:
    """The answer of `kind` that `raw` is. Raises UnreadableError, which names the first fault."""
    place, advice = f"{server}{path}", _schema()["$defs"][kind]["title"]
    try:
        value: Mapping[str, Any] = parse_json(place, raw)
    except UnreadableError as error:
        raise UnreadableError(f"{server.shown(str(error))}; {advice}") from None
    hold(server, path, kind, value)
    return value


def hold(server: Server, path: str, kind: str, value: object) -> None:
    """Raise UnreadableError where `value` is no answer of `kind`."""
    try:
        error = next(iter(_validator(kind).iter_errors(value)), None)
        fault = error and _fault(server, error)
    except RecursionError:
        fault = "is nested too deeply"
    if fault:
        raise UnreadableError(f"{server}{path} {fault}; {_schema()['$defs'][kind]['title']}")


def _fault(server: Server, error: Any) -> str:
    """What is wrong, and where, in words that hold little of the answer."""
    names, value = [str(name) for name in error.absolute_path], error.instance
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in value)
        return f"has no {'.'.join([*names, missing])}"
    if isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    else:
        text = json.dumps(value)
        shown = server.shown(text if len(text) <= 40 else f"{text[:40]}...")
    what = f"has {'.'.join(names)} = {shown}" if names else f"answered with {shown}"
    return f"{what}, where {error.schema['description']} was expected"


@cache
def _schema() -> Mapping[str, Any]:
    return msgspec.json.decode(
        resources.files(__package__).joinpath(SCHEMA).read_bytes(), type=dict[str, Any]
    )


@cache
def _validator(kind: str) -> Any:
    return Strict({**_schema(), "$ref": f"#/$defs/{kind}"})


def complete(
    server: Server, model: str, prompt: Prompt, job: EngineJob, extra: Mapping[str, Any]
) -> Completion:
    """The number of new tokens for `prompt`, the path, and the answer; `extra` are more keys of the request.

    Raises UnreadableError where the answer does not say how many, or says more than were requested.
    """
    path = "/v1/completions"
    content: dict[str, Any] = {"prompt": list(prompt.token_ids) or prompt.text}
    if prompt.messages or (prompt.is_chat and has_chat_template(job.target)):
        path, content = "/v1/chat/completions", {"messages": list(chat_messages(prompt))}
        if prompt.tools:
            content["tools"] = list(prompt.tools)
        arguments = dict(prompt.template_arguments)
        if GENERATION_PROMPT in arguments:
            content[GENERATION_PROMPT] = arguments.pop(GENERATION_PROMPT)
        if arguments:
            content["chat_template_kwargs"] = arguments
    request = {
        "model": model,
        **content,
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "ignore_eos": job.ignores_eos,
        **extra,
    }
    answer = get(server, path, "completion", json.dumps(request).encode())
    tokens: int = answer["usage"]["completion_tokens"]
    if tokens > most_tokens(job):
        raise UnreadableError(
            f"{server}{path} says that it made {tokens} tokens (usage.completion_tokens), of"
            f" {job.max_tokens} that were requested; its figures are not this request's: see the server's log"
        )
    return tokens, path, answer


def answer_text(answer: Mapping[str, Any]) -> str:
    """The text of a completion, or of a chat's message; "" where the server sent none."""
    match answer.get("choices"):
        case [{"text": str(text)}, *_] | [{"message": {"content": str(text)}}, *_]:
            return text
    return ""


def most_tokens(job: EngineJob) -> int:
    """The most new tokens of a request, and the most rounds: a server may finish the last round."""
    return job.max_tokens + MAX_STEPS


def other_drafter(folder: Path, drafter: str, shown: str) -> tuple[str, ...]:
    """A difference where the server's drafter is a folder of this machine and not the one under test."""
    served = Path(drafter)
    try:
        if not served.is_dir() or served.resolve() == folder.resolve():
            return ()
    except (OSError, ValueError):  # a name that no folder of this machine can have
        return ()
    return (f"the server drafts with {shown}, and the drafter under test is {folder}",)
