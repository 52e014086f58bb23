"""Rules on config.json against the tensors: sizes, layers, heads, biases, and what is tied or masked."""

from collections.abc import Iterator, Mapping

from eaglectl.formats.config_keys import Keys
from eaglectl.formats.reader import model_class_of
from eaglectl.validation.rule import CannotLook, Match, rule
from eaglectl.validation.subject import Subject, key_place

# the value of an absent key in the config class of each kind of attention (transformers 5.19 to 5.23)
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000},
    "qwen3": {"hidden_size": 4096, "intermediate_size": 22016, "vocab_size": 151936},
    "mla":   {
        "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000, "num_attention_heads": 32,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
}  # fmt: skip
DIMENSIONS = {
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "vocab_size": "vocab",
    "num_attention_heads": "heads",
}


@rule("EGL105", "layer-count", "error")
def layer_count(subject: Subject) -> Iterator[Match]:
    """num_hidden_layers is the number of layers in the weights.

    Engines build as many layers as the config states: layers that the weights lack run on uninitialised
    memory, and further ones are dropped or stop the load. The key is often copied from the target.

    Fix: write the number of layers that the weights have.
    """
    yield from subject.reported("layer-count")
    if "num_hidden_layers" not in subject.flat:
        layers = subject.drafter.dims.layers
        yield Match(
            f"config has no num_hidden_layers; its class then means 32, and the weights have {layers}",
            "config.json",
        )


@rule("EGL106", "head-dim", "error")
def head_dim(subject: Subject) -> Iterator[Match]:
    """head_dim, as stated or as hidden_size/num_attention_heads, is the head size of the weights.

    Engines size the attention by it, and stop at the first attention weight that does not fit.

    Fix: write head_dim as the weights have it.
    """
    yield from subject.reported("head-dim")


@rule("EGL107", "tied-head", "warning")
def tied_head(subject: Subject) -> Iterator[Match]:
    """tie_word_embeddings is false.

    No engine ties a drafter's head to the drafter's embedding as trainers do: SGLang uses the embedding as
    the head even where the file has a head, and vLLM uses the target's head where the file has none.

    Fix: run `eaglectl convert SOURCE`, which writes the head and false.
    """
    yield from subject.reported("tied-head")
    tensors = subject.drafter.tensors
    head, embedding = tensors.get("lm_head.weight"), tensors.get("embed_tokens.weight")
    if head and embedding and head.stored == embedding.stored:
        text = (
            "tie_word_embeddings is true and the file has no lm_head:"
            " the drafter was trained with its embedding as head"
        )
        yield Match(text, key_place(subject.config, "tie_word_embeddings"))


@rule("EGL108", "bias-flag", "error")
def bias_flag(subject: Subject) -> Iterator[Match]:
    """attention_bias and mlp_bias state which biases the weights have.

    vLLM adds uninitialised memory for a stated bias that is missing, and silently drops a bias that is not
    stated; no engine has a bias on fc.

    Fix: correct the switch, or restore the biases from the trainer.
    """
    yield from subject.reported("bias-flag")
    if "fc.bias" in subject.drafter.tensors:
        yield Match("fc.bias has no place in any engine; it is silently dropped", "tensor:fc.bias")


@rule("EGL110", "residual-unstated", "note")
def residual_unstated(subject: Subject) -> Iterator[Match]:
    """norm_before_residual is stated.

    An absent key means true to vLLM's speculators reader, and false to the speculators library and every
    other reader.

    Fix: run `eaglectl convert SOURCE`, which states it.
    """
    if not Keys(subject.flat).is_stated("norm_before_residual"):
        meant = str(subject.drafter.norms.norm_before_residual).lower()
        yield Match(f"config has no norm_before_residual; it is read as {meant} here", "config.json")


@rule("EGL114", "config-dimensions", "error")
def dimensions(subject: Subject) -> Iterator[Match]:
    """The sizes in the config are the sizes of the tensors.

    Engines allocate by the config and stop where a tensor does not fit; where it fits into a larger one,
    the rest stays uninitialised.

    Fix: write the sizes of the tensors; if these are wrong, restore the tensors from the trainer.
    """
    is_speculators = subject.config.get("speculators_model_type") is not None
    if "transformer_layer_config" in subject.config and not is_speculators:
        raise CannotLook(
            "config holds its sizes as speculators does, and does not state that it is of speculators"
        )
    yield from subject.reported("config-dimensions")
    if subject.read_error is None:
        yield from _class_defaults(subject)
        yield from _derived_defaults(subject)


def _class_defaults(subject: Subject) -> Iterator[Match]:
    """Sizes that the config leaves to its class, whose default is another."""
    flat, dims = subject.flat, subject.drafter.dims
    for key, default in DEFAULTS[model_class_of(subject.drafter.tensors, dims)].items():
        size = getattr(dims, DIMENSIONS.get(key, key))
        if key == "q_lora_rank" and not size:
            continue  # EGL201 reports its tensors
        if key == "q_lora_rank" and key in flat and flat[key] is None:
            text = f"q_lora_rank is null, with which engines build q_proj, and the tensors have {size}"
            yield Match(text, key_place(subject.config, key))
        if key not in flat and size != default:
            text = f"config has no {key}; its class then means {default}, and the tensors have {size}"
            yield Match(text, "config.json")


def _derived_defaults(subject: Subject) -> Iterator[Match]:
    """Sizes that the config leaves to engines, which derive others."""
    flat, dims, key = subject.flat, subject.drafter.dims, "target_hidden_size"
    if flat.get("draft_vocab_size") is None and dims.draft_vocab != dims.vocab:
        text = (
            f"config has no draft_vocab_size; engines then build a head of {dims.vocab} rows,"
            f" and it has {dims.draft_vocab}"
        )
        yield Match(text, "config.json")
    # EGL104 reports a null
    is_null = key in subject.config and "transformer_layer_config" not in subject.config
    if flat.get(key) is None and not is_null and dims.target_hidden != dims.hidden:
        widths = f"aux states {dims.hidden} wide, and fc takes {dims.target_hidden}"
        yield Match(f"config has no {key}; engines then take {widths}", "config.json")


@rule("EGL116", "mask-token", "error")
def mask_token(subject: Subject) -> Iterator[Match]:
    """A parallel drafter has mask_hidden in its weights, and its config names the mask token.

    vLLM does not start a parallel drafter that lacks either.

    Fix: restore mask_hidden from the trainer; name the token by `eaglectl convert SOURCE` with
    --source-semantics mask_token_id= and its id.
    """
    yield from subject.reported("mask-token", is_fault=True)
    if subject.drafter.kind == "peagle" and "mask_hidden" not in subject.drafter.tensors:
        yield Match("a parallel drafter without mask_hidden", "tensor:mask_hidden")
