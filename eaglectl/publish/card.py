"""What `upload` writes: the card, the record with the digests of the files (eaglectl.json), and SHA256SUMS.

The card is README.md with a block and front matter that eaglectl manages; all other text stays as it is.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl import shell
from eaglectl.conversion.writing import (
    DEFINITION,
    format_title,
    gate_lines,
    settled_lines,
    table,
    unserved_lines,
    upgrade_lines,
)
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.behaviour import StartOption
from eaglectl.engines.registry import ENGINES, launch_commands, llama_server, started
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import MIB, read_small_file, sha256
from eaglectl.files.front_matter import MATTER, front_matter
from eaglectl.files.header import parse_json
from eaglectl.files.layout import CARD, RECORD, RECORD_SCHEMA, SIGNATURE, SUMS
from eaglectl.files.source import is_repo_name
from eaglectl.files.writer import HEADER_KEY, tensor_ranges
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import CheckpointSummary
from eaglectl.formats.settling import doubt_entries, fact_record
from eaglectl.judge.rules.config import schema_file, violations
from eaglectl.project import install_command
from eaglectl.publish.request import CardAnswers
from eaglectl.publish.upload import UploadFile
from eaglectl.run.measurement import ENOUGH_PROMPTS
from eaglectl.text import as_markdown, brief, printable
from eaglectl.verdicts import CheckVerdict

BEGIN = "<!-- eaglectl: begin. The command upload writes this block again; text outside of it is kept. -->"
END = "<!-- eaglectl: end -->"
FIRST, LAST = "<!-- eaglectl: begin", "<!-- eaglectl: end -->"
# of each launch command
DRAFT_TOKENS = 3
WORDS = {True: "yes", False: "no", None: "unknown"}
# the papers: EAGLE-3, and what EAGLE-3.1 changes
PAPERS = {"3": ("2503.01840", "EAGLE-3"), "3.1": ("2605.09992", "EAGLE-3.1")}
TRAINING = "eaglectl/training/1"
SCHEMA_FILE, MAX_TRAINING = "training.schema.json", 1 << 20
RESPONSES = {
    "target": "written by the target for the prompts of the data",
    "dataset": "those of the data",
}
# keys of the training file that a table shows, with their labels
ROWS = {
    "framework": "trained with",
    "epochs": "epochs",
    "steps": "steps",
    "tokens": "tokens",
    "global_batch_size": "global batch size",
    "learning_rate": "learning rate",
    "max_length": "longest sample, in tokens",
    "ttt_length": "draft steps unrolled (training-time test)",
    "hardware": "hardware",
}


class CardFacts(Struct, frozen=True):
    """The contents of a card.

    `served`: engine -> the releases that serve the drafter as it was trained, in words. `options` are those
    that the newest of these needs, by engine. `record` is
    eaglectl.json, `smoke` a document of `eaglectl smoke --json`. `licence` and `training` are the user's.
    `target_gap` states what was not compared with a target; "" if all was.
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
    target_gap: str = ""
    options: Mapping[str, tuple[StartOption, ...]] = field(default_factory=dict)

    @property
    def base_model(self) -> str | None:
        """The target's name, where it is a repository on the Hub."""
        name = self.drafter.target.name
        return name if name and is_repo_name(name) else None

    @property
    def papers(self) -> tuple[tuple[str, str], ...]:
        """The arXiv numbers of the drafter's papers, with their titles in short."""
        return tuple(paper for key, paper in PAPERS.items() if self.drafter.version.startswith(key))


def with_answers(facts: CardFacts, text: str, answers: CardAnswers) -> CardFacts:
    """Add to the facts the user's answers, or what the old card `text` states in its front matter.

    Raises UsageError if the answers and the card contradict each other, and for a bad file on the training.
    """
    matter = front_matter(text)
    # comments below a key are read as more values of it
    licences = matter.get("license", [])[:1]
    models = [name for name in matter.get("base_model", []) if is_repo_name(name)]
    for option, answer, in_card in (
        ("--license", answers.licence, licences),
        ("--base-model", answers.base_model, models),
    ):
        if answer is not None and in_card and answer not in in_card:
            raise UsageError(
                f"{option} {answer} and {CARD} ({', '.join(in_card)}) differ; leave one of them out",
                options=(option,),
            )
    drafter, only = facts.drafter, models[0] if len(models) == 1 else None
    if base_model := answers.base_model or facts.base_model or only:
        drafter = replace(drafter, target=replace(drafter.target, name=base_model))
    return replace(
        facts,
        drafter=drafter,
        licence=answers.licence or next(iter(licences), None),
        training=read_training(answers.training) if answers.training is not None else {},
    )


