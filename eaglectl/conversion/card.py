"""The model card of a conversion, and the parts of it that `upload` takes into its own."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import history, is_untrained
from eaglectl.files.hub_cache import is_repo_name
from eaglectl.formats.catalogue import by_name
from eaglectl.text import as_markdown, printable

if TYPE_CHECKING:
    from eaglectl.conversion.plan import ConversionPlan
    from eaglectl.drafter.drafter import Drafter

DEFINITION = (
    "Acceptance length: tokens that one step of the target gives, 1 + accepted drafted tokens / drafts. In"
    " brackets: 95 % over prompts."
)
UNTRAINED = (
    "> **Not trained, and not to be served.** `eaglectl convert --to 3.1 --init-only` wrote this as a start"
    " for a trainer: its new norms were never trained and its acceptance was not looked at. Train it first."
)
FC_NORM = {
    "refit": "on: every state is divided by its size, and fc is refit to the normed states",
    "calibrated": "on: every state is divided by its size and multiplied by the median size; fc is as it was",
    "ones": "on, with weights of ones; fc is as it was",
    "off": "off",
}
NORM_OUTPUT = {
    "absorbed": "on: the norm's weights went into lm_head",
    "residual scaled": "on: the residual stream is scaled to the norm's size",
    "flag": "on; no weight changed",
    "as trained": "on, as it was trained",
    "off": "off",
}
# ends a cell of a table, where it is not escaped
BAR = re.compile(r"(?<!\\)\|")
# steps after which a drafter is another one than the one that the gate measured
OTHER = ("pruning", "downgrade", "upgrade")


def conversion_card(plan: "ConversionPlan", record: Mapping[str, Any]) -> str:
    """README.md for an output whose source has none; `record` is its eaglectl.json."""
    drafter = plan.drafter
    base, unserved = drafter.target.name, unserved_lines(record)
    front = [
        "---",
        *([f"base_model: {base}"] if base and is_repo_name(base) else []),
        *(["library_name: vllm"] if not unserved else []),
        "tags: [speculative-decoding, eagle3]",
        "---",
        "",
    ]
    boundaries = (
        "the engines' default"
        if drafter.aux.boundaries is None
        else f"boundaries {list(drafter.aux.boundaries)}"
    )
    body = [
        f"# EAGLE-{drafter.version} drafter",
        "",
        *unserved,
        f"Converted from {as_markdown(plan.source)} ({format_title(drafter.producer)}) to"
        f" {format_title(plan.layout)} by eaglectl {eaglectl.__version__}; aux layers: {boundaries}.",
    ]
    gate = gate_lines(record)
    about = [
        *doubt_lines(drafter),
        *measured_lines(drafter),
        *upgrade_lines(record),
        *(["## Acceptance", "", DEFINITION, "", *gate] if gate else []),
    ]
    return "\n".join([*front, *body, *(["", *about[:-1]] if about else []), ""])


def unserved_lines(record: Mapping[str, Any]) -> list[str]:
    """That no release of the engines asked for runs the output (`--force-unserved`); empty where one does."""
    titles = [engine["engine"] for engine in record.get("unserved", ())]
    if not titles:
        return []
    why = as_markdown(
        "; ".join(dict.fromkeys(text for engine in record["unserved"] for text in engine["reasons"]))
    )
    return [f"> **Not served as trained** by any release asked for of {', '.join(titles)}: {why}.", ""]


def format_title(name: str) -> str:
    """A format's name for readers who know engines and trainers, and not eaglectl's table of formats."""
    return by_name(name).title.partition(",")[0]


def doubt_lines(drafter: "Drafter") -> list[str]:
    """What is open of the drafter, a quotation for each; empty where nothing is."""
    notes = [note for note in drafter.notes if note.is_open]
    return [line for note in notes for line in (f"> **Not settled:** {as_markdown(note.reason)}.", "")]


def measured_lines(drafter: "Drafter") -> list[str]:
    """What the trainer's files left open and a measurement settled, a paragraph for each."""
    measured = [entry for entry in drafter.settled if entry.by == "measured"]
    return [
        line
        for entry in measured
        for line in (f"Measured: {as_markdown(f'{entry.question}; {entry.answer}: {entry.evidence}')}.", "")
    ]


def upgrade_lines(record: Mapping[str, Any]) -> list[str]:
    """How the drafter became EAGLE-3.1, and whether it is untrained; empty where no record states it."""
    lines = [UNTRAINED, ""] if is_untrained(record) else []
    for one in history(record):
        if isinstance(upgrade := one.get("upgrade"), Mapping):
            return [*lines, "## How it became EAGLE-3.1", "", *table(("", ""), _method(one, upgrade)), ""]
    return lines


def gate_lines(record: Mapping[str, Any]) -> list[str]:
    """What the gate measured; empty where there was none, or where the drafter has changed since."""
    for one in history(record):
        if isinstance(gate := one.get("gate"), Mapping):
            return _gate(gate, is_earlier=one is not record)
        if any(step in one for step in OTHER):
            return []
    return []


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return [
        *lines,
        *(f"| {' | '.join(printable(BAR.sub('&#124;', cell)) for cell in row)} |" for row in rows),
    ]


def _method(record: Mapping[str, Any], upgrade: Mapping[str, Any]) -> list[tuple[str, str]]:
    try:
        fc_norm, norm_output = (
            words.get(upgrade[key], as_markdown(str(upgrade[key])))
            for key, words in (("fc_norm", FC_NORM), ("norm_output", NORM_OUTPUT))
        )
        if refit := upgrade.get("refit"):
            fc_norm += f" ({float(refit['relative_residual']):.1%} of what it made is left unexplained)"
        if upgrade.get("is_exact"):
            norm_output += "; the same function as before"
        calibration = upgrade.get("calibration")
        tokens = (
            f"{int(calibration['tokens']):,} tokens of prompts and the target's own answers"
            if calibration
            else "nothing"
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _broken("how it became EAGLE-3.1") from None
    rows = [("fc_norm", fc_norm), ("norm_output", norm_output), ("calibrated on", tokens)]
    if not record.get("gate") and not upgrade.get("needs_finetune"):
        rows.append(("acceptance", "not compared with that of before (`--no-gate`)"))
    return rows


def _gate(gate: Mapping[str, Any], *, is_earlier: bool) -> list[str]:
    try:
        rows = [
            [
                str(int(row["k"])),
                f"{row['acceptance_length_before']:.3f}",
                f"{row['acceptance_length']:.3f}",
                f"{row['ratio']:.3f} [{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]",
            ]
            for row in gate["rows"]
        ]
        prompts, least = int(gate["prompts"]), float(gate["tolerance"])
        engine, device, dtype = (as_markdown(str(gate[key])) for key in ("engine", "device", "dtype"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise _broken("what the gate measured") from None
    if not rows:
        return []
    when = ", before it was rewritten in this layout" if is_earlier else ""
    about = (
        f"EAGLE-3 before and EAGLE-3.1 after the conversion, drafting k tokens, on the same {prompts}"
        f" prompts, none of them calibrated on ({engine}, {device}, {dtype}){when}; the ratio's lower bound"
        f" had to reach {least:g}:"
    )
    return [about, "", *table(("k", "before", "after", "ratio"), rows), ""]


def _broken(what: str) -> UnreadableError:
    return UnreadableError(
        f"eaglectl.json cannot be used: {what} is not as eaglectl writes it; convert again, or remove the"
        " file",
        where="eaglectl.json",
    )
