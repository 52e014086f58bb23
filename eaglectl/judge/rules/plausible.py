"""Rules on numbers that engines compute with and that no trained drafter has: blocks of zeros, copied rows,
matrices and norms that were never trained, a dtype or a norm that means other numbers than were trained.
"""

from collections.abc import Iterator, Mapping

from eaglectl.conversion.readings import WORDS
from eaglectl.drafter.tensors import LAYER, is_norm
from eaglectl.files.target_files import text_part
from eaglectl.judge.rule import CannotLook, Match, rule
from eaglectl.judge.rules.weights import HALF, distributions
from eaglectl.judge.samples import LEAST_WIDTH, RANGES, Sample
from eaglectl.judge.subject import Subject, key_place

# a matrix that nothing else reads the states of, or writes the drafts of
ALONE = ("fc.weight", "lm_head.weight")
FRESH = 0.1  # how far a spread may be from one of a framework's before it is computed exactly


def misread(subject: Subject) -> Mapping[str, str]:
    """The matrices whose numbers are those of the other 16-bit dtype: stored name -> what shows it."""
    shown = dict[str, str]()
    for canonical, (name, sample) in subject.samples.items():
        dtype = subject.drafter.tensors[canonical].dtype
        # a bfloat16's exponent has three bits more: read as float16, its numbers lie between 1/16 and 4
        if dtype == "F16" and sample.small < (RANGES["small"].below or 0) and 1 / 16 < sample.rms < 4:
            shown[name] = f"none of its numbers is below a tenth of their RMS, {sample.rms:.2f}"
        elif dtype == "BF16" and sample.rms < (RANGES["scale"].below or 0):
            shown[name] = f"the RMS of its numbers is {sample.rms:.1g}"
    return shown


def _plausible(subject: Subject) -> Iterator[tuple[str, str, Sample]]:
    """Canonical name, stored name and sample of each matrix that is of the dtype that it states."""
    others = misread(subject)
    for name, (stored, sample) in subject.samples.items():
        if stored not in others:
            yield name, stored, sample


@rule("EGL216", "outlier", "warning")
def outlier(subject: Subject) -> Iterator[Match]:
    """No number is a thousand times as large as those around it.

    In trained matrices the largest number is up to 40 times the root mean square. One far above it comes
    from a flipped bit or a broken copy, and each state that it multiplies is that number and nothing
    else: one of 30,000 in fc left 1.02 tokens a round of 2.58 (the tiny pair, as in the figures of the
    rules below).

    Fix: restore the tensor from the trainer's checkpoint.
    """
    for _, stored, sample in _plausible(subject):
        peak = subject.scan[stored]
        if not peak.bad and sample.rms * (RANGES["peak"].above or 0) < peak.largest <= HALF:
            yield Match(
                f"{stored} reaches {peak.largest:.3g}, {peak.largest / sample.rms:,.0f} times the root mean"
                f" square of its numbers ({sample.rms:.2g})",
                f"tensor:{stored}",
            )


@rule("EGL217", "unread-block", "warning")
def unread_block(subject: Subject) -> Iterator[Match]:
    """Every state that fc takes, and both halves of the first layer's input, have weights that read them.

    The blocks of a trained fc and of a first layer have an RMS of 0.1 to 1.7 times that of the whole. A
    block of zeros reads nothing: the drafter drafts without that layer of the target, and no engine
    reports it (1.88 tokens a round of 2.58; 1.31 without the embedding).

    Fix: restore the tensor from the trainer's checkpoint; a state that was left out on purpose needs
    nothing.
    """
    for name, stored, sample in _plausible(subject):
        for at, rms in enumerate(sample.blocks):
            if len(sample.blocks) > 1 and rms < sample.rms * (RANGES["block"].below or 0):
                how = (
                    "not read at all" if not rms else f"hardly read: {rms / sample.rms:.3f} of the RMS of all"
                )
                yield Match(f"{_input(subject, name, at)} is {how} by {stored}", f"tensor:{stored}")


def _input(subject: Subject, name: str, at: int) -> str:
    if name != "fc.weight":
        return ("the embedding", "the fed-back state")[at]
    boundaries = subject.drafter.aux.boundaries
    return f"aux state {at + 1}" if boundaries is None else f"boundary {boundaries[at]}"


@rule("EGL218", "repeated-row", "warning")
def repeated_row(subject: Subject) -> Iterator[Match]:
    """The rows of a matrix differ, and are not zeros.

    Trained matrices have no two equal rows. Draft tokens of equal rows of lm_head have one score, so that
    at most one of them is ever drafted; those of rows of zeros are drafted only where all others are
    below zero. Half a head of zeros left 2.24 tokens a round of 2.58, every row twice 1.58.

    Fix: restore the tensor from the trainer's checkpoint; a head that was padded needs no padding.
    """
    for name, stored, sample in _plausible(subject):
        for count, words in ((sample.zeros, "zeros"), (sample.copies, "copies of other rows")):
            if count > sample.rows * (RANGES["rows"].above or 0):
                follows = "; those tokens are hardly drafted" if name == "lm_head.weight" else ""
                yield Match(
                    f"{stored}: {count} of {sample.rows} rows looked at are {words}{follows}",
                    f"tensor:{stored}",
                )


