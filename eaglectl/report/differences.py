"""A comparison as sections, and as a JSON document."""

import json
from collections import Counter
from collections.abc import Mapping

from eaglectl.comparison import Comparison, Side, TensorPair, Written
from eaglectl.formats.catalogue import by_name
from eaglectl.report.documents import Parts
from eaglectl.report.section import (
    Line,
    Lines,
    Outline,
    Section,
    Table,
    Tone,
    Words,
    first_line,
    first_lines,
    grouped,
)
from eaglectl.report.wording import plural, shortened, size
from eaglectl.text import listed
from eaglectl.verdicts import DiffVerdict, FactState, TensorState

TENSOR_HEAD = ("tensor", "difference", "numbers that differ", "max |A - B|", "relative RMS")
TONES: Mapping[DiffVerdict, Tone] = {
    DiffVerdict.EQUAL: "good",
    DiffVerdict.DIFFERS: "bad",
    DiffVerdict.SAME_HEADERS: "doubt",
    DiffVerdict.COULD_NOT_LOOK: "doubt",
}
FACT_TONES: Mapping[FactState, Tone] = {FactState.DIFFERS: "bad", FactState.UNKNOWN: "doubt"}
# config keys that are shown without -v
SHOWN = 12
# config keys of facts that have another name
KEYS_OF: Mapping[str, tuple[str, ...]] = {
    "boundaries": (
        "eagle_aux_hidden_state_layer_ids",
        "aux_hidden_states_layer_ids",
        "target_layer_ids",
        "layer_ids",
    ),
    "rope_scaling": ("rope_scaling", "rope_parameters"),
    "quantisation": ("quantization_config",),
    "draft_tokens": ("draft_vocab_size",),
    "draft_vocab": ("draft_vocab_size",),
    "vocab": ("vocab_size",),
    "hidden": ("hidden_size",),
    "target_hidden": ("target_hidden_size",),
    "intermediate": ("intermediate_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "layers": ("num_hidden_layers",),
    "aux": ("num_aux_hidden_states",),
}
SPELLING = "these differences alone do not make it another drafter"


def comparison_outline(comparison: Comparison, *, is_whole: bool = False) -> Outline:
    """Return the verdict, the facts and tensors that differ, and the spelling; all of them if `is_whole`."""
    lines: list[Line] = []
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        producer, nbytes = by_name(side.drafter.producer).title, size(side.checkpoint.nbytes)
        facts = f"(EAGLE-{side.drafter.version}, {producer}, {nbytes})"
        lines.append((Words(letter, "strong"), f"  {side.source}  ", Words(facts, "quiet")))
    states = Counter(fact.state for fact in comparison.facts)
    counts = ", ".join(f"{states[state]} {state}" for state in FactState if states[state])
    sections = [
        Section("", [Lines(lines)], has_heading=False),
        Section(
            "Meaning",
            [
                Table(("fact", "A", "B", ""), _fact_rows(comparison), is_whole=True),
                # reasons of any length, which a narrow column would break into single words
                Lines([f"{fact.name}: {fact.why}" for fact in comparison.facts if fact.why], is_list=True),
            ],
            f"facts: {counts}",
        ),
        _served(comparison),
        _tensors(comparison, is_whole=is_whole),
        _spelling(comparison, is_whole=is_whole),
        Section("Notes", [Lines(first_lines(comparison.notes), is_list=True)]),
    ]
    tone, text = TONES[comparison.verdict], f"{comparison.verdict}: {_meaning(comparison)}"
    subject = f"{comparison.a.source} and {comparison.b.source}"
    meaning = _meaning(comparison) if comparison.verdict == DiffVerdict.COULD_NOT_LOOK else text
    verdict, head = Words(comparison.verdict, tone), first_line(comparison.verdict, Words(meaning, tone))
    return Outline("diff", verdict, subject, Words(text, "strong"), head, sections)


def _tensors(comparison: Comparison, *, is_whole: bool) -> Section:
    # the tensors that differ, without columns that have no number
    remarks: list[Line] = [f"{pair.name}: {pair.remark}" for pair in comparison.tensors if pair.remark]
    # zero biases of one side too
    pairs = [pair for pair in comparison.tensors if pair.differs or pair.state == TensorState.ZEROS]
    columns = len(TENSOR_HEAD) if any(pair.numbers for pair in pairs) else 2
    return Section(
        "Tensors",
        [
            Table(
                TENSOR_HEAD[:columns],
                [_tensor_row(pair)[:columns] for pair in pairs],
                is_whole=is_whole,
            ),
            Lines(remarks if is_whole else first_lines(remarks), is_list=True),
        ],
        _count_tensors(comparison),
    )


def _served(comparison: Comparison) -> Section:
    # what each engine does with both files as they are stored, and why where that differs
    rows = [
        (fact.name, Words(fact.a, FACT_TONES.get(fact.state, "quiet")), fact.b) for fact in comparison.served
    ]
    by_reason = grouped((fact.why, fact.name) for fact in comparison.served if fact.why)
    lines = [Words(f"{listed(names)}: {why}", "quiet") for why, names in by_reason.items()]
    return Section("As stored", [Table(("engine", "A", "B"), rows), Lines(lines, is_list=True)])


def _tensor_row(pair: TensorPair) -> tuple[Line, ...]:
    # a tensor's difference in words, and how many of its numbers differ, by how much
    a, b, numbers, how = pair.a, pair.b, pair.numbers, str(pair.state)
    match pair.state:
        case TensorState.DTYPE if a and b:
            how = f"{a.dtype} in A, {b.dtype} in B"
        case TensorState.SHAPE if a and b:
            how = f"{list(a.shape)} in A, {list(b.shape)} in B"
        case TensorState.ONLY_A | TensorState.ONLY_B | TensorState.ZEROS:
            how = "only in A" if b is None else "only in B"
        case TensorState.BYTES:
            how = "values"
    name = Words(pair.name, "bad" if pair.differs else "quiet", is_code=True)
    if numbers is None:
        return name, how, "", "", ""
    share = f"{numbers.differing:,} of {numbers.count:,}"
    if numbers.not_finite:
        share += f" ({numbers.not_finite:,} not finite)"
    return (
        name,
        how,
        share,
        *("-" if figure is None else f"{figure:.3g}" for figure in (numbers.max_abs, numbers.relative_rms)),
    )


def _spelled_keys(comparison: Comparison) -> list[Written]:
    # without the keys of facts that differ, which are more than spelling
    names = [fact.name for fact in comparison.facts if fact.state == FactState.DIFFERS]
    meant = {key for name in names for key in KEYS_OF.get(name, (name,))}
    return [key for key in comparison.spelling.keys if not meant & set(key.name.split("."))]


def _spelling(comparison: Comparison, *, is_whole: bool) -> Section:
    # differences that change nothing in the drafter; without -v they are counted
    spelling, others = comparison.spelling, _spelled_keys(comparison)
    rows: list[tuple[Line, ...]] = [(remark.name, remark.a, remark.b) for remark in spelling.remarks]
    more = []
    if is_whole:
        for pair in spelling.names:
            sides = (Words(" + ".join(side), is_code=True) for side in (pair.a, pair.b))
            rows.append((("name of ", Words(pair.name, is_code=True)), *sides))
        rows += [(key.name, _value(key.a), _value(key.b)) for key in others]
    elif spelling.names or others:
        parts = [f"{plural(len(spelling.names), 'tensor')} under other names"] if spelling.names else []
        if others:
            keys = listed((key.name for key in others), most=SHOWN)
            parts.append(f"{plural(len(others), 'config key')}: {keys}")
        more = [Words(f"{'; '.join(parts)} (eaglectl -v diff lists them)", "quiet")]
    return Section("Written differently", [Table(("", "A", "B"), rows, is_whole=True), Lines(more)], SPELLING)


def _meaning(comparison: Comparison) -> str:
    # the verdict in a sentence
    states = Counter(fact.state for fact in comparison.facts)
    unread = "" if comparison.has_values else "; values were not compared (--headers-only)"
    if comparison.verdict != comparison.meaning:
        return "; ".join(
            f"the same drafter, but as stored no engine accepts a draft token of {letter}: {rule} {text}"
            for letter, side_faults, others in zip(
                "AB", comparison.errors, comparison.errors[::-1], strict=True
            )
            for rule, text in side_faults
            if (rule, text) not in others
        )
    match comparison.verdict:
        case DiffVerdict.EQUAL:
            return f"the same drafter{', written differently' * comparison.spelling.differs}"
        case DiffVerdict.SAME_HEADERS:
            return f"nothing differs in config and headers{unread}"
        case DiffVerdict.COULD_NOT_LOOK:
            open_facts = plural(states[FactState.UNKNOWN], "fact")
            return f"no known fact differs, but {open_facts} cannot be read from the files{unread}"
    counts = (
        (states[FactState.DIFFERS], "fact"),
        (sum(pair.differs for pair in comparison.tensors), "tensor"),
    )
    by = " and ".join(plural(count, word) for count, word in counts if count)
    return f"two drafters, which differ in {by}{unread}"


def _fact_rows(comparison: Comparison) -> list[tuple[Line, ...]]:
    """Return the facts that are not plainly equal: their values, and the state unless they differ."""
    rows: list[tuple[Line, ...]] = []
    for fact in comparison.facts:
        if fact.state != FactState.EQUAL or fact.why:
            state = fact.state if fact.state != FactState.DIFFERS else ""
            a, b = ("not known" if side is None and fact.why else _value(side) for side in (fact.a, fact.b))
            rows.append((Words(fact.name, FACT_TONES.get(fact.state, "quiet")), a, b, Words(state, "quiet")))
    return rows


def _count_tensors(comparison: Comparison) -> str:
    states = Counter(pair.state for pair in comparison.tensors)
    counts = (
        (states[TensorState.EQUAL], "equal"),
        (sum(pair.differs for pair in comparison.tensors), "differ"),
        (states[TensorState.NOT_COMPARED], "of equal shape and dtype, values not compared"),
    )
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _value(item: object) -> str:
    if isinstance(item, list) and item and all(type(number) is int for number in item):
        return ", ".join(map(str, item))
    if item is None:
        return "-"
    return shortened(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))


PARTS: Parts = {
    Comparison: (
        "verdict",
        ("values", lambda comparison: "compared" if comparison.has_values else "not-compared"),
        ("is_written_alike", lambda comparison: not comparison.spelling.differs),
        "a",
        "b",
        "facts",
        "served",
        "tensors",
        "spelling",
        "notes",
    ),
    Side: (
        "source",
        "producer=drafter.producer",
        "eagle=drafter.version",
        (
            "weights",
            lambda side: {"files": side.checkpoint.weight_files, "bytes": side.checkpoint.nbytes},
        ),
    ),
}
