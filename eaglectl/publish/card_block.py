"""The block of the card that eaglectl writes: what the drafter is, how to serve it, what was measured."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

import eaglectl
from eaglectl import shell
from eaglectl.conversion.card import (
    DEFINITION,
    doubt_lines,
    format_title,
    gate_lines,
    measured_lines,
    table,
    unserved_lines,
    upgrade_lines,
)
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.registry import launch_commands, llama_server
from eaglectl.files.checkpoint import history
from eaglectl.files.hub_cache import is_repo_name
from eaglectl.formats.catalogue import known_formats
from eaglectl.publish.project import install_command, repository
from eaglectl.publish.training import training_rows
from eaglectl.run.measurement import DEAD_LENGTH, ENOUGH_PROMPTS
from eaglectl.text import as_markdown, printable

TITLES = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp"}
# of each launch command
DRAFT_TOKENS = 3
WORDS = {True: "yes", False: "no", None: "unknown"}
# the papers: EAGLE-3, and what EAGLE-3.1 changes
PAPERS = {"3": ("2503.01840", "EAGLE-3"), "3.1": ("2605.09992", "EAGLE-3.1")}


class CardFacts(Struct, frozen=True):
    """The contents of a card.

    `served`: engine -> the releases that serve the drafter as it was trained, in words. `record` is
    eaglectl.json, `smoke` a document of `eaglectl smoke --json`. `licence` and `training` are
    what the caller states, `revision` is a tag that commands pin. `target_gap` states what was not compared
    with a target; empty where nothing was left open.
    """

    repo: str
    drafter: Drafter
    parameters: int
    nbytes: int
    served: Mapping[str, str]
    record: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] | None = None
    licence: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None
    target_gap: str = ""

    @property
    def base_model(self) -> str | None:
        """The target's name, where it is a repository on the Hub."""
        name = self.drafter.target.name
        return name if name and is_repo_name(name) else None

    @property
    def papers(self) -> tuple[tuple[str, str], ...]:
        """The arXiv numbers of the drafter's papers, with their titles in short."""
        return tuple(PAPERS[key] for key in ("3", "3.1") if self.drafter.version.startswith(key))


def card_block(facts: CardFacts) -> list[str]:
    """The lines of the block, without its marks."""
    target = "its target model"
    if facts.base_model:
        target = _model(facts.base_model)
    papers = " and ".join(f"[{title}](https://arxiv.org/abs/{number})" for number, title in facts.papers)
    return [
        "## Overview",
        "",
        f"A draft model for speculative decoding with {target}, of the design of {papers}: it"
        " proposes tokens and the target verifies them, so the output is the target's own. It does not run"
        " alone, nor with another target.",
        "",
        *([facts.target_gap, ""] if facts.target_gap else []),
        *table(("", ""), _facts(facts)),
        "",
        *unserved_lines(facts.record),
        *doubt_lines(facts.drafter),
        *measured_lines(facts.drafter),
        *upgrade_lines(facts.record),
        *_serving(facts),
        *_training(facts),
        *_acceptance(facts),
        *_download(facts),
    ]


def _model(name: str) -> str:
    return f"[{name}](https://huggingface.co/{name})"


def _facts(facts: CardFacts) -> list[tuple[str, str]]:
    drafter, dims = facts.drafter, facts.drafter.dims
    boundaries = drafter.aux.boundaries
    aux = "the engines' default" if boundaries is None else ", ".join(map(str, boundaries))
    tokens = f"all {dims.vocab:,} tokens of the target"
    if drafter.has_reduced_vocabulary:
        tokens = f"{dims.draft_vocab:,} of the target's {dims.vocab:,} tokens"
    return [
        *([("target model", _model(facts.base_model))] if facts.base_model else []),
        ("algorithm", f"EAGLE-{drafter.version}"),
        *([("licence", facts.licence)] if facts.licence else []),
        (
            "network",
            f"{dims.layers} layer{'s' * (dims.layers > 1)}, {dims.attention}, hidden size {dims.hidden:,}",
        ),
        ("parameters", f"{facts.parameters:,} ({facts.nbytes:,} bytes, {', '.join(drafter.dtypes)})"),
        ("draft vocabulary", tokens),
        (
            "aux layers",
            f"{aux} (boundary b is the target's residual stream as it enters layer b, counted from 0)",
        ),
        ("norms", f"fc_norm {WORDS[drafter.norms.fc_norm]}, norm_output {WORDS[drafter.norms.norm_output]}"),
        ("file format", format_title(drafter.producer)),
        *_origin(facts),
    ]


def _origin(facts: CardFacts) -> list[tuple[str, str]]:
    """What the drafter was converted from first, where the record states it."""
    *_, first = history(facts.record)
    source = first.get("source")
    producer = source.get("producer") if isinstance(source, Mapping) else None
    if producer == facts.drafter.producer or producer not in known_formats():
        return []
    return [("converted from", f"{format_title(str(producer))}, by eaglectl")]


def _serving(facts: CardFacts) -> list[str]:
    if not facts.served:
        return []
    commands = dict(launch_commands(facts.drafter, facts.repo, DRAFT_TOKENS, facts.revision))
    commands["llama.cpp"] = "\n".join(_llama_commands(facts))
    lines = [
        "## Serving",
        "",
        f"By the rules of {_eaglectl()}, these releases serve it as it was trained:",
        "",
    ]
    for engine, releases in facts.served.items():
        lines += [
            f"{TITLES.get(engine, engine)} {releases}:",
            "",
            "```bash",
            *commands[engine].split("\n"),
            "```",
            "",
        ]
    if facts.revision is None:
        lines += ["These commands take the newest revision; add the one of a commit to stay with it.", ""]
    return lines


