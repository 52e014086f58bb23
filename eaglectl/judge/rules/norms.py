"""Rules on the norms that distinguish EAGLE-3.1 from EAGLE-3: each switch has its tensors, and the
reverse.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from eaglectl.drafter.drafter import DOUBLE_NORM, JOINED_NORMS
from eaglectl.formats.config_keys import SPELLINGS, Keys, at
from eaglectl.judge.rule import Match, note_rule, rule
from eaglectl.judge.subject import Subject, key_place

# the keys that every engine which knows the switch reads
READ_KEYS = {
    "fc_norm": ("fc_norm",),
    "norm_output": ("norm_output",),
    "norm_before_fc": ("norm_before_fc", "eagle_config.norm_before_fc"),
    "norm_before_residual": ("norm_before_residual",),
}


norm_tensor_missing = note_rule(
    "EGL501",
    "norm-tensor-missing",
    "error",
    """Every norm that the config enables has its tensors.

    Engines build the norm and leave its weight at one where the file has none: fc gets other numbers than
    it was trained on, and no engine reports it.

    Fix: restore the tensors from the trainer; many converters drop them.
    """,
)


@rule("EGL502", "norm-flag-missing", "error")
def norm_flag_missing(subject: Subject) -> Iterator[Match]:
    """Every norm that has tensors is enabled.

    Engines silently drop the tensors of a disabled norm (input_norm in vLLM, all of them in SGLang), or
    stop (fc_norm in vLLM).

    Fix: write fc_norm: true or norm_before_fc: true, or run `eaglectl convert SOURCE`.
    """
    contrary = "write fc_norm: true or norm_before_fc: true if it was trained so; else remove the tensors."
    yield from (replace(match, fix=contrary) for match in subject.reported("norm-flag-missing"))
    norms, keys = subject.drafter.norms, Keys(subject.flat)
    for flag, tensor, is_on in (
        ("fc_norm", "fc_norm.0.weight", norms.fc_norm),
        ("norm_before_fc", "input_norm.weight", norms.norm_before_fc),
    ):
        if is_on and not keys.statements(flag):
            yield Match(f"the file has {tensor} and config has no {keys.spelling(flag)}", f"tensor:{tensor}")


both_norms = note_rule(
    "EGL503",
    "both-norms",
    "warning",
    """fc_norm and norm_before_fc are not both enabled.

    They are two designs, and trainers that know both exclude the pair. vLLM and SGLang apply both,
    TensorRT-LLM one.

    Fix: disable the one that was not trained.
    """,
)


@rule("EGL505", "norm-output-unknown", "warning")
def norm_output_unknown(subject: Subject) -> Iterator[Match]:
    """It is known whether the drafter feeds back its normed states (norm_output).

    Before SpecForge's pull request 879 (September 2026) the switch meant something else: true trained plain
    EAGLE-3. Served as stated, such a head gets states that it was not trained on from the second draft on.

    Fix: find out when it was trained, then run `eaglectl convert SOURCE` with --source-semantics
    specforge=pre-879 or specforge=post-879, or norm_output=true or norm_output=false.
    """
    if not subject.checkpoint.record:  # convert wrote it with the meaning that engines give it
        yield from subject.reported("norm-output-unknown", is_fault=True)


@rule("EGL506", "norm-flag-place", "warning")
def norm_flag_place(subject: Subject) -> Iterator[Match]:
    """The switches of the norms are where every engine reads them.

    Some exporters write them into eagle_config or under older names, which one engine reads and the others
    do not.

    Fix: run `eaglectl convert SOURCE`, which writes them at the top.
    """
    for flag, paths in READ_KEYS.items():
        if any(at(subject.flat, path) is not None for path in paths):
            continue
        other = next((path for path in SPELLINGS[flag] if at(subject.flat, path) is True), None)
        if other is not None:
            place = key_place(subject.config, other.rpartition(".")[2])
            yield Match(f"only {other} enables {flag}; not every engine reads it there", place)


@rule("EGL507", "double-norm", "note")
def double_norm(subject: Subject) -> Iterator[Match]:
    """The hidden state was normed once in training, as engines norm it.

    ModelOpt since 0.41.0 (its pull request 689) norms it twice, by input_layernorm and by hidden_norm. No
    engine does, so that the weights of input_layernorm are missing in what its attention reads. `convert`
    writes the product of both as one norm: the direction of each state is then exact, and its size differs
    by a factor near one, which the note states.

    Fix: run `eaglectl convert SOURCE`.
    """
    yield from subject.reported(DOUBLE_NORM)
    measure = "measure what the rest of it costs by `eaglectl smoke SOURCE --target TARGET`."
    yield from (replace(match, fix=measure) for match in subject.reported(JOINED_NORMS))


@rule("EGL508", "one-switch", "note")
def one_switch(subject: Subject) -> Iterator[Match]:
    """The two switches of EAGLE-3.1 are on together, or both off.

    One without the other is a network of its own: states normed before fc with an un-normed state fed back,
    or the reverse. vLLM since 0.22, SGLang and TensorRT-LLM compute each switch as stated; llama.cpp stops at
    fc_norm and ignores norm_output. speculators trains norm_output with norm_before_fc by default, which is
    whole; SpecForge, TorchSpec and NeMo Automodel train one switch only where a recipe says so.

    Fix: compare with the trainer's recipe; nothing, if it trained one switch alone.
    """
    norms = subject.drafter.norms
    if norms.norm_output is None or norms.norm_before_fc or subject.drafter.kind == "peagle":
        return
    if norms.fc_norm and not norms.norm_output:
        yield Match(
            "fc_norm without norm_output: the aux states are normed, and the state that is fed back is not",
            key_place(subject.config, "fc_norm"),
        )
    elif norms.norm_output and not norms.fc_norm:
        yield Match(
            "norm_output without fc_norm: the state that is fed back is normed, and the aux states are not",
            key_place(subject.config, "norm_output"),
        )