@rule("EGL219", "fresh-matrix", "error")
def fresh_matrix(subject: Subject) -> Iterator[Match]:
    """Neither fc nor lm_head is as a framework first draws it, where the rest was trained.

    Its numbers are then noise: 1.00 tokens a round for lm_head, 1.11 for fc, of 2.58 as trained. Loaders
    that miss a name leave such a matrix with at most a warning, and save it. A matrix counts as drawn
    where its spread is that of the config's initializer_range, or of torch, and its singular values are
    those of noise.

    Fix: restore the tensor from the trainer's checkpoint; convert that again, with names that match.
    """
    samples = {name: entry for name, entry in subject.samples.items() if name in ALONE}
    drawn = {
        name: words
        for name, (stored, sample) in samples.items()
        if (words := _drawn(subject, stored, sample))
    }
    norms = [subject.vectors[name].constant for name in _norms(subject).values() if name in subject.vectors]
    if not drawn or all(constant == 1 for constant in norms):
        return  # EGL207 reports a drafter of which nothing was trained
    for name, words in drawn.items():
        stored = samples[name][0]
        yield Match(
            f"{stored} was never trained: its numbers are as first drawn ({words})", f"tensor:{stored}"
        )


def _drawn(subject: Subject, stored: str, sample: Sample) -> str:
    """The distribution that a matrix was drawn from and that training has left as it was; "" for others."""
    width = subject.checkpoint.tensors[stored].shape[-1]
    stated = subject.flat.get("initializer_range")
    spreads = (stated if isinstance(stated, int | float) and stated > 0 else 0.02, (3 * width) ** -0.5)
    weights = subject.weights
    if not any(abs(sample.rms / spread - 1) < FRESH for spread in spreads):
        return ""
    from eaglectl.judge.scanning import is_noise

    (*_, words), *_ = distributions(subject, [stored]) or [("", "")]
    return words.partition(": ")[2] if words and is_noise(weights, stored) else ""


@rule("EGL220", "misread-dtype", "error")
def misread_dtype(subject: Subject) -> Iterator[Match]:
    """The numbers are of the dtype that the file states.

    bfloat16 and float16 are both two bytes. Words of one that are declared as the other give other
    numbers: bfloat16 read as float16 lie between 1/16 and 4 without any near zero, float16 read as
    bfloat16 are below a millionth. A trained matrix has 6 % of its numbers or more below a tenth of their
    root mean square. Measured: 1.01 and 1.00 tokens a round of 2.58.

    Fix: run `eaglectl convert SOURCE --fix-reading dtype=bfloat16`, or dtype=float16, which keeps the
    bytes.
    """
    others = misread(subject)
    for stored, words in list(others.items())[:1]:
        dtype = subject.checkpoint.tensors[stored].dtype
        reading, other = next(names for names in WORDS.items() if names[1] != dtype)
        more = f" and {len(others) - 1} others" if len(others) > 1 else ""
        fix = f"run `eaglectl convert SOURCE --fix-reading dtype={reading}`, which keeps the bytes."
        yield Match(
            f"{stored}{more}, stated as {dtype}, {'hold' if more else 'holds'} {other}"
            f": read as {dtype}, {words}",
            f"tensor:{stored}",
            fix,
        )


def _norms(subject: Subject) -> Mapping[str, str]:
    """The norms that are read as they are stored and are not too narrow: canonical name -> stored name."""
    stored = subject.checkpoint.tensors
    return {
        name: tensor.stored[0]
        for name, tensor in subject.drafter.tensors.items()
        if is_norm(name)
        and tensor.shape[0] >= LEAST_WIDTH
        and isinstance(tensor.origin, tuple)
        and stored[tensor.stored[0]].dtype == tensor.dtype
    }


def _means(subject: Subject) -> Mapping[str, float]:
    """The mean of each norm, of a drafter whose dtype is what it states. Raises CannotLook."""
    try:
        if misread(subject):
            return {}
    except CannotLook:
        pass  # --headers-only: norms are read all the same
    vectors, means = subject.vectors, {}
    for name, stored in _norms(subject).items():
        if stored in vectors and (mean := vectors[stored].mean) is not None:
            means[name] = mean
    return means


