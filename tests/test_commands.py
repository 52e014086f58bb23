"""Commands as they are printed: quoted, whole, and with what was given."""

import pytest

from eaglectl.formats.commands import command, completed
from eaglectl.formats.format import Answers

ANSWERED = Answers((2, 4, 5), "output", {"harmless": "a b", "rope": "stored"})


def test_a_command_is_quoted() -> None:
    answers = Answers((2, 4, 5), "output", {"harmless": "a b"})
    assert command("convert", "it's", "--for", "sglang", target="a b", answers=answers) == (
        "eaglectl convert $'it\\047s' --for sglang --target 'a b' --aux-layers 2,4,5 --aux-convention output"
        " --source-semantics 'harmless=a b'"
    )
    assert command("smoke", "-x") == "eaglectl smoke ./-x"


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        (
            ("--source-semantics", "rope=10000"),
            "--aux-layers 2,4,5 --aux-convention output --source-semantics 'harmless=a b'",
        ),
        (
            ("--aux-convention", "boundary"),
            "--aux-layers 2,4,5 --source-semantics 'harmless=a b' --source-semantics rope=stored",
        ),
        (("--aux-layers", "1,2,3"), "--source-semantics 'harmless=a b' --source-semantics rope=stored"),
    ],
)
def test_an_option_replaces_the_answer_that_it_contradicts(options: tuple[str, str], answers: str) -> None:
    assert command("convert", "x", *options, answers=ANSWERED) == (
        f"eaglectl convert x {' '.join(options)} {answers}"
    )


def test_a_text_gets_the_source_the_target_and_the_answers() -> None:
    text = "run `eaglectl convert SOURCE --for vllm`, or `eaglectl smoke SOURCE --target TARGET`; see SOURCE"
    answers = Answers(aux_convention="output")
    assert completed(text, "/a b/c", "/the target", answers) == (
        "run `eaglectl convert '/a b/c' --for vllm --target '/the target' --aux-convention output`, or"
        " `eaglectl smoke '/a b/c' --target '/the target' --aux-convention output`; see SOURCE"
    )


def test_a_target_that_is_not_known_is_asked_for_in_words() -> None:
    text = "run `eaglectl smoke SOURCE --target TARGET --probe drift`, or `eaglectl convert SOURCE`"
    assert completed(text, "x") == (
        "run `eaglectl smoke x --probe drift` with --target and the target's folder, or `eaglectl convert x`"
    )


@pytest.mark.parametrize(
    "text", ["`eaglectl rules` lists them", "`eaglectl convert SOURCE 'x`", "SOURCE", ""]
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert completed(text, "x", "t", ANSWERED) == text