def _llama_commands(facts: CardFacts) -> tuple[str, ...]:
    """What makes both GGUF files, in a checkout of llama.cpp, and serves them."""
    convert = "python convert_hf_to_gguf.py"
    return (
        shell.join(["hf", "download", facts.base_model or "TARGET", "--local-dir", "target"]),
        _download_command(facts),
        f"{convert} target --outfile target.gguf",
        f"{convert} drafter --target-model-dir target --outfile drafter.gguf",
        llama_server("drafter.gguf", DRAFT_TOKENS, "target.gguf"),
    )


def _training(facts: CardFacts) -> list[str]:
    if not facts.training:
        return []
    method = facts.training.get("method")
    return [
        "## Training",
        "",
        "As its trainer states it:",
        "",
        *([as_markdown(method), ""] if method else []),
        *table(("", ""), training_rows(facts.training)),
        "",
    ]


def _acceptance(facts: CardFacts) -> list[str]:
    parts = [*(_measurement(facts.smoke) if facts.smoke else []), *gate_lines(facts.record)]
    return ["## Acceptance", "", DEFINITION, "", *parts] if parts else []


def few_prompts(smoke: Mapping[str, Any]) -> str:
    """A warning where a measurement is of too few prompts to say much of others; empty where it is not."""
    if (prompts := smoke["prompts"]) >= ENOUGH_PROMPTS:
        return ""
    return (
        f"only {prompts} prompts were measured: under {ENOUGH_PROMPTS}, an interval says little about other"
        " prompts"
    )


def _measurement(smoke: Mapping[str, Any]) -> list[str]:
    engine, sampling, lossless = smoke["engine"], "", ""
    if (temperature := smoke.get("temperature")) is not None:
        sampling = f", temperature {temperature:g}" if temperature else ", greedy"
    if smoke.get("lossless") is not None:
        lossless = f" {'Every' if smoke['lossless'] else 'Not every'} output equals plain decoding."
    device = printable(f"{engine['name']} {engine['version']} on {engine['device']} in {engine['dtype']}")
    about = (
        f"Measured with {as_markdown(device)}, {smoke['prompts']} prompts, {smoke['drafts']:,} drafts of"
        f" k={smoke['k']} tokens{sampling}.{lossless}"
    )
    sets = smoke.get("sets") or {}
    rows = [_row(as_markdown(name), measured) for name, measured in sets.items()] if len(sets) > 1 else []
    head = ("prompts", "number", "acceptance length", "accepted at each position")
    warning = few_prompts(smoke)
    return [
        about,
        "",
        *([f"> **Few prompts:** {warning}.", ""] if warning else []),
        *table(head, [*rows, _row("all", smoke)]),
        "",
        *_others(smoke.get("published")),
        f"This shows {as_markdown(smoke['engine']['proves'])}. Acceptance differs with prompts, their"
        " language and sampling: measure your own traffic with eaglectl's `smoke --prompts`.",
        "",
        *_speed(smoke),
    ]


def _others(published: Mapping[str, Any] | None) -> list[str]:
    """What others reach, where they measured the same target on the same run; else that they did not."""
    if not published or not published["target"]:
        return []
    target = as_markdown(published["target"])
    figures = [
        f"{as_markdown(length['drafter'])} {length['length']:.2f}"
        f"{' (dead)' if length['length'] < DEAD_LENGTH else ''}"
        for length in published["alike"]
    ]
    if figures:
        run = as_markdown(published["like"])
        return [f"Others reach on this run ({run}) with {target}: {', '.join(figures)}.", ""]
    return [
        f"The {published['otherwise']} lengths that others published for {target} were measured otherwise.",
        "",
    ]


def _row(name: str, measured: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = measured["interval"]
    positions = ", ".join(f"{position['value']:.1%}" for position in measured["per_position"])
    length = f"{measured['acceptance_length']:.3f} [{low:.3f}, {high:.3f}]"
    return name, str(measured["prompts"]), length, positions


def _speed(smoke: Mapping[str, Any]) -> list[str]:
    """The ratios of tokens per second, where they were timed on a device that drafters are served on."""
    speed = smoke.get("speed")
    if not speed or speed["device"] == "cpu" or not speed["text"]:
        return []
    where = as_markdown(speed["card"] or speed["device"])
    return [
        "Tokens/s with the drafter over those without, by requests at a time:"
        f" **{as_markdown(speed['text'])}** (median of {speed['repeats']} repeats, {where};"
        f" {as_markdown(speed['how'])}).",
        "",
    ]


def _download(facts: CardFacts) -> list[str]:
    """How to check a download: by eaglectl where it can be got, else by the list of digests alone."""
    commands, about = ["(cd drafter && sha256sum -c SHA256SUMS)"], "compares every file with its SHA-256."
    if install := install_command():
        commands = [install, "eaglectl verify drafter"]
        about = (
            "compares every file with `SHA256SUMS` and `eaglectl.json`, which also record how the files were"
            " made and checked."
        )
    return [
        "## Check a download",
        "",
        "```bash",
        _download_command(facts),
        *commands,
        "```",
        "",
        f"{about} Published with {_eaglectl()}.",
    ]


def _eaglectl() -> str:
    """eaglectl with its version, and with its address where that is known."""
    name = f"eaglectl {eaglectl.__version__}"
    return f"[{name}]({repository()})" if repository() else name


def _download_command(facts: CardFacts) -> str:
    pin = ["--revision", facts.revision] if facts.revision else []
    return shell.join(["hf", "download", facts.repo, *pin, "--local-dir", "drafter"])
