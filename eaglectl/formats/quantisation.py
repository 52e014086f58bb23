"""Reading the quantisation config, with bounds on the names and expressions in it."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from eaglectl.drafter.tensors import is_quantised_part
from eaglectl.errors import UnreadableError, check
from eaglectl.files.budgets import MAX_DEPTH, MAX_MODULES, MAX_NAME, MAX_STEPS
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.layout import QUANTISATION
from eaglectl.files.text_part import quantisation_key
from eaglectl.formats.config_keys import Keys

# what marks an expression among names of modules; groups that repeat, or letters whose blanks do not count,
# where comparing may take exponential time; bits of the length of a module's name; and steps to compile one
EXPRESSION, NESTED = "re:", r"\)\s*[*+{]|\(\?[a-zA-Z-]*x"
NAME_BITS, LEAST_STEPS = 6, 1 << 17


def read_quantisation(keys: Keys, checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Return the quantisation config if the file really holds quantised weights, else None."""
    key = "quantization_config"
    from_config = keys.get(key, dict) or checkpoint.sidecars.get(QUANTISATION)
    _check_expressions(list(_texts(from_config)))
    inner = (from_config or {}).get("quantization")
    table = inner if isinstance(inner, Mapping) else from_config or {}
    # ModelOpt's null, which vLLM 0.33 and SGLang 0.5.23 read as no quantisation
    if "quant_algo" in table and table["quant_algo"] is None and not table.get("quant_method"):
        from_config = None
    # numbers of 8 bits are a quantiser's where the config has one, with their scales or without
    has_parts = any(
        is_quantised_part(name) or (from_config and tensor.dtype.startswith("F8"))
        for name, tensor in checkpoint.tensors.items()
    )
    if has_parts == (from_config is not None):
        return from_config
    name = quantisation_key(checkpoint.config)
    text = (
        f"config has a {name} and the file has no quantised weight; engines would look for scales that are"
        " not there; convert leaves it out"
    )
    if has_parts:
        text = (
            "the file has quantisation scales and no quantization_config; engines would read the weights"
            " without scales"
        )
    keys.note(True, "warning", key, text, "quantisation-config")
    return {} if has_parts else None


def _texts(value: Any) -> Iterator[str]:
    # the texts in lists of a JSON value, and the expressions that are GPTQModel's keys
    if isinstance(value, Mapping):
        yield from (f"{EXPRESSION}{key[2:]}" for key in value if key.startswith(("-:", "+:")))
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from (item,) if isinstance(item, str) else _texts(item)


def _check_expressions(names: Sequence[str]) -> None:
    """Raise UnreadableError for more names of modules, or expressions, than are compared in seconds."""
    longest, what = max(map(len, names), default=0), "the quantisation config has"
    check(
        (len(names) > MAX_MODULES, f"{what} {len(names)} names; at most {MAX_MODULES} are compared"),
        (longest > MAX_NAME, f"{what} a name of {longest} characters; at most {MAX_NAME} are compared"),
        error=UnreadableError,
    )
    steps = 0
    for text in (name for name in names if name.startswith(EXPRESSION)):
        steps += _steps(text)
        words = f"{what} {text[:80]}, which may take hours to compare: write the modules' names"
        check((steps > MAX_STEPS, words), error=UnreadableError)


def _steps(text: str) -> int:
    """Return the steps that comparing an expression may take; more than MAX_STEPS if they have no bound."""
    powers, choices = len(re.findall(r"[*+{]", text)), len(re.findall(r"(?<!\()\?|\|", text))
    steps = max(LEAST_STEPS, 1 << min(NAME_BITS * powers + choices, 99))
    if re.search(NESTED, text) or steps > MAX_STEPS or text.count("(") > MAX_DEPTH:
        return MAX_STEPS + 1
    with warnings.catch_warnings(action="ignore"), suppress(re.error):  # EGL802 reports it
        try:
            re.compile(text.removeprefix(EXPRESSION))
        except OverflowError:
            return MAX_STEPS + 1
    return steps
