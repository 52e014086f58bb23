"""Rewriting a drafter."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eaglectl.api.inputs import open_target, special_tokens
from eaglectl.checkpoint.checkpoint import VOCABULARY_PICKLES, pickle_files, read_checkpoint, read_config
from eaglectl.checkpoint.source import FolderSource, Source, open_folder
from eaglectl.conversion.plan import Plan, Wish
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Tensor
from eaglectl.engines.catalogue import parse_engine, verdicts
from eaglectl.errors import Unreadable, Usage
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter
from eaglectl.reports.findings import Conversion

if TYPE_CHECKING:
    from eaglectl.conversion.target_head import TargetHead


def convert(
    source: str, out: str | Path | None = None, *, wish: Wish | None = None, target: str | None = None, target_name: str | None = None,
    answers: Answers | None = None, dry_run: bool = False, force: bool = False, link: bool = False, max_shard_size: int | None = None,
    told: Callable[[int], None] | None = None, planned: Callable[[Plan], None] | None = None,
) -> Conversion:  # fmt: skip
    """Rewrite a drafter in another layout; `out` defaults to NAME-eagleVERSION in the current folder.

    Raises Usage for what only the user knows, Refused for what cannot be done, Unreadable for input that cannot be read.
    `planned` is called with the plan before anything is written, `told` with each number of bytes that was.
    """
    import time

    from eaglectl.checkpoint.writer import check_apart
    from eaglectl.conversion.planning import make_plan
    from eaglectl.conversion.writing import Writing, write_plan

    start = time.perf_counter()
    wish, answers = wish or Wish(), answers or Answers()
    for engine in wish.engines:
        parse_engine(engine)
    original = open_folder(source)
    where = Path(out) if out is not None else None
    guarded = [
        original.root,
        *([] if target is None else [Path(target)]),
        *([wish.pruning.counts] if wish.pruning else []),
    ]
    if where is not None:
        for folder in guarded:
            check_apart(where, folder)
    pickles = pickle_files(original)
    known = open_target(target, target_name)
    if wish.pruning and wish.pruning.kept is None:
        wish = replace(wish, pruning=replace(wish.pruning, kept=special_tokens(target)))
    if wish.has_target_head and wish.head is None:
        wish = replace(wish, head=_target_head(target))
    with _readable(original, pickles, where) as readable:
        checkpoint = read_checkpoint(readable)
        drafter = read_drafter(checkpoint, answers, known)
        selected = _selected(original, drafter)
        plan = make_plan(checkpoint, drafter, wish, answers, selected)
        where = where or default_place(original, plan.drafter.version)
        for folder in guarded:
            check_apart(where, folder)
        plan = replace(plan, notes=(*plan.notes, *_judged(plan, wish)))
        if planned:
            planned(plan)
        if dry_run:
            return Conversion(plan, None, pickles, time.perf_counter() - start)
        writing = Writing(where, force=force, link=link and not pickles, max_shard_size=max_shard_size, told=told)
        write_plan(plan, checkpoint, original, pickles or checkpoint.weight_files, writing)
    return Conversion(plan, where, pickles, time.perf_counter() - start)


def _target_head(target: str | None) -> "TargetHead":
    from eaglectl.conversion.target_head import find_target_head

    if target is None:
        raise Usage("--materialize-lm-head copies the target's lm_head; pass --target with the target's weights")
    return find_target_head(read_checkpoint(open_folder(target)))


def _judged(plan: Plan, wish: Wish) -> Iterator[Note]:
    """A warning for every engine asked for (vLLM's newest release by default) that would not run the output as trained."""
    asked = wish.engines or (
        ("sglang",) if plan.layout == "sglang" else ("vllm",) if plan.layout in ("vllm", "speculators") else ()
    )
    flatten = by_name(plan.layout).flatten
    flat = flatten(plan.config) if flatten else plan.config
    derived = {step.name: Tensor(step.name, step.dtype, step.shape, ()) for step in plan.steps if not step.origin}
    settled = replace(plan.drafter, notes=(), unknown=(), tensors={**derived, **plan.drafter.tensors})
    names = tuple(step.name for step in plan.steps)
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for text in asked:
        for verdict in verdicts(settled, plan.config, flat, names, parse_engine(text)):
            if verdict.outcome != "as trained":
                groups.setdefault((verdict.engine, verdict.outcome, verdict.reasons), []).append(verdict.release)
    for (engine, outcome, reasons), releases in groups.items():
        span = releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
        yield Note("warning", f"{engine} {span}", f"{engine} {span}, with this output: {outcome}: {'; '.join(reasons)}")


def default_place(original: Source, version: str) -> Path:
    """Where a conversion is written that nobody gave a place: beside the current folder's files."""
    return Path(f"{original.label.rpartition('/')[2]}-eagle{version}")


@contextmanager
def readable_folder(source: str) -> Iterator[str]:
    """A folder with the files of `source` whose weights are no pickles: `source` itself, or a rewriting that is gone afterwards."""
    original = open_folder(source)
    pickles = pickle_files(original)
    with _readable(original, pickles, None) as found:
        yield str(found.root) if pickles and isinstance(found, FolderSource) else source


@contextmanager
def _readable(original: FolderSource, pickles: tuple[str, ...], out: Path | None) -> Iterator[Source]:
    """The source itself, or a safetensors rewriting of its pickles that is gone afterwards."""
    if not pickles:
        yield original
        return
    from eaglectl.checkpoint.pickles import unpickle

    read_config(original)
    near = out.parent if out is not None and out.parent.is_dir() else None
    try:
        folder = tempfile.TemporaryDirectory(prefix=".eaglectl-", dir=near)
    except OSError as error:
        raise Unreadable(f"{near}: cannot write there: {error.strerror}") from None
    with folder as name:
        yield unpickle(original, Path(name))


def _selected(original: FolderSource, drafter: Drafter) -> tuple[int, ...] | None:
    if (
        not drafter.has_reduced_vocabulary
        or "d2t" in drafter.tensors
        or not any(name in VOCABULARY_PICKLES for name in original.names())
    ):
        return None
    from eaglectl.checkpoint.pickles import selected_tokens

    return selected_tokens(original)
