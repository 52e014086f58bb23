"""Rules on the norms that tell EAGLE-3 from EAGLE-3.1: switches with their tensors, tensors with their switches."""

from collections.abc import Iterator

from eaglectl.formats.keys import MISSING, SPELLINGS, Keys
from eaglectl.validation.rule import Hit, rule
from eaglectl.validation.subject import Subject, key_place

# where every engine that knows the switch looks for it
READ = {
    "fc_norm": ("fc_norm",),
    "norm_output": ("norm_output",),
    "norm_before_fc": ("norm_before_fc", "eagle_config.norm_before_fc"),
    "norm_before_residual": ("norm_before_residual",),
}


@rule("EGL501", "norm-tensor-missing", "error")
def norm_tensor_missing(subject: Subject) -> Iterator[Hit]:
    """Every norm that the config switches on has its tensors.

    Engines build the norm and leave its weight at one where the file has none: fc gets other numbers than it was trained on,
    and no engine says so.

    Fix: restore the tensors from the trainer; many converters drop them.
    """
    yield from subject.said("norm-tensor-missing")


@rule("EGL502", "norm-flag-missing", "error")
def norm_flag_missing(subject: Subject) -> Iterator[Hit]:
    """Every norm that has tensors is switched on.

    Engines drop the tensors of a norm that is off in silence (input_norm in vLLM, all of them in SGLang), or stop (fc_norm in
    vLLM).

    Fix: write fc_norm: true or norm_before_fc: true, or run `eaglectl convert`.
    """
    yield from subject.said("norm-flag-missing")
    norms, keys = subject.drafter.norms, Keys(subject.flat)
    for flag, tensor, is_on in (
        ("fc_norm", "fc_norm.0.weight", norms.fc_norm),
        ("norm_before_fc", "input_norm.weight", norms.norm_before_fc),
    ):
        if is_on and keys.take(flag) is MISSING:
            yield Hit(f"the file has {tensor} and config has no {flag}", f"tensor:{tensor}")


@rule("EGL503", "both-norms", "warning")
def both_norms(subject: Subject) -> Iterator[Hit]:
    """fc_norm and norm_before_fc are not both on.

    They are two designs, and trainers that know both exclude the pair. vLLM and SGLang apply both, TensorRT-LLM one.

    Fix: switch off the one that was not trained.
    """
    yield from subject.said("both-norms")


@rule("EGL505", "norm-output-unknown", "warning")
def norm_output_unknown(subject: Subject) -> Iterator[Hit]:
    """It can be known whether the drafter feeds back its normed states (norm_output).

    SpecForge before its pull request 879 (September 2026) meant something else by the switch: true trained plain EAGLE-3.
    Served as stated, such a head gets states that it was not trained on from the second draft on.

    Fix: find out when it was trained, then run `eaglectl convert --source-semantics specforge=pre-879` or `post-879`, or
    `norm_output=true` or `false`.
    """
    if "eaglectl.json" not in subject.checkpoint.sidecars:  # written with the meaning that engines have
        yield from subject.said("norm-output-unknown", is_asked=True)


@rule("EGL506", "norm-flag-place", "warning")
def norm_flag_place(subject: Subject) -> Iterator[Hit]:
    """The switches of the norms stand where every engine looks for them.

    Some exporters write them into eagle_config or under older names, which one engine reads and the others do not.

    Fix: run `eaglectl convert`, which writes them at the top.
    """
    keys = Keys(subject.flat)
    for flag, places in READ.items():
        if any(keys.at(place) is not MISSING for place in places):
            continue
        other = next((place for place in SPELLINGS[flag] if keys.at(place) is True), None)
        if other is not None:
            at = key_place(subject.config, other.rpartition(".")[2])
            yield Hit(f"only {other} says that {flag} is on; not every engine looks there", at)


@rule("EGL507", "double-norm", "note")
def double_norm(subject: Subject) -> Iterator[Hit]:
    """The hidden state was normed once in training, as engines norm it.

    ModelOpt since its pull request 689 norms it twice, by input_layernorm and by hidden_norm, and nothing in the file shows
    when it was made. The second norm of an already normed state changes little but its scale.

    Fix: nothing, if `eaglectl smoke` measures the acceptance that training promised.
    """
    yield from subject.said("double-norm")
