"""The launch commands of a card, and what they state of speculation that is not the drafter's."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.data import load
from eaglectl.engines.registry import launch_commands

CONFIG = "speculative-config"
ALGORITHM = ("speculative-algorithm", "speculative-algo")
DRAFTER = ("speculative-draft-model-path", "speculative-draft-model")
# vLLM's short options and the keys of its --speculative-config that they set
SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
# values of vLLM's `method` and SGLang's algorithm that run an EAGLE-3 drafter
METHODS, ALGORITHMS = ("eagle3",), ("EAGLE3",)
OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
LONGEST = 8192  # characters of a command


def launch_faults(card: str, drafter: Drafter) -> Iterator[tuple[str, str]]:
    """What is wrong in each launch command of `card`, and the command in its place.

    Those of vLLM and of SGLang with options of speculation are read; a command that no shell splits is not.
    """
    for words in _commands(card):
        options = dict(_options(words))
        given = _vllm_config(options)
        if given or any("vllm" in word for word in words):
            engine, faults = "vllm", tuple(_vllm_faults(given, options, drafter))
            path, tokens = given.get("model"), given.get("num_speculative_tokens")
        else:
            engine, faults = "sglang", tuple(_sglang_faults(options, drafter))
            path, tokens = _first(options, DRAFTER), _number(options, "num-steps")
        if faults:
            right = launch_commands(
                drafter,
                str(path or "DRAFTER"),
                tokens if isinstance(tokens, int) and tokens > 0 else 3,
                target_text=_target(words, options),
            )
            yield "; ".join(faults), right[engine]


def _commands(card: str) -> Iterator[Sequence[str]]:
    """The words of each command that states speculation; quotes may go on in the lines that follow."""
    kept = ""
    for line in re.sub(r"\\\r?\n", " ", card).splitlines():
        if not line.strip() or line.startswith("```"):
            kept = ""
            continue
        kept = f"{kept}\n{line}" if kept else line
        try:
            words = shlex.split(kept)
        except ValueError:
            if "--spec" not in kept or len(kept) > LONGEST:
                kept = ""
            continue
        if "--speculative" in kept or ("vllm" in kept and "--spec-" in kept):
            yield words
        kept = ""


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value, of either form; "" for a switch."""
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if match := OPTION.fullmatch(word):
            value = "" if following.startswith("-") else following
            yield match[1].replace("_", "-"), value if match[2] is None else match[2]


def _vllm_config(options: Mapping[str, str]) -> Mapping[str, Any]:
    """What --speculative-config states, as JSON or by dotted keys; nothing where it is not read."""
    dotted = {
        name.partition(".")[2]: value for name, value in options.items() if name.startswith(f"{CONFIG}.")
    }
    dotted |= {SHORT[name]: value for name, value in options.items() if name in SHORT}
    keys: dict[str, Any] = {
        name.replace("-", "_"): int(value) if value.isdecimal() else value for name, value in dotted.items()
    }
    try:
        stated = json.loads(options.get(CONFIG) or options.get("sc") or "{}")
    except ValueError:
        return {}
    return {**stated, **keys} if isinstance(stated, dict) else {}


def _vllm_faults(given: Mapping[str, Any], options: Mapping[str, str], drafter: Drafter) -> Iterator[str]:
    for name in options:
        if name.startswith(("speculative-", "num-speculative-")) and not name.startswith(CONFIG):
            yield f"vLLM has no --{name} since its V1 engine; --speculative-config states it"
    if not given:
        return
    known = load("vllm")["speculative_options"]
    for key in given:
        if key.partition(".")[0] not in known["names"]:
            yield f"--speculative-config has {json.dumps(key)}, which vLLM {known['release']} refuses"
    method = given.get("method", METHODS[0])
    if method not in METHODS:
        yield f'--speculative-config has "method": {json.dumps(method)}, and this drafter\'s is "eagle3"'
    if drafter.kind == "peagle" and given.get("parallel_drafting") not in (True, "true"):
        yield '--speculative-config has no "parallel_drafting": true, without which vLLM drafts one by one'
    if type(given.get("num_speculative_tokens")) is not int:
        yield "--speculative-config has no num_speculative_tokens, without which vLLM does not start"


def _sglang_faults(options: Mapping[str, str], drafter: Drafter) -> Iterator[str]:
    name = next((name for name in ALGORITHM if name in options), "")
    if not name:
        return
    if options[name].upper() not in ALGORITHMS:
        yield (
            f"--{name} {options[name]} hands the drafter the target's last state alone, and this drafter is"
            " EAGLE3's: the acceptance length is 1.00 (sglang 21272)"
        )
    if not _first(options, DRAFTER):
        yield f"--{name} without --speculative-draft-model-path names no drafter"
    steps, tokens = _number(options, "num-steps"), _number(options, "num-draft-tokens")
    if _number(options, "eagle-topk") == 1 and None not in (steps, tokens) and tokens != (steps or 0) + 1:
        yield (
            f"{steps} steps with --speculative-eagle-topk 1 are {(steps or 0) + 1} draft tokens, and"
            f" --speculative-num-draft-tokens is {tokens}"
        )
    yield from _sglang_options(options)
    method = options.get("quantization", "unquant")
    own = "speculative-draft-model-quantization" in options
    if method != "unquant" and not own and drafter.quantisation is None:
        yield (
            f"--quantization {method} is taken over by the drafter, whose weights are not quantised, unless"
            " --speculative-draft-model-quantization unquant stands beside it (sglang 28196)"
        )


def _sglang_options(options: Mapping[str, str]) -> Iterator[str]:
    """Options of speculation that SGLang's parser does not know; the beginning of one name stands for it."""
    known = load("sglang")["speculative_options"]
    for name in options:
        begins = [each for each in known["names"] if f"speculative-{each}".startswith(name)]
        is_known = name.removeprefix("speculative-") in known["names"] or len(begins) == 1
        if name.startswith("speculative-") and not is_known:
            yield f"SGLang {known['release']} has no --{name}, and does not start"


def _first(options: Mapping[str, str], names: Sequence[str]) -> str:
    return next((options[name] for name in names if options.get(name)), "")


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(f"speculative-{name}", "")
    return int(value) if value.isdecimal() and len(value) < 10 else None


def _target(words: Sequence[str], options: Mapping[str, str]) -> str | None:
    """The target that the command serves."""
    served = [word for before, word in pairwise(words) if before == "serve"]
    return next(iter(served), None) or options.get("model-path") or options.get("model") or None
