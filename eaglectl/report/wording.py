"""Sizes, counts, layers and releases in words, for every medium."""

from collections.abc import Iterable, Sequence

from eaglectl.drafter.boundaries import TRAINING_DEFAULT, AuxLayers, DefaultLayers
from eaglectl.drafter.drafter import Note, are_stated
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.releases import ranges
from eaglectl.results import OutputServing
from eaglectl.verdicts import ServedAs

LONGEST_VALUE = 60
# what stands in the commands of engines for files that are not known
PLACEHOLDERS = {
    "TARGET": "TARGET is the target's folder",
    "TARGET.gguf": "TARGET.gguf is the target's, by llama.cpp's convert_hf_to_gguf.py",
    "DRAFTER.gguf": "DRAFTER.gguf is the drafter's",
}
NOT_SERVED = {
    ServedAs.FAILS: "not served",
    ServedAs.DIFFERS: "not served as trained",
    ServedAs.UNKNOWN: "not known to serve it as trained",
}


def placeholders(commands: Iterable[str]) -> str:
    """Return what the placeholders in commands of engines stand for, or "" where there are none."""
    words = {word for command in commands for word in command.split()}
    return "; ".join(text for name, text in PLACEHOLDERS.items() if name in words)


def not_served(serving: OutputServing, shown: Iterable[Note] = ()) -> str:
    """Return why an engine's release does not run an output as trained, and which of its releases do.

    Doubts that the notes `shown` above state are not repeated.
    """
    verdict = serving.verdict
    others = f" ({serving.serving} serve it)" if serving.serving else ""
    is_shown = verdict.outcome == ServedAs.UNKNOWN and are_stated(verdict.reasons, shown)
    why = "see the warning above" if is_shown else "; ".join(verdict.reasons)
    if not verdict.release:  # of an engine whose releases are not followed
        return f"{verdict.outcome}: {why}"
    return f"{NOT_SERVED[verdict.outcome]} by {verdict.release}: {why}{others}"


def size(nbytes: int) -> str:
    """Return bytes in decimal units, as disks and the Hub count them."""
    amount, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    decimals = 0 if unit == "B" else 2
    return f"{amount:.{decimals}f} {unit}"


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: "1 rule", "2 rules"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortened(text: str) -> str:
    """Return text cut to LONGEST_VALUE characters."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def layers(boundaries: Sequence[int] | None, default: DefaultLayers | None) -> str:
    """Return boundaries as a list in words."""
    if boundaries is not None:
        return ", ".join(map(str, boundaries))
    return default.terms if default else "unknown"


def trained_layers(aux: AuxLayers) -> str:
    """Return the trained aux layers and how they are known."""
    default = TRAINING_DEFAULT if aux.is_default else None
    return f"{layers(aux.boundaries, default)} ({aux.how})"


def engine_ranges(releases: Sequence[str]) -> str:
    """Return engine releases, each as "vllm==0.32.0", as ranges: "vllm 0.22.0 - 0.24.0, sglang 0.5.23"."""
    by_engine: dict[str, list[str]] = {}
    for text in releases:
        engine, _, release = text.partition("==")
        by_engine.setdefault(engine, []).extend(filter(None, [release]))
    texts = (f"{engine} {ranges(named, _known(engine, named))}" for engine, named in by_engine.items())
    return ", ".join(text.strip() for text in texts)


def _known(engine: str, named: Sequence[str]) -> Sequence[str]:
    """Return the known releases of an engine, and behind them the others that are named."""
    known = ENGINES[engine].releases if engine in ENGINES else ()
    return [*known, *(release for release in named if release not in known)]


def release_range(verdicts: Sequence[Verdict], known: Sequence[str]) -> str:
    """Return the releases of these verdicts as ranges of `known`: "0.22.0 - 0.33.0"."""
    return ranges([verdict.release for verdict in verdicts], known)
