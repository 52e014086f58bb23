"""What a draft vocabulary holds of texts or of counted tokens, where no target runs."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import EaglectlError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import is_folder
from eaglectl.files.hub_cache import is_repo_name
from eaglectl.files.opening import on_disk
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.operations.options import ConvertOptions, InspectOptions
from eaglectl.run.coverage import (
    TEXTS,
    Coverage,
    TokenText,
    counts_text,
    coverage_of_counts,
    measure_coverage,
    pruned_from,
    script_of,
)
from eaglectl.shell import as_path
from eaglectl.target import weights_folder

# draft tokens in a round, as of `smoke`
K = 3
# what commands that are printed write
COUNTS = "counts.txt"
OUT = ("--write-token-counts", COUNTS)
NO_TARGET = "--prompts: their tokens are those of the target's tokenizer; pass --target with its folder"


def cover_given(
    checkpoint: Checkpoint, drafter: Drafter, options: InspectOptions, source: str, target: str | None
) -> Coverage | None:
    """Coverage of the texts or counts that the options name; None where they name none.

    Raises UsageError for options that do not fit, UnreadableError where the tokenizer cannot be loaded,
    RefusedError for a drafter whose draft vocabulary cannot be read.
    """
    prompts, counts, out = options.prompts, options.token_counts, options.write_token_counts
    check(
        (prompts is not None and counts is not None, "--prompts or --token-counts: give one of them"),
        (out is not None and prompts is None, "--write-token-counts counts --prompts; give those too"),
    )
    if prompts is None and counts is None:
        return None
    vocabulary = _vocabulary(checkpoint, drafter, options)
    if counts is not None:
        from eaglectl.conversion.vocabulary import read_counts

        coverage = coverage_of_counts(read_counts(Path(counts), drafter.dims.vocab).by_token, vocabulary, K)
    else:
        coverage = _cover_texts(list(_texts(str(prompts), target)), vocabulary, out)
    coverage, counting = replace(coverage, wider=pruned_from(checkpoint.record)), None
    if counts is None and out is None:
        words = ["--prompts", as_path(str(prompts)), *OUT]
        counting = command("inspect", source, *words, target=options.target, answers=options.answers)
    return with_commands(coverage, source, options.target, options.answers, counting, counts or out or COUNTS)


def with_commands(
    coverage: Coverage,
    source: str,
    target: str | None,
    answers: Answers,
    counting: str | None,
    counts: str = COUNTS,
) -> Coverage:
    """The coverage with the commands that make a low one higher: `counting` writes `counts`, which prune."""
    if not coverage.holds_down:
        return coverage
    commands = [counting] if counting else []
    words = ["--draft-vocab", str(coverage.size), "--token-counts", as_path(counts)]
    if is_of_target := _is_of_target(source, target, answers):
        words = ["--materialize-lm-head", *words]
        commands.append(command("convert", source, *words, target=target, answers=answers))
    elif coverage.wider and (place := _place(source, coverage.wider[0])):
        commands.append(command("convert", place, *words, target=target))
    return replace(coverage, commands=tuple(commands), is_of_target=is_of_target)


def _is_of_target(source: str, target: str | None, answers: Answers) -> bool:
    """Whether the drafter's lm_head is of rows of the target's, so that a conversion may take others."""
    if target is None or weights_folder(target) is None:
        return False
    from eaglectl.operations.converting import convert  # late: it inspects

    options = ConvertOptions(target=target, answers=answers, has_target_head=True, dry_run=True, measure=None)
    try:
        convert(source, None, options)
    except EaglectlError:
        return False
    return True


def _place(source: str, name: str) -> str | None:
    """Where the drafter of this name is: on the Hub, or a folder beside the source; None where neither."""
    if is_repo_name(name):
        return name
    beside = Path(source).resolve().parent / name
    return str(beside) if is_folder(beside) else None


def _vocabulary(checkpoint: Checkpoint, drafter: Drafter, options: InspectOptions) -> Collection[int]:
    """The target tokens that have a draft token."""
    if not drafter.has_reduced_vocabulary:
        return range(drafter.dims.vocab)
    from eaglectl.conversion.vocabulary import draft_vocabulary

    return frozenset(draft_vocabulary(checkpoint, drafter, options.answers, None).targets)


def _cover_texts(texts: list[TokenText], vocabulary: Collection[int], out: str | None) -> Coverage:
    from eaglectl.report.output_files import parse_new, write_new

    path = parse_new("--write-token-counts", out)
    coverage = measure_coverage(texts, vocabulary, K, TEXTS)
    if coverage is None:
        raise UsageError("--prompts: its texts have one token each; give longer ones")
    if path is not None:
        write_new("--write-token-counts", path, counts_text(texts))
    return coverage


def _texts(prompts: str, target: str | None) -> Iterator[TokenText]:
    """The prompts as tokens: texts and the contents of messages by themselves, without a chat template."""
    from eaglectl.run.process import require_torch
    from eaglectl.run.prompts import choose_prompts

    if target is None:
        raise UsageError(NO_TARGET)
    every = choose_prompts(prompts).prompts
    require_torch("--prompts of inspect needs")
    from eaglectl.reference.target import load_tokenizer

    place = Path(on_disk(target, has_weights=False))
    tokenizer: Any = load_tokenizer(place if is_folder(place) else place.parent)
    for prompt in every:
        contents = [message.get("content") for message in prompt.messages]
        text = "\n".join([prompt.text, *filter(None, contents)]).strip("\n")
        tokens = prompt.token_ids or tokenizer(text, add_special_tokens=False)["input_ids"]
        yield TokenText(prompt.set, tuple(tokens), script_of(text or tokenizer.decode(tokens)))
