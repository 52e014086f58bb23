"""Rules on the target, the model that verifies: widths, tokens, tokenizers, and whether it is one."""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.checkpoint.header import parse_json
from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject

NO_TARGET = "no target was given; pass --target"
# the numbers of GPUs that models are commonly split over
SPLITS = (2, 4, 8, 16)


@rule("EGL701", "target-mismatch", "error")
def target_mismatch(subject: Subject) -> Iterator[Hit]:
    """The drafter's aux states are as wide as the target.

    fc takes the target's hidden states; those of another width do not fit, and the drafter belongs to another target.

    Fix: give the target that the drafter was trained for.
    """
    told = tuple(subject.said("target-mismatch"))
    yield from told
    if not told and subject.target.known.hidden is None:
        raise CannotLook(NO_TARGET)


@rule("EGL702", "target-vocabulary", "error")
def target_vocabulary(subject: Subject) -> Iterator[Hit]:
    """The drafter proposes only tokens that the target has.

    A drafter with a full vocabulary larger than the target's was made for another model.

    Fix: give the target that the drafter was trained for.
    """
    yield from subject.said("target-vocabulary")
    if subject.target.known.vocab is None:
        raise CannotLook(NO_TARGET)


@rule("EGL703", "target-tokenizer", "warning")
def target_tokenizer(subject: Subject) -> Iterator[Hit]:
    """A tokenizer that lies beside the drafter gives every token the target's number.

    Engines use the target's tokenizer alone; one that differs says that the drafter was trained on other token ids.

    Fix: check which target the drafter was trained for; then ship the target's tokenizer, or none.
    """
    name = "tokenizer.json"
    if name not in subject.names:
        return
    source = subject.target.source
    if source is None or name not in source.names():
        raise CannotLook("no target's tokenizer.json was given; pass --target with the target's folder")
    try:
        ours, theirs = subject.source.read(name), source.read(name)
        if ours == theirs:
            return
        one, other = _token_ids(name, ours), _token_ids(name, theirs)
    except EaglectlError as error:
        raise CannotLook(str(error)) from None
    if different := sorted(key for key in {**one, **other} if one.get(key) != other.get(key)):
        first = f"{different[0]!r} is {one.get(different[0])} here and {other.get(different[0])} there"
        yield Hit(f"{len(different)} tokens have other numbers than in the target's {name}: {first}", name)


@rule("EGL706", "target-is-drafter", "error")
def target_is_drafter(subject: Subject) -> Iterator[Hit]:
    """The target is a whole language model.

    Given its drafter, or any other, as the target, nothing that compares the two means anything.

    Fix: give the model that verifies the drafts as --target.
    """
    if subject.target.config is None:
        raise CannotLook(NO_TARGET)
    if mark := drafter_mark(subject.target.config):
        yield Hit(f"the target that was given is a drafter (its config has {mark})")


@rule("EGL707", "tensor-parallel", "note")
def tensor_parallel(subject: Subject) -> Iterator[Hit]:
    """The drafter can be split over as many GPUs as the target.

    Its heads and its MLP are shared out like the target's; where they do not divide, vLLM must run the drafter on one.

    Fix: start vLLM with draft_tensor_parallel_size: 1 in --speculative-config.
    """
    config, dims = subject.target.config, subject.drafter.dims
    if config is None:
        raise CannotLook(NO_TARGET)
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config
    heads, width = inner.get("num_attention_heads"), inner.get("intermediate_size")
    if type(heads) is not int:
        raise CannotLook("the target's config has no num_attention_heads")
    kv = inner.get("num_key_value_heads")
    for count in SPLITS:
        is_target_split = heads % count == 0 and (type(width) is not int or width % count == 0)
        if not is_target_split or (type(kv) is int and kv > 0 and not _is_shared(kv, count)):
            continue
        lacking = [name for name, fits in (
            (f"{dims.heads} heads", dims.heads % count == 0),
            (f"{dims.kv_heads} key heads", dims.attention == "MLA" or _is_shared(dims.kv_heads, count)),
            (f"an MLP of {dims.intermediate}", dims.intermediate % count == 0),
        ) if not fits]  # fmt: skip
        if lacking:
            yield Hit(f"the target can be split over {count} GPUs, and the drafter's {' and '.join(lacking)} cannot")
            return


@rule("EGL708", "target-vocabulary-size", "warning")
def target_vocabulary_size(subject: Subject) -> Iterator[Hit]:
    """The drafter was made for a vocabulary of the target's size.

    Sizes differ where one of the two is padded, which is harmless, or where the drafter is another model's.

    Fix: check that the drafter belongs to this target; vocab_size must be the target's, not the draft vocabulary's.
    """
    yield from subject.said("target-vocabulary-size")
    if subject.target.known.vocab is None:
        raise CannotLook(NO_TARGET)


def drafter_mark(config: Mapping[str, Any] | None) -> str:
    """What in a config says that it is a drafter's; empty where nothing does."""
    for key in ("draft_vocab_size", "speculators_model_type", "eagle_config", "norm_output"):
        if config and config.get(key) is not None:
            return key
    names = (config or {}).get("architectures")
    found = [str(name) for name in names if "Eagle" in str(name)] if isinstance(names, list) else []
    return f"the architecture {found[0]}" if found else ""


def _is_shared(kv_heads: int, count: int) -> bool:
    """Whether engines can place key heads on `count` GPUs: several on each, or each on several."""
    return kv_heads % count == 0 or count % kv_heads == 0


def _token_ids(name: str, raw: bytes) -> Mapping[str, int]:
    """Token ids by text, from a tokenizer.json of a BPE, WordPiece or Unigram model."""
    value = parse_json(name, raw)
    model = value.get("model") if isinstance(value, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found: dict[str, int] = {}
    if isinstance(vocab, dict):
        found |= vocab
    elif isinstance(vocab, list):
        found |= {str(entry[0]): place for place, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    else:
        raise CannotLook(f"{name} has no vocabulary to compare")
    added = value.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and type(entry.get("id")) is int and isinstance(entry.get("content"), str):
            found[entry["content"]] = entry["id"]
    return found