def read_training(path: str | Path) -> Mapping[str, Any]:
    """Read a file of schemas/training.schema.json. Raises UnreadableError, and UsageError for another one."""
    document = parse_json(f"--training {path}", read_small_file(Path(path), MAX_TRAINING, "--training"))
    if not isinstance(document, dict) or document.get("schema") != TRAINING:
        raise UsageError(
            f'--training {path} has no "schema": "{TRAINING}"; see schemas/{SCHEMA_FILE}',
            options=("--training",),
        )
    for place, message in violations(
        json.loads(schema_file(SCHEMA_FILE).read_text(encoding="utf-8")), document, is_strict=True
    ):
        raise UsageError(
            f"--training {path}: {place}: {message} (schemas/{SCHEMA_FILE})", options=("--training",)
        )
    return document


def make_card(text: str, facts: CardFacts) -> str:
    """Build README.md with its block and front matter; `text` is the old README.md, empty without one.

    Raises RefusedError for marks that do not come in one pair.
    """
    newline = "\r\n" if text.partition("\n")[0].endswith("\r") and "\n" in text else "\n"
    if not text.strip():
        text = f"# {facts.repo.rpartition('/')[2]}\n"
    block = newline.join([BEGIN, *_block(facts), END])
    start, end = text.find(FIRST), text.find(LAST)
    if text.count(FIRST) > 1 or text.count(LAST) > 1 or (start < 0) != (end < 0) or end < start:
        raise RefusedError(
            f"{CARD}: the marks of eaglectl's block are not one pair; remove them, and the block is added at"
            " the end"
        )
    if start >= 0:
        text = text[:start] + block + text[end + len(LAST) :]
    else:  # behind one empty line
        text += "" if text.endswith("\n") else newline
        text += "" if text.endswith(newline * 2) else newline
        text += block + newline
    return _with_front_matter(text, facts, newline)


def _with_front_matter(text: str, facts: CardFacts, newline: str) -> str:
    # add the keys that the front matter lacks; keys that the author wrote stay
    if re.match(MATTER, text) is None:
        if re.match(r"---[ \t]*\r?\n", text):
            raise RefusedError(
                f"{CARD} begins with --- and its front matter has no end; write --- on a line of its own"
                " after it"
            )
        text = f"---{newline}---{newline}{newline}{text}"
    match = re.match(MATTER, text)
    assert match is not None
    inner, matter = match[2], front_matter(text)
    _check_stated(matter, facts)
    libraries = [library for library in ("vllm", "sglang") if library in facts.served]
    for key, value in _matter_values(facts, libraries).items():
        if key not in matter and value:
            inner += f"{key}: {value}{newline}" if isinstance(value, str) else _list(key, value, newline)
    import yaml  # type: ignore[import-untyped]  # late: of the Hub's client

    try:
        yaml.safe_load(inner)
    except (yaml.YAMLError, *RAISED_BY_YAML) as error:
        raise RefusedError(
            f"{CARD}: the Hub cannot read its front matter: {brief(' '.join(str(error).split()))}; correct it"
        ) from None
    return text[: match.start(2)] + inner + text[match.start(3) :]


def _matter_values(facts: CardFacts, libraries: Sequence[str]) -> dict[str, str | Sequence[str] | None]:
    # the front matter's values by key; empty ones are left out
    tags = ["eagle3", *(["eagle-3.1"] if facts.drafter.version.startswith("3.1") else [])]
    tags += ["speculative-decoding", "draft-model", *libraries]
    datasets = [dataset["name"] for dataset in facts.training.get("datasets", [])]
    return {
        "license": facts.licence,
        "base_model": facts.base_model,
        "datasets": list(dict.fromkeys(filter(is_repo_name, datasets))),
        # in quotes: YAML reads Norwegian as "false"
        "language": [f'"{code}"' for code in facts.training.get("language", ())],
        "library_name": next(iter(libraries), None),
        "pipeline_tag": "text-generation",
        "tags": [*tags, *(f"arxiv:{number}" for number, _ in facts.papers)],
    }


def _check_stated(matter: Mapping[str, Sequence[str]], facts: CardFacts) -> None:
    """Raise UsageError where the licence or the base model is stated nowhere."""
    missing = []
    if not (matter.get("license") or facts.licence):
        missing.append("a licence: pass --license ID, like apache-2.0 (or unknown)")
    if not facts.base_model:
        missing.append("the target that it was trained for: pass --base-model ORG/NAME")
    if missing:
        keys = " and ".join(key for key in ("license", "base_model") if key in matter and not matter[key])
        about = f" {CARD} has {keys} without a value: write it there." if keys else ""
        raise UsageError(f"the card needs {', and '.join(missing)}; or state it in {CARD}.{about}")


