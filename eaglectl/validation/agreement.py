"""Rules on config.json against the tensors: sizes, layers, heads, biases, and what is tied or masked."""

from collections.abc import Iterator, Mapping

from eaglectl.drafter.tensors import Dimensions
from eaglectl.formats.keys import MISSING, Keys
from eaglectl.formats.reading import family_of
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject, key_place

# what an absent key means to engines: the default of its class (transformers 5.19 to 5.23)
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000},
    "qwen3": {"hidden_size": 4096, "intermediate_size": 22016, "vocab_size": 151936},
    "mla":   {
        "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000, "num_attention_heads": 32, "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    },
}  # fmt: skip
OF_DIMENSION = {
    "hidden_size": "hidden", "intermediate_size": "intermediate", "vocab_size": "vocab", "num_attention_heads": "heads",
}  # fmt: skip


@rule("EGL105", "layer-count", "error")
def layer_count(subject: Subject) -> Iterator[Hit]:
    """num_hidden_layers is the number of layers in the weights.

    Engines build what the config says: layers that the weights lack run on uninitialised memory, and those beyond the number
    are dropped or stop the load. The key is often copied from the target.

    Fix: write the number of layers that the weights have.
    """
    yield from subject.said("layer-count")
    if "num_hidden_layers" not in subject.flat:
        layers = subject.drafter.dims.layers
        yield Hit(
            f"config has no num_hidden_layers; its class then means 32, and the weights have {layers}", "config.json"
        )


@rule("EGL106", "head-dim", "error")
def head_dim(subject: Subject) -> Iterator[Hit]:
    """head_dim, stated or taken as hidden_size/num_attention_heads, is the size of the heads in the weights.

    Engines size the attention by it; with another they stop at the first attention weight.

    Fix: write head_dim as the weights have it.
    """
    yield from subject.said("head-dim")


@rule("EGL107", "tied-head", "warning")
def tied_head(subject: Subject) -> Iterator[Hit]:
    """tie_word_embeddings is false.

    No engine ties a drafter's head to the drafter's embedding as a trainer does: SGLang takes the embedding for the head even
    where the file has a head, and vLLM takes the target's head where the file has none.

    Fix: run `eaglectl convert`, which writes the head and false.
    """
    yield from subject.said("tied-head")
    tensors = subject.drafter.tensors
    head, embedding = tensors.get("lm_head.weight"), tensors.get("embed_tokens.weight")
    if head and embedding and head.stored == embedding.stored:
        text = "tie_word_embeddings is true and the file has no lm_head: the drafter was trained with its embedding as head"
        yield Hit(text, key_place(subject.config, "tie_word_embeddings"))


@rule("EGL108", "bias-flag", "error")
def bias_flag(subject: Subject) -> Iterator[Hit]:
    """attention_bias and mlp_bias say which biases the weights have.

    vLLM adds uninitialised memory where a bias is stated and not there, and drops in silence what is there and not stated;
    no engine has a bias on fc.

    Fix: correct the switch, or restore the biases from the trainer.
    """
    yield from subject.said("bias-flag")
    if "fc.bias" in subject.drafter.tensors:
        yield Hit("fc.bias has no place in any engine, which drops it in silence", "tensor:fc.bias")


@rule("EGL110", "residual-unstated", "note")
def residual_unstated(subject: Subject) -> Iterator[Hit]:
    """norm_before_residual is stated.

    An absent key means true to vLLM's speculators reader and false to the speculators library and to every other reader.

    Fix: run `eaglectl convert`, which states it.
    """
    if Keys(subject.flat).take("norm_before_residual") is MISSING:
        meant = str(subject.drafter.norms.norm_before_residual).lower()
        yield Hit(f"config has no norm_before_residual; it is read as {meant} here", "config.json")


@rule("EGL114", "config-dimensions", "error")
def dimensions(subject: Subject) -> Iterator[Hit]:
    """The sizes in the config are the sizes of the tensors.

    Engines build by the config and stop where a tensor does not fit; where it fits into what is larger, the rest stays
    uninitialised.

    Fix: write the sizes that the tensors have; if these are wrong, restore the tensors from the trainer.
    """
    is_speculators = subject.config.get("speculators_model_type") is not None
    if "transformer_layer_config" in subject.config and not is_speculators:
        raise CannotLook("config holds its sizes as speculators does, and does not say that it is of speculators")
    yield from subject.said("config-dimensions")
    if subject.stop is not None:
        return
    drafter, flat = subject.drafter, subject.flat
    dims = drafter.dims
    for key, default in DEFAULTS[family_of(drafter.tensors, dims)].items():
        size = getattr(dims, OF_DIMENSION.get(key, key))
        if key == "q_lora_rank" and not size:
            continue  # its missing tensors say it
        if key == "q_lora_rank" and key in flat and flat[key] is None:
            text = f"q_lora_rank is null, with which engines build q_proj, and the tensors have {size}"
            yield Hit(text, key_place(subject.config, key))
        if key not in flat and size != default:
            yield Hit(
                f"config has no {key}; its class then means {default}, and the tensors have {size}", "config.json"
            )
    yield from _unstated(subject, dims)


def _unstated(subject: Subject, dims: Dimensions) -> Iterator[Hit]:
    flat, key = subject.flat, "target_hidden_size"
    if flat.get("draft_vocab_size") is None and dims.draft_vocab != dims.vocab:
        text = f"config has no draft_vocab_size; engines then build a head of {dims.vocab} rows, and it has {dims.draft_vocab}"
        yield Hit(text, "config.json")
    is_null = key in subject.config and "transformer_layer_config" not in subject.config  # another rule's
    if flat.get(key) is None and not is_null and dims.target_hidden != dims.hidden:
        found = f"aux states {dims.hidden} wide, and fc takes {dims.target_hidden}"
        yield Hit(f"config has no {key}; engines then take {found}", "config.json")


@rule("EGL116", "mask-token", "error")
def mask_token(subject: Subject) -> Iterator[Hit]:
    """A parallel drafter has mask_hidden in its weights, and names its mask token.

    vLLM does not start a parallel drafter without either.

    Fix: restore mask_hidden from the trainer; name the token with `eaglectl convert --source-semantics mask_token_id=N`.
    """
    yield from subject.said("mask-token", is_asked=True)
    if subject.drafter.kind == "peagle" and "mask_hidden" not in subject.drafter.tensors:
        yield Hit("a parallel drafter without mask_hidden", "tensor:mask_hidden")
