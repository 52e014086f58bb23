"""Engines as users name them (`vllm`, `vllm>=0.22`, `sglang==0.5.23`), and the commands that start them."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.engines import sglang, vllm
from eaglectl.engines.engine import Verdict
from eaglectl.engines.vllm import View
from eaglectl.errors import Usage

# engines that convert can write ids for, and whose releases are not followed
UNVERSIONED = ("atom", "tensorrt-llm", "tokenspeed")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One engine and the releases asked about, newest last."""

    engine: str
    releases: tuple[str, ...]


def parse_engine(text: str) -> Wanted:
    """The engine and releases that `text` means; a bare name is the newest release known. Raises Usage."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise Usage(f'--engine {text}: write it as vllm, "vllm>=0.22" or sglang=={sglang.RELEASE}') from None
    name = requirement.name.lower()
    if name in UNVERSIONED and not requirement.specifier:
        return Wanted(name, ())
    known = {"vllm": vllm.releases(), "sglang": (sglang.RELEASE,)}.get(name)
    if known is None:
        raise Usage(f"--engine {text}: releases are known of vllm and sglang; {', '.join(UNVERSIONED)} take no version")
    if not requirement.specifier:
        return Wanted(name, known[-1:])
    matching = tuple(release for release in known if release in requirement.specifier)
    if not matching:
        raise Usage(f"--engine {text}: no known release fits; {name} is known from {known[0]} to {known[-1]}")
    return Wanted(name, matching)


def verdicts(
    drafter: Drafter, config: Mapping[str, Any], flat: Mapping[str, Any], names: tuple[str, ...], wanted: Wanted
) -> tuple[Verdict, ...]:
    """What each wanted release does with a checkpoint as it lies."""
    if wanted.engine == "vllm":
        view = View(drafter, config, vllm.flat_as_read(config, flat), names)
        return tuple(vllm.verdict(view, release) for release in wanted.releases)
    return (sglang.verdict(drafter, config, names),) if wanted.engine == "sglang" else ()


def launch_commands(drafter: Drafter, path: str, tokens: int = 3) -> Mapping[str, str]:
    """The command that serves the drafter, for each engine; TARGET where the target's name is not known."""
    target = shlex.quote(drafter.target.name) if drafter.target.name else "TARGET"
    speculative: dict[str, Any] = {"method": "eagle3", "model": path, "num_speculative_tokens": tokens}
    if drafter.kind == "peagle":
        speculative["parallel_drafting"] = True
    quoted = shlex.quote(path)
    sglang_parts = [
        (
            f"python -m sglang.launch_server --model-path {target} --speculative-algorithm EAGLE3"
            f" --speculative-draft-model-path {quoted}"
        ),
        f"--speculative-num-steps {tokens} --speculative-eagle-topk 1 --speculative-num-draft-tokens {tokens + 1}",
    ]
    if Feature.SLIDING_WINDOW in drafter.features():
        sglang_parts.append(f"--speculative-draft-sliding-window {drafter.carried['sliding_window']}")
    commands = {
        "vllm": f"vllm serve {target} --speculative-config {shlex.quote(json.dumps(speculative))}",
        "sglang": " ".join(sglang_parts),
    }
    boundaries = drafter.aux.boundaries
    if boundaries and boundaries[0] > 0:
        commands["tensorrt-llm"] = f"eagle3_layers_to_capture: {_set([b - 1 for b in boundaries])}"
    return commands


def _set(numbers: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"