def _list(key: str, items: Sequence[str], newline: str) -> str:
    return f"{key}:{newline}" + "".join(f"- {item}{newline}" for item in items)


def _block(facts: CardFacts) -> list[str]:
    # eaglectl's part of the card
    target = _model(facts.base_model) if facts.base_model else "its target model"
    acceptance = [*(measurement_lines(facts.smoke) if facts.smoke else []), *gate_lines(facts.record)]
    training = []
    if facts.training:
        method = [as_markdown(facts.training["method"]), ""] if facts.training.get("method") else []
        rows = table(("", ""), _training_rows(facts.training))
        training = ["## Training", "", "As stated by its trainer:", "", *method, *rows, ""]
    papers = " and ".join(f"[{title}](https://arxiv.org/abs/{number})" for number, title in facts.papers)
    return [
        "## Overview",
        "",
        f"A draft model for speculative decoding with {target}, following {papers}: it proposes tokens and"
        " the target verifies them, so the output is the target's own. It runs only with that target.",
        "",
        *([facts.target_gap, ""] if facts.target_gap else []),
        *table(("", ""), _facts(facts)),
        "",
        *unserved_lines(facts.record),
        *settled_lines(facts.drafter),
        *upgrade_lines(facts.record),
        *_serving(facts),
        *training,
        *(["## Acceptance", "", DEFINITION, "", *acceptance] if acceptance else []),
        *_download(facts),
    ]


def _model(name: str) -> str:
    return f"[{name}](https://huggingface.co/{name})"


def _facts(facts: CardFacts) -> list[tuple[str, str]]:
    # the rows of the overview's table
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
    ]


def _serving(facts: CardFacts) -> list[str]:
    # the command of each engine that serves it as trained, with the releases
    if not facts.served:
        return []
    commands = dict(launch_commands(facts.drafter, facts.repo, DRAFT_TOKENS))
    # what makes both GGUF files, in a checkout of llama.cpp, and serves them
    convert = "python convert_hf_to_gguf.py"
    commands["llama.cpp"] = "\n".join(
        [
            shell.join(["hf", "download", facts.base_model or "TARGET", "--local-dir", "target"]),
            _download_command(facts),
            f"{convert} target --outfile target.gguf",
            f"{convert} drafter --target-model-dir target --outfile drafter.gguf",
            llama_server("drafter.gguf", DRAFT_TOKENS, "target.gguf"),
        ]
    )
    lines = [
        "## Serving",
        "",
        f"By the rules of eaglectl {eaglectl.__version__}, these releases serve it as it was trained:",
        "",
    ]
    for engine, releases in facts.served.items():
        lines += [
            f"{ENGINES[engine].title} {releases}:",
            "",
            "```bash",
            *started(commands[engine], facts.options.get(engine, ())).split("\n"),
            "```",
            "",
        ]
    lines += ["These commands use the newest revision; add the revision of a commit to pin it.", ""]
    return lines