@rule("EGL509", "norms-near-zero", "error")
def norms_near_zero(subject: Subject) -> Iterator[Match]:
    """The weights of the norms are factors, not distances from one.

    Gemma stores w and computes 1 + w. Engines multiply by the number that an EAGLE-3 drafter has: a
    drafter stored so gets states near zero: 1.07 tokens a round of 2.58. In trained drafters the highest
    mean of a layer's norms is 0.9 or more.

    Fix: run `eaglectl convert SOURCE --fix-reading norm-weights=less-one`, which adds one to each.
    """
    means = {name: mean for name, mean in _means(subject).items() if LAYER.fullmatch(name)}
    if len(means) > 1 and max(means.values()) < (RANGES["highest norm"].below or 0):
        spans = f"{min(means.values()):.2f} to {max(means.values()):.2f}"
        yield Match(
            f"the norms have means of {spans}, as of weights that are stored less one (1 + w, as Gemma)"
        )


@rule("EGL510", "norms-near-two", "warning")
def norms_near_two(subject: Subject) -> Iterator[Match]:
    """The weights of the norms have no one added to them.

    Where one is added on export to weights that have it already, every state is about twice as large as
    in training: 1.31 tokens a round of 2.58. In trained drafters the lowest mean of all norms is 1.2 or
    less.

    Fix: run `eaglectl diagnose SOURCE --target TARGET`, which measures whether norms less one draft
    better; if they do, `eaglectl convert SOURCE --fix-reading norm-weights=plus-one`.
    """
    means = _means(subject)
    if len(means) > 1 and min(means.values()) > (RANGES["lowest norm"].above or 0):
        spans = f"{min(means.values()):.2f} to {max(means.values()):.2f}"
        yield Match(f"all norms have means of {spans}, as of weights to which one was added (1 + w twice)")


@rule("EGL511", "norm-of-ones", "warning")
def norm_of_ones(subject: Subject) -> Iterator[Match]:
    """A norm is trained where the others are.

    Training in one precision changes all norms or none. One that is exactly ones among others that are
    not was missing where the file was made, and a loader filled it (the last norm: 2.44 tokens a round of
    2.58).

    Fix: restore the tensor from the trainer's checkpoint.
    """
    vectors = subject.vectors
    constants = {stored: vectors[stored].constant for stored in _norms(subject).values() if stored in vectors}
    ones = [stored for stored, constant in constants.items() if constant == 1]
    if 0 < len(ones) <= len(constants) / 2:
        for stored in ones:
            count = len(constants) - len(ones)
            yield Match(f"{stored} is exactly ones, and {count} other norms were trained", f"tensor:{stored}")


@rule("EGL124", "norm-epsilon", "warning")
def norm_epsilon(subject: Subject) -> Iterator[Match]:
    """rms_norm_eps is small beside the squares of the states.

    Trained drafters have 1e-6 or 1e-5. A larger one makes norms of small states too small: with 1e-2 an
    embedding with an RMS of 0.05 is less than half of what the layer was trained on (2.30 tokens a round
    of 2.58).

    Fix: write rms_norm_eps as it was trained, which is mostly the target's.
    """
    epsilon = subject.flat.get("rms_norm_eps")
    if isinstance(epsilon, int | float) and epsilon > (RANGES["epsilon"].above or 0):
        theirs = text_part(subject.target.config or {}).get("rms_norm_eps")
        beside = f", and the target's {theirs:g}" if isinstance(theirs, int | float) else ""
        yield Match(
            f"rms_norm_eps is {epsilon:g}{beside}; trained drafters have 1e-6 or 1e-5",
            key_place(subject.config, "rms_norm_eps"),
        )


@rule("EGL713", "target-head-size", "warning")
def target_head_size(subject: Subject) -> Iterator[Match]:
    """Weights that fit the target's heads are read as the target's heads.

    The rows of q_proj and k_proj do not show where a head ends: 32 rows are two heads of 16 or one of 32.
    Trainers copy the target's heads. Read as heads of other size, the same bytes lose most drafts: 1.28
    tokens a round of 2.58.

    Fix: run `eaglectl diagnose SOURCE --target TARGET`, which measures both readings.
    """
    dims, sizes = subject.drafter.dims, text_part(subject.target.given_config)
    heads, hidden = sizes.get("num_attention_heads"), sizes.get("hidden_size")
    if dims.attention == "MLA" or type(heads) is not int or type(hidden) is not int or heads < 1:
        return
    kv_heads, size = sizes.get("num_key_value_heads", heads), sizes.get("head_dim") or hidden // heads
    if type(kv_heads) is not int or type(size) is not int or size == dims.head_dim:
        return
    ours = (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim)
    if ours == (heads * size, kv_heads * size):
        text = f"{dims.heads} heads of {dims.head_dim}, {dims.kv_heads} of them keys'"
        yield Match(
            f"the config states {text}; the same rows are the target's {heads} of {size}, {kv_heads} keys'",
            key_place(subject.config, "head_dim"),
        )
