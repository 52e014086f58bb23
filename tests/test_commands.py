"""Commands as they are printed: quoted, whole, and with what was given."""

import pytest

from eaglectl.formats.commands import Complete, command
from eaglectl.formats.format import Answers
from eaglectl.target.choice import as_target

LAYERS, CONVENTION = "--aux-layers 2,4,5", "--aux-convention output"
HARMLESS, ROPE = "--source-semantics 'harmless=a b'", "--source-semantics rope=stored"
ANSWERED = Answers((2, 4, 5), "output", {"harmless": "a b", "rope": "stored"})


def test_a_command_is_quoted() -> None:
    answers = Answers((2, 4, 5), "output", {"harmless": "a b"})
    assert command("convert", "it's", "--for", "sglang", target=as_target("a b"), answers=answers) == (
        "eaglectl convert $'it\\047s' --for sglang --target 'a b' --aux-layers 2,4,5 --aux-convention output"
        " --source-semantics 'harmless=a b'"
    )
    assert command("smoke", "-x") == "eaglectl smoke ./-x"


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("--source-semantics rope=10000", (LAYERS, CONVENTION, HARMLESS)),
        ("--aux-convention boundary", (LAYERS, HARMLESS, ROPE)),
        ("--aux-layers 1,2,3", (HARMLESS, ROPE)),
    ],
)
def test_an_option_replaces_the_answer_that_it_contradicts(options: str, left: tuple[str, ...]) -> None:
    printed = command("convert", "x", *options.split(), answers=ANSWERED)
    assert printed == " ".join((f"eaglectl convert x {options}", *left))


def test_a_text_gets_the_source_the_target_and_the_answers() -> None:
    text = "run `eaglectl convert SOURCE --for vllm`, or `eaglectl smoke SOURCE --target TARGET`; see SOURCE"
    answers = Answers(aux_convention="output")
    assert Complete("/a b/c", as_target("/the target"), answers)(text) == (
        "run `eaglectl convert '/a b/c' --for vllm --target '/the target' --aux-convention output`, or"
        " `eaglectl smoke '/a b/c' --target '/the target' --aux-convention output`; see SOURCE"
    )
    # a target that is not known is asked for in words
    assert Complete("x")("run `eaglectl smoke SOURCE --target TARGET --probe drift`, or more") == (
        "run `eaglectl smoke x --probe drift` with --target and the target's folder, or more"
    )