def _training_rows(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    # the rows of the table of training; only what the trainer stated
    texts = {
        "data": ", ".join(map(_dataset, training.get("datasets") or ())),
        "answers": RESPONSES.get(training.get("responses", ""), ""),
        "language": ", ".join(training.get("language") or ()),
    }
    rows = [(title, text) for title, text in texts.items() if text]
    for key, title in ROWS.items():
        value = training.get(key)
        if isinstance(value, str):
            rows.append((title, as_markdown(value)))
        elif value is not None:
            rows.append((title, f"{value:,}" if isinstance(value, int) else f"{value:g}"))
    return rows


def _dataset(dataset: Mapping[str, Any]) -> str:
    name = as_markdown(dataset["name"])
    if is_repo_name(dataset["name"]):
        name = f"[{dataset['name']}](https://huggingface.co/datasets/{dataset['name']})"
    about = [f"{key} {as_markdown(dataset[key])}" for key in ("split", "revision") if key in dataset]
    about += [f"{dataset['samples']:,} samples"] if "samples" in dataset else []
    return f"{name} ({', '.join(about)})" if about else name


def measurement_lines(smoke: Mapping[str, Any]) -> list[str]:
    """Describe the measurement in a document of `smoke`; another document raises what its lookups raise."""
    engine, sampling, lossless = smoke["engine"], "", ""
    if (temperature := smoke.get("temperature")) is not None:
        sampling = f", temperature {temperature:g}" if temperature else ", greedy"
    if smoke.get("lossless") is not None:
        lossless = f" {'Every' if smoke['lossless'] else 'Not every'} output equals plain decoding."
    device = printable(f"{engine['name']} {engine['version']} on {engine['device']} in {engine['dtype']}")
    about = (
        f"Measured with {as_markdown(device)}, {smoke['prompts']:d} prompts, {smoke['drafts']:,d} drafts of"
        f" k={smoke['k']:d} tokens{sampling}.{lossless}"
    )
    sets = smoke.get("sets") or {}
    rows = [_row(as_markdown(name), measured) for name, measured in sets.items()] if len(sets) > 1 else []
    head = ("prompts", "number", "acceptance length", "accepted at each position")
    warning, speed, speed_lines = list[str](), smoke.get("speed"), list[str]()
    if smoke["prompts"] < ENOUGH_PROMPTS:
        text = (
            f"only {smoke['prompts']} prompts were measured: under {ENOUGH_PROMPTS}, an interval says little"
        )
        warning = [f"> **Few prompts:** {text} about other prompts.", ""]
    if speed and speed["device"] != "cpu" and speed["text"]:
        where = as_markdown(speed["card"] or speed["device"])
        speed_lines = [
            "Tokens/s with the drafter over those without, by requests at a time:"
            f" **{as_markdown(speed['text'])}** (median of {speed['repeats']:d} repeats, {where};"
            f" {as_markdown(speed['how'])}).",
            "",
        ]
    return [
        about,
        "",
        *warning,
        *table(head, [*rows, _row("all", smoke)]),
        "",
        f"This shows {as_markdown(smoke['engine']['proves'])}. Acceptance differs with prompts, their"
        " language and sampling: measure your own traffic with eaglectl's `smoke --prompts`.",
        "",
        *speed_lines,
    ]


def _row(name: str, measured: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = measured["interval"]
    return (
        name,
        f"{measured['prompts']:d}",
        f"{measured['acceptance_length']:.3f} [{low:.3f}, {high:.3f}]",
        ", ".join(f"{position['value']:.1%}" for position in measured["per_position"]),
    )


def _download(facts: CardFacts) -> list[str]:
    """Return how to check a download: by eaglectl if it can be installed, else by the list of digests."""
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
        f"{about} Published with eaglectl {eaglectl.__version__}.",
    ]


def _download_command(facts: CardFacts) -> str:
    return shell.join(["hf", "download", facts.repo, "--local-dir", "drafter"])


# how a measurement for a card is made
# what PyYAML raises beside its own error: for a date or a number that is none, and for too deep a nesting
RAISED_BY_YAML = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
MEASURE = "`eaglectl smoke SOURCE --json --target TARGET > smoke.json`"
# the files that a measurement is of
MEASURED = re.compile(r"config\.json|.*\.safetensors")
# keys of a smoke document that are published: no names of folders
SMOKE_KEYS = (
    "version",
    "verdict",
    "acceptance_length",
    "interval",
    "per_position",
    "drafts",
    "prompts",
    "lossless",
    "k",
    "max_tokens",
    "seed",
    "prompts_digest",
    "temperature",
    "tokens",
    "sets",
    "seconds",
    "speed",
)
# those that documents of older releases lack
LATER_KEYS = ("temperature", "tokens", "sets", "seconds", "speed")
ENGINE_KEYS = ("name", "version", "device", "dtype", "proves")


def make_record(
    checkpoint: Checkpoint,
    drafter: Drafter,
    files: Sequence[UploadFile],
    validation: Mapping[str, Any],
    smoke: Mapping[str, Any] | None,
) -> bytes:
    """Build eaglectl.json: the record of these files, or a new one of the drafter's origin, with digests.

    `validation` is the outcome of `validate`, `smoke` a document of `eaglectl smoke --json`, or an earlier
    record's copy of one.
    """
    listed: dict[str, dict[str, Any]] = {
        file.name: {"size": file.size, "sha256": file.sha256}
        for file in sorted(files, key=lambda file: file.name)
        if file.name not in (RECORD, SUMS, SIGNATURE)  # itself, and what is written after it
    }
    for name in listed.keys() & set(checkpoint.weight_files):
        start, stop = tensor_ranges(checkpoint.tensors.values(), name)[HEADER_KEY]
        listed[name]["header"] = sha256(checkpoint.source.read(name, start, stop)).hexdigest()
    record = checkpoint.earlier or _new_record(checkpoint, drafter, listed)
    published: dict[str, Any] = {
        "eaglectl": eaglectl.__version__,
        "files": listed,
        "validation": dict(validation),
    }
    if smoke is not None:
        published["smoke"] = _published_smoke(smoke)
    return (json.dumps({**record, "published": published}, indent=2, ensure_ascii=False) + "\n").encode()


def _published_smoke(smoke: Mapping[str, Any]) -> dict[str, Any]:
    engine = {key: smoke["engine"][key] for key in ENGINE_KEYS}
    return {**{key: smoke[key] for key in SMOKE_KEYS if key in smoke}, "engine": engine}


def read_smoke(path: str | Path) -> Mapping[str, Any]:
    """Read a document of `eaglectl smoke --json`.

    Raises UnreadableError, and UsageError for another document or a failed measurement.
    """
    try:
        document = json.loads(read_small_file(Path(path), 64 * MIB, "--smoke"))
    except (ValueError, RecursionError):
        raise UnreadableError(
            f"--smoke {path} is not JSON; write it by {MEASURE}", options=("--smoke",)
        ) from None
    if not isinstance(document, dict) or document.get("schema") != "eaglectl/smoke/1":
        raise UsageError(
            f"--smoke {path} is no document of smoke; write one by {MEASURE}", options=("--smoke",)
        )
    _check_smoke(document, f"--smoke {path}")
    if not isinstance(document.get("files"), dict):
        raise UnreadableError(
            f"--smoke {path} does not say which files were measured; write it again by {MEASURE}",
            options=("--smoke",),
        )
    if document["verdict"] != CheckVerdict.PASS:
        raise UsageError(
            f"--smoke {path}: the verdict is {document['verdict']}, and a card that says so helps nobody;"
            " find out why first",
            options=("--smoke",),
        )
    return document


def kept_smoke(record: Mapping[str, Any], files: Sequence[UploadFile]) -> Mapping[str, Any] | None:
    """Return the record's measurement if it is of these weights and this config. Raises UnreadableError."""
    match record:
        case {"published": {"smoke": Mapping() as smoke, "files": Mapping() as listed}}:
            digests = {
                name: file.get("sha256")
                for name, file in listed.items()
                if isinstance(file, Mapping) and MEASURED.fullmatch(name)
            }
            if digests == _measured(files):
                _check_smoke(smoke, f"what {RECORD} says was measured")
                return smoke
    return None


def _measured(files: Sequence[UploadFile]) -> Mapping[str, str]:
    return {file.name: file.sha256 for file in files if MEASURED.fullmatch(file.name)}


def _check_smoke(document: Mapping[str, Any], where: str) -> None:
    """Raise UnreadableError for a document that `smoke` did not write: what a card shows of it is made."""
    needed = {*SMOKE_KEYS, "engine"} - {*LATER_KEYS}
    if missing := sorted(needed - document.keys()):
        raise UnreadableError(f"{where} has no {missing[0]}; write it again by {MEASURE}")
    try:
        measurement_lines(document)
        json.dumps(_published_smoke(document), allow_nan=False)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UnreadableError(f"{where} is not as smoke writes it; write it again by {MEASURE}") from None


def check_measured(smoke: Mapping[str, Any], files: Sequence[UploadFile]) -> None:
    """Raise RefusedError where a document of `read_smoke` is about other files than `files`."""
    sent, measured = _measured(files), smoke["files"]
    if different := sorted(name for name in {*sent, *measured} if sent.get(name) != measured.get(name)):
        raise RefusedError(
            f"--smoke: what was measured had another {different[0]} than the folder that is uploaded; run"
            f" {MEASURE}",
            options=("--smoke",),
        )


def _new_record(checkpoint: Checkpoint, drafter: Drafter, listed: Mapping[str, Any]) -> dict[str, Any]:
    # a record for files that eaglectl did not convert: its source is the checkpoint itself
    config = by_name(drafter.producer).flat(checkpoint.config)
    summary = CheckpointSummary(config, tuple(checkpoint.tensors), checkpoint.metadata)
    return {
        "schema": RECORD_SCHEMA,
        "eaglectl": eaglectl.__version__,
        "source": {
            "name": checkpoint.source.label,
            "producer": drafter.producer,
            "evidence": drafter.evidence,
            "files": {name: listed[name] for name in checkpoint.weight_files if name in listed},
        },
        "previous": None,
        "eagle": drafter.version,
        "layout": drafter.producer,
        **fact_record(drafter),
        "doubts": doubt_entries(drafter.doubts, summary),
        "tensors": [],
        "left": [],
        "notes": [],
    }
