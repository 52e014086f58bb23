"""Small wordings that several reports share."""

from collections.abc import Sequence

from eaglectl.drafter.boundaries import AuxLayers
from eaglectl.engines import vllm
from eaglectl.engines.engine import Verdict
from eaglectl.engines.facts import ranges


def size(nbytes: int) -> str:
    """Bytes in decimal units, as disks and the Hub count them."""
    amount, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.2f} {unit}"


def layers(boundaries: Sequence[int] | None, *, is_default: bool) -> str:
    """Boundaries as people read them."""
    if boundaries is not None:
        return ", ".join(map(str, boundaries))
    return "2, n//2, n-3" if is_default else "unknown"


def trained_layers(aux: AuxLayers) -> str:
    """The trained aux layers and what that rests on."""
    return f"{layers(aux.boundaries, is_default=aux.is_default)} ({aux.how})"


def engines(named: Sequence[str]) -> str:
    """Engine releases, each as "vllm==0.32.0", in few words: "vllm 0.22.0 - 0.24.0, sglang 0.5.23"."""
    known = {"vllm": vllm.releases()}
    by_engine: dict[str, list[str]] = {}
    for one in named:
        engine, _, release = one.partition("==")
        by_engine.setdefault(engine, []).extend([release] if release else [])
    words = (f"{engine} {ranges(found, known.get(engine, found))}" for engine, found in by_engine.items())
    return ", ".join(word.strip() for word in words)


def release_range(verdicts: Sequence[Verdict], known: Sequence[str]) -> str:
    """Consecutive releases of one outcome as ranges of `known`: "0.22.0 - 0.33.0"."""
    return ranges([verdict.release for verdict in verdicts], known)
