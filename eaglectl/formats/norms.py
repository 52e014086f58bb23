"""Reading the norms and their switches."""

from collections.abc import Mapping

from msgspec.structs import replace

from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, ONE_NORM, TWICE, Choice, Norms, Note, question
from eaglectl.drafter.tensors import NORM, Dimensions, Tensor
from eaglectl.errors import RefusedError, check
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.format import Answers, CheckpointSummary, Format

# switches whose norms have tensors; an answer can only be that none was trained
TENSOR_FLAGS = ("fc_norm", "norm_before_fc")


def read_norms(
    keys: Keys,
    format: Format,
    summary: CheckpointSummary,
    answers: Answers,
    tensors: Mapping[str, Tensor],
    dims: Dimensions,
) -> Norms:
    """Read the four norm switches; norm_output is None if the user must answer it."""
    norms, joint = len(list(filter(NORM.fullmatch, tensors))), int("input_norm.weight" in tensors)
    fc_norm = _read_tensor_flag(
        keys, answers, "fc_norm", f"{dims.aux} fc_norm.N.weight", count=norms, needed=dims.aux
    )
    before_fc = _read_tensor_flag(keys, answers, "norm_before_fc", "input_norm.weight", count=joint, needed=1)
    keys.note(
        fc_norm and before_fc,
        "warning",
        "norms",
        "both fc_norm and norm_before_fc are on; vLLM and SGLang apply both, TensorRT-LLM only fc_norm",
        "both-norms",
    )
    hidden = answers.semantics.get("hidden_norm")
    twice = format.hidden_twice(summary, answers) if hidden is None else hidden == "twice"
    return Norms(
        fc_norm,
        before_fc,
        _read_norm_output(keys, format, summary, answers, has_fc_norm=fc_norm),
        _read_residual(keys, format, answers),
        twice,
    )


def norms_by_record(keys: Keys, norms: Norms, producer: str, twice: object) -> Norms:
    """Return the switches, with hidden_twice from eaglectl.json if the files leave it open."""
    if norms.hidden_twice is not None or not isinstance(twice, bool):
        return norms
    keys.notes[:] = [note for note in keys.notes if note.topic != DOUBLE_NORM]
    if twice:
        keys.notes.append(
            Note("warning", HIDDEN_NORM, TWICE, DOUBLE_NORM, producer, is_open=True, advice=ONE_NORM)
        )
    return replace(norms, hidden_twice=twice)


def _read_norm_output(
    keys: Keys, format: Format, summary: CheckpointSummary, answers: Answers, *, has_fc_norm: bool
) -> bool | None:
    # by the user, then the producer, then the config; None, with a question, if it stays open
    key = "norm_output"
    from_config = _read_flag(keys, key, answers)
    if (answer := answers.semantics.get(key)) is not None:
        return answer == "true"
    if any(keys.contradiction(key)):  # it is asked
        return None
    if format.norm_output:
        return format.norm_output(summary, from_config, answers)
    if from_config is not None or not has_fc_norm:
        return bool(from_config)
    choices = (
        Choice("--source-semantics", "norm_output=true", "EAGLE-3.1"),
        Choice("--source-semantics", "norm_output=false", "EAGLE-3 with fc_norm"),
    )
    keys.notes.append(
        question(key, "fc_norm is trained in and config has no norm_output", "norm-output-unknown", choices)
    )
    return None


def _read_residual(keys: Keys, format: Format, answers: Answers) -> bool:
    # norm_before_residual by the user, then the config, then the producer's default
    key, usual = "norm_before_residual", format.residual_default
    is_null = usual and keys.stored.get(key, usual) is None
    null = f"config.json says {key}: null, which vLLM reads as false; {format.title}'s default is true"
    from_config = _read_flag(keys, key, answers, usual, null if is_null else "")
    if (answer := answers.semantics.get(key)) is not None:
        return answer == "true"
    keys.note(
        from_config is None and usual and not is_null,
        "note",
        key,
        f"config has no {key}; in {format.title}'s files that means true",
    )
    return usual if from_config is None else from_config


def _read_flag(
    keys: Keys, key: str, answers: Answers, usual: bool | None = None, doubt: str = ""
) -> bool | None:
    """Read a switch that no tensor decides; None, and a question, if two places contradict each other.

    `usual` is the producer's value if nothing is set; None: it has none. `doubt`: why the value is open too.
    """
    contradiction = keys.contradiction(key)[0] or doubt
    if not contradiction:
        return keys.get(key, bool)
    if key not in answers.semantics:
        choices = [
            Choice("--source-semantics", f"{key}={str(value).lower()}", is_usual=value is usual)
            for value in (True, False)
        ]
        keys.notes.append(question(key, contradiction, "spellings-agree", choices))
    return None


def _question_of_tensor(flag: str, contradiction: str, tensor: str) -> Note:
    meaning = "if none was trained; else restore the tensor from the trainer"
    choice = Choice("--source-semantics", f"{flag}=false", meaning)
    return question(flag, f"{contradiction}, and the file has no {tensor}", "spellings-agree", [choice])


# whether a norm is there, by its tensors: a flag without tensors is refused, as engines would use ones
def _read_tensor_flag(
    keys: Keys, answers: Answers, flag: str, tensor: str, *, count: int, needed: int
) -> bool:
    name, where = keys.spelling(flag), f"config.json:{keys.spelling(flag)}"
    check(
        (
            count and count != needed,
            f"the file has {count} of {needed} {flag} tensors; engines would fill the others with ones",
            "norm-tensor-missing",
            where,
        ),
        error=RefusedError,
    )
    answer = answers.semantics.get(flag)
    check(
        (
            answer and count,
            f"--source-semantics {flag}={answer}: the file has {tensor}, which was trained",
            ("--source-semantics",),
        )
    )
    contradiction, _ = keys.contradiction(flag)
    if contradiction and count:
        return keys.disbelieved(flag, f"the file has {tensor}")
    if contradiction and not answer:
        keys.notes.append(_question_of_tensor(flag, contradiction, tensor))
    if contradiction or answer:
        return False
    from_config = keys.get(flag, bool)
    check(
        (
            from_config and not count,
            f"config says {name}: true and the file has no {tensor}; engines would use ones in silence:"
            " restore the tensor from the trainer",
            "norm-tensor-missing",
            where,
        ),
        error=RefusedError,
    )
    keys.note(
        count and from_config is False,
        "problem",
        flag,
        f"config says {name}: false and the file has {tensor}; one of them is wrong",
        "norm-flag-missing",
    )
    keys.note(
        count and from_config is None, "note", flag, f"config has no {name}; the file's tensors say true"
    )
    return bool(count)
