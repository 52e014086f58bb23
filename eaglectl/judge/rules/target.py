"""Rules on the target, the model that verifies the drafts: its width, its tokens, its tokenizer."""

from collections.abc import Iterator, Mapping

from eaglectl.files.header import parse_json
from eaglectl.files.target_files import text_part
from eaglectl.formats.other_drafters import drafter_mark
from eaglectl.judge.rule import CannotLook, Match, note_rule, rule
from eaglectl.judge.subject import NO_TARGET, Subject

# common tensor parallel sizes
TENSOR_PARALLEL_SIZES = (2, 4, 8, 16)


@rule("EGL701", "target-mismatch", "error")
def target_mismatch(subject: Subject) -> Iterator[Match]:
    """The drafter's aux states are as wide as the target's hidden states.

    fc takes the target's hidden states; states of another width do not fit, and the drafter belongs to
    another target.

    Fix: give the target that the drafter was trained for.
    """
    matches = tuple(subject.reported("target-mismatch"))
    yield from matches
    if not matches and subject.target.known.hidden is None:
        raise CannotLook(NO_TARGET)


@rule("EGL702", "target-vocabulary", "error")
def target_vocabulary(subject: Subject) -> Iterator[Match]:
    """The drafter proposes only tokens that the target has.

    A drafter with a full vocabulary larger than the target's was made for another model.

    Fix: give the target that the drafter was trained for.
    """
    yield from subject.reported("target-vocabulary")
    if subject.target.known.vocab is None:
        raise CannotLook(NO_TARGET)


@rule("EGL703", "target-tokenizer", "warning")
def target_tokenizer(subject: Subject) -> Iterator[Match]:
    """A tokenizer beside the drafter gives every token the target's id.

    Engines use only the target's tokenizer; a tokenizer that differs shows that the drafter was trained on
    other token ids.

    Fix: check which target the drafter was trained for; then publish the target's tokenizer, or none.
    """
    name = "tokenizer.json"
    if name not in subject.names:
        return
    source = subject.target.source
    if source is None or name not in source.names():
        raise CannotLook("no target's tokenizer.json was given; pass --target with the target's folder")
    ours, theirs = subject.source.read(name), source.read(name)
    if ours == theirs:
        return
    own_ids, target_ids = _token_ids(name, ours), _token_ids(name, theirs)
    tokens = sorted({**own_ids, **target_ids})
    if different := [token for token in tokens if own_ids.get(token) != target_ids.get(token)]:
        token = different[0]
        first = f"{token!r} is {own_ids.get(token)} here and {target_ids.get(token)} there"
        yield Match(f"{len(different)} tokens have other numbers than in the target's {name}: {first}", name)


@rule("EGL706", "target-is-drafter", "error")
def target_is_drafter(subject: Subject) -> Iterator[Match]:
    """The target is a whole language model.

    With a drafter as the target, comparing the two has no meaning.

    Fix: give the model that verifies the drafts as --target.
    """
    if mark := drafter_mark(subject.target.given_config):
        yield Match(f"the target that was given is a drafter (its config has {mark})")


@rule("EGL707", "tensor-parallel", "note")
def tensor_parallel(subject: Subject) -> Iterator[Match]:
    """The drafter can be split over as many GPUs as the target.

    Its heads and its MLP are split like the target's; where they do not divide, vLLM must run the drafter
    on one GPU.

    Fix: start vLLM with draft_tensor_parallel_size: 1 in --speculative-config.
    """
    dims, sizes = subject.drafter.dims, text_part(subject.target.given_config)
    heads, kv_heads, width = (
        sizes.get(key) for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    )
    if type(heads) is not int:
        raise CannotLook("the target's config has no num_attention_heads")
    # one key head is on every GPU: that of MLA, and of a config that states none
    of_drafter = (dims.heads, 1 if dims.attention == "MLA" else dims.kv_heads, dims.intermediate)
    shared = kv_heads if type(kv_heads) is int and kv_heads > 0 else 1
    of_target = (heads, shared, width if type(width) is int else 0)
    for count in TENSOR_PARALLEL_SIZES:
        parts = " and ".join(_undivided(*of_drafter, count))
        if parts and not _undivided(*of_target, count):
            yield Match(f"the target can be split over {count} GPUs, and the drafter's {parts} cannot")
            return


def _undivided(heads: int, kv_heads: int, intermediate: int, count: int) -> list[str]:
    """What of a model cannot be split over `count` GPUs; several key heads go on one, or one on several."""
    remainders = {
        f"{heads} heads": heads % count,
        f"{kv_heads} key heads": kv_heads % count and count % kv_heads,
        f"an MLP of {intermediate}": intermediate % count,
    }
    return [part for part, remainder in remainders.items() if remainder]


@rule("EGL708", "target-vocabulary-size", "warning")
def target_vocabulary_size(subject: Subject) -> Iterator[Match]:
    """The drafter was made for a vocabulary of the target's size.

    Sizes differ where one of the two is padded, which is harmless, or where the drafter belongs to another
    model.

    Fix: check that the drafter belongs to this target; vocab_size must be the target's, not the draft
    vocabulary's.
    """
    yield from subject.reported("target-vocabulary-size")
    if subject.target.known.vocab is None:
        raise CannotLook(NO_TARGET)


target_depth = note_rule(
    "EGL709",
    "target-depth",
    "warning",
    """The target has as many layers as the drafter's config says.

    Layer ids are read by the target's depth, which trainers write under names of their own
    (target_layer_count, num_target_layers and others). A target of another depth is another model, or the
    key was copied.

    Fix: give the target that the drafter was trained for, or correct the key.
    """,
)


@rule("EGL712", "changed-target", "note")
def changed_target(subject: Subject) -> Iterator[Match]:
    """The target is the model that the drafter was trained on, neither quantised nor adapted.

    A drafter reads the target's states, and follows what it says. Quantisation and LoRA adapters change
    both: 8 bits hardly, 4 bits by a seventh to a fifth of the accepted tokens (docs/evidence.md); what is
    known of it stands in the message.

    Fix: nothing, if `eaglectl smoke SOURCE --target TARGET` measures the acceptance that training reported.
    """
    if subject.target.given_config:
        yield from (Match(note.text) for note in subject.drafter.notes if note.topic == "changed-target")


def _token_ids(name: str, raw: bytes) -> Mapping[str, int]:
    """Token ids by text, from a tokenizer.json of a BPE, WordPiece or Unigram model."""
    tokenizer = parse_json(name, raw)
    model = tokenizer.get("model") if isinstance(tokenizer, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: Mapping[str, int]
    if isinstance(vocab, dict):
        ids = vocab
    elif isinstance(vocab, list):
        ids = {str(entry[0]): index for index, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    else:
        raise CannotLook(f"{name} has no vocabulary to compare")
    added = tokenizer.get("added_tokens")
    return dict(ids) | {
        entry["content"]: entry["id"]
        for entry in (added if isinstance(added, list) else ())
        if isinstance(entry, dict) and type(entry.get("id")) is int and isinstance(entry.get("content"), str)
    }
