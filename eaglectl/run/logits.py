"""An engine's draft logits beside those of the reference in float64, from the states that the engine gave."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from eaglectl.conversion.rewriting import HEAD, evaluate, find_target_matrix
from eaglectl.drafter.drafter import Feature
from eaglectl.drafter.tensors import Tensor
from eaglectl.errors import EaglectlError, RefusedError, check
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.run.job import EngineJob, LogitsCheck

if TYPE_CHECKING:
    from pathlib import Path

    import torch

# the largest difference of logits, over the largest logit, that an engine's own rounding makes
BOUNDS: Mapping[str, float] = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
EMBEDDING = "embed_tokens.weight"
# rows of a head in memory as float64 at once
ROWS = 8192
# arguments of engines that change numbers beyond the rounding of a dtype
INEXACT = frozenset({"kv_cache_dtype", "quantization", "hf_overrides"})


def why_not_recorded(job: EngineJob) -> str:
    """Return why the logits of this job cannot be compared with the reference; "" if they can."""
    drafter = job.drafter
    questions = [note.about for note in drafter.notes_at("question") if note.about != "aux layers"]
    reasons = (
        (drafter.quantisation is not None, "the drafter's weights are quantised"),
        (Feature.PARALLEL in drafter.features(), "it drafts several tokens in one step"),
        (job.tensor_parallel_size > 1, "the drafter is split over several GPUs"),
        (INEXACT & job.engine_arguments.keys(), "an engine argument changes its numbers"),
        (questions, f"it is open how it was trained: {', '.join(questions)}"),
    )
    return next((reason for is_so, reason in reasons if is_so), "")


def compare_logits(job: EngineJob, recorded: Mapping[str, str], file: "Path") -> LogitsCheck:
    """Compare the recorded draft of an engine (run/resolved.py, Recorder) with the reference's."""
    from safetensors.torch import load_file

    dtype = recorded["dtype"]
    if gap := recorded["gap"] or ("" if dtype in BOUNDS else f"it computes in {dtype}"):
        return LogitsCheck(dtype=dtype, gap=gap)
    try:
        differences = tuple(_differences(job, load_file(file)))
    except EaglectlError as error:
        return LogitsCheck(dtype=dtype, gap=str(error))
    return LogitsCheck(differences, BOUNDS[dtype], dtype)


def other_logits(title: str, logits: LogitsCheck) -> Iterator[str]:
    """Yield where an engine's logits are not those of training."""
    if (step := logits.first_wrong) is None:
        return
    difference, place = logits.differences[step], f"draft step {step + 1}"
    if difference is None:
        yield f"logits: {title}'s are not finite at {place}"
    else:
        yield (
            f"logits: {title}'s differ by {difference:.1g} of the largest at {place}; rounding in"
            f" {logits.dtype} explains less than {logits.bound:.0e}"
        )


def _differences(job: EngineJob, tensors: Mapping[str, "torch.Tensor"]) -> Iterator[float | None]:
    """Yield the largest difference of each recorded step, divided by the reference's largest logit; None if
    it is not finite.
    """
    for step, reference_logits in enumerate(_reference_steps(job, tensors)):
        engine_logits, size = tensors[f"logits.{step}"].double(), reference_logits.shape[-1]
        columns: Sequence[int] = range(size)
        # vLLM's logits are over the target's vocabulary, SGLang's over the draft vocabulary
        if job.draft_tokens is not None and engine_logits.shape[-1] != size:
            columns = job.draft_tokens
        check(
            (
                len(columns) != size or max(columns) >= engine_logits.shape[-1],
                f"the engine has {engine_logits.shape[-1]} logits, and the drafter {size}",
            ),
            error=RefusedError,
        )
        errors = (engine_logits[:, list(columns)] - reference_logits).abs()
        difference = float(errors.max() / reference_logits.abs().max())
        yield difference if isfinite(difference) else None


def _reference_steps(job: EngineJob, tensors: Mapping[str, "torch.Tensor"]) -> Iterator["torch.Tensor"]:
    """Yield the reference's logits [rows, draft_vocab] of each recorded step, by the weights of the files."""
    import torch

    from eaglectl.reference.model import DraftModel, causal_mask, check_runs

    drafter, checkpoint = job.drafter, read_checkpoint(FolderSource(job.folder))
    check_runs(drafter)
    embedding, head = (partial(_rows, _matrix(job, name), checkpoint) for name in (EMBEDDING, HEAD))
    aside = ("d2t", "t2d", EMBEDDING, HEAD)
    weights = {
        name: torch.from_numpy(evaluate(tensor, checkpoint))
        for name, tensor in drafter.tensors.items()
        if name not in aside
    }
    eps = float(drafter.settings["rms_norm_eps"])
    model = DraftModel(weights, drafter.dims, drafter.norms, drafter.rope, eps, drafter.windows)
    state, rows = model.combine_hidden_states(tensors["states"].double()[None]), tensors["rows"][None]
    caches, slots = model.new_caches(), 0
    for step in range(sum(name.startswith("logits.") for name in tensors)):
        tokens, positions = tensors[f"tokens.{step}"].tolist(), tensors[f"positions.{step}"][None]
        slots += len(tokens)
        queries = torch.arange(slots - len(tokens), slots)[:, None]
        mask = causal_mask(torch.ones(1, slots).bool(), queries)
        embeddings = torch.cat([embedding(token, token + 1) for token in tokens])[None]
        stream = model.forward(embeddings, state, positions, caches, mask, None if step else rows)
        state = model.feedback(stream[:, -1:])
        ends = range(0, drafter.dims.draft_vocab, ROWS)
        parts = (head(start, min(start + ROWS, drafter.dims.draft_vocab)) for start in ends)
        yield torch.cat([model.logits(stream, part) for part in parts], -1)[0]


def _matrix(job: EngineJob, name: str) -> Tensor:
    # the drafter's own embedding or head, or else the target's
    if (tensor := job.drafter.tensors.get(name)) is not None:
        return tensor
    target = read_checkpoint(FolderSource(job.target), headers_only=True)
    return find_target_matrix(target, "--target", is_head=name == HEAD).as_tensor(name, "the target's")


def _rows(matrix: Tensor, checkpoint: Checkpoint, start: int, stop: int) -> "torch.Tensor":
    import torch

    return torch.from_numpy(evaluate(matrix, checkpoint, (start, stop)))
