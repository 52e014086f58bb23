"""An engine's draft logits beside the reference's: a float32 run of the reference stands in for an engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.drafter import Drafter, Norms
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.reference.model import DraftModel, causal_mask, load_drafter
from eaglectl.reference.states import load_embedding
from eaglectl.run.job import EngineJob, LogitsCheck
from eaglectl.run.logits import BOUNDS, compare_logits, other_logits, why_not_recorded
from eaglectl.run.resolved import Recorder, score_factor, unlike
from tests.engine.agreement.bases import BASES, DRAFTED, HIDDEN, VOCAB, drafter, target

TOKENS = torch.tensor([(7 * place + 3) % VOCAB for place in range(12)])


def job_of(base: str, folder: Path) -> EngineJob:
    """The job of a good drafter, with its target's files."""
    files = drafter(base).write(folder / "drafter")
    place = target(BASES[base].kind).write(folder / "target")
    read = eaglectl.inspect(str(files), target=str(place)).drafter
    tokens = DRAFTED if BASES[base].is_reduced else None
    return EngineJob(files, read, place, (), draft_tokens=tokens)


def recorded(job: EngineJob, model: DraftModel, file: Path) -> dict[str, str]:
    """Write what `model` drafts, as an engine's process does."""
    recorder = Recorder()
    states = torch.randn(len(TOKENS), 3 * HIDDEN, generator=torch.Generator().manual_seed(1))
    recorder.add_states(states)
    for tokens, places, stream in drafted(job, model, states[None]):

        def logits_of(rows: torch.Tensor, stream: torch.Tensor = stream) -> torch.Tensor:
            head = model.weights.get("lm_head.weight")
            logits = model.logits(stream[0, rows], rows_of(job, "lm_head") if head is None else head)
            ids = torch.arange(VOCAB) if job.draft_tokens is None else torch.tensor(job.draft_tokens)
            return torch.full((len(rows), VOCAB), -torch.inf).index_copy(1, ids, logits)

        recorder.add_step(tokens, places, logits_of)
    return recorder.write(str(file))


def rows_of(job: EngineJob, name: str) -> torch.Tensor:
    found = read_checkpoint(FolderSource(job.target))
    if name != "lm_head":
        return load_embedding(found, VOCAB, HIDDEN)
    return torch.frombuffer(bytearray(found.read("lm_head.weight")), dtype=torch.float32).view(VOCAB, HIDDEN)


def drafted(
    job: EngineJob, model: DraftModel, states: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Tokens, positions and the last state of four steps, the drafts forced."""
    embedding, state, slots = rows_of(job, "embed_tokens"), model.combine_hidden_states(states), 0
    caches, tokens, places = model.new_caches(), TOKENS, torch.arange(len(TOKENS))
    for step in range(4):
        slots += len(tokens)
        mask = causal_mask(torch.ones(1, slots).bool(), torch.arange(slots - len(tokens), slots)[:, None])
        stream = model.forward(embedding[tokens][None], state, places[None], caches, mask)
        yield tokens, places, stream
        state = model.feedback(stream[:, -1:])
        tokens, places = torch.tensor([40 + step]), places[-1:] + 1


def changed(model: DraftModel, drafter: Drafter, **norms: bool) -> DraftModel:
    switches: Norms = replace(drafter.norms, **norms)
    return DraftModel(model.weights, drafter.dims, switches, drafter.rope, model.eps)


@pytest.mark.parametrize("base", ["llama3", "llama31", "llama-shared", "qwen31", "mla31"])
def test_float32_is_within_its_bound_of_float64(base: str, tmp_path: Path) -> None:
    job = job_of(base, tmp_path)
    model = load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")
    found = compare_logits(job, recorded(job, model, tmp_path / "draft"), tmp_path / "draft")
    assert (found.gap, found.dtype, found.bound) == ("", "float32", BOUNDS["float32"])
    assert len(found.differences) == 3 and all(
        off is not None and 0 < off < 1e-5 for off in found.differences
    )
    assert not list(other_logits("vLLM", found))


@pytest.mark.parametrize(
    ("norms", "step"), [({"norm_before_residual": True}, 0), ({"norm_output": False}, 1)]
)
def test_a_norm_switch_shows_in_the_step_that_it_changes(
    norms: dict[str, bool], step: int, tmp_path: Path
) -> None:
    job = job_of("llama31", tmp_path)
    model = load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")
    other = changed(model, job.drafter, **norms)
    found = compare_logits(job, recorded(job, other, tmp_path / "draft"), tmp_path / "draft")
    assert found.first_wrong == step
    (text,) = other_logits("vLLM", found)
    assert (
        text.startswith("logits: vLLM's differ by 0.") and f"of the largest at draft step {step + 1};" in text
    )


def test_a_logit_that_is_not_finite_is_wrong(tmp_path: Path) -> None:
    job = job_of("llama3", tmp_path)
    model = load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")
    model.weights["norm.weight"][3] = float("nan")
    found = compare_logits(job, recorded(job, model, tmp_path / "draft"), tmp_path / "draft")
    assert found.differences[0] is None
    assert list(other_logits("vLLM", found)) == ["logits: vLLM's are not finite at draft step 1"]


def test_tokens_of_another_vocabulary_are_not_compared(tmp_path: Path) -> None:
    job = job_of("llama3", tmp_path)
    model = load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")
    answer = recorded(job, model, tmp_path / "draft")
    found = compare_logits(replace(job, draft_tokens=DRAFTED[:-1]), answer, tmp_path / "draft")
    assert found.gap == "the engine has 256 logits, and the drafter 96" and found.first_wrong is None


@pytest.mark.parametrize(
    ("answer", "gap"),
    [
        ({"gap": "RuntimeError: x", "dtype": "float32"}, "RuntimeError: x"),
        ({"gap": "", "dtype": "float8_e4m3fn"}, "it computes in float8_e4m3fn"),
    ],
)
def test_what_was_not_recorded_is_a_gap(answer: dict[str, str], gap: str, tmp_path: Path) -> None:
    assert compare_logits(job_of("llama3", tmp_path), answer, tmp_path / "draft").gap == gap


def test_an_activation_that_the_reference_lacks_is_a_gap(tmp_path: Path) -> None:
    job = job_of("llama3", tmp_path)
    model = load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")
    answer = recorded(job, model, tmp_path / "draft")
    gelu = replace(job.drafter, settings={**job.drafter.settings, "hidden_act": "gelu"})
    found = compare_logits(replace(job, drafter=gelu), answer, tmp_path / "draft")
    assert "only SiLU" in found.gap and found.differences == ()


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    job = job_of("llama3", tmp_path)
    quantised = replace(job.drafter, quantisation={"quant_method": "fp8"})
    assert why_not_recorded(job) == ""
    assert "quantised" in why_not_recorded(replace(job, drafter=quantised))
    assert "several GPUs" in why_not_recorded(replace(job, tensor_parallel_size=2))
    assert "engine argument" in why_not_recorded(replace(job, engine_arguments={"kv_cache_dtype": "fp8"}))


def test_a_recorder_keeps_one_draft_and_puts_back_what_it_changed() -> None:
    recorder, undone = Recorder(), list[str]()
    recorder.undo.append(lambda: undone.append("hook"))
    assert recorder.write("nowhere") == {
        "gap": "the engine's drafter was not called from Python",
        "dtype": "",
    }
    assert undone == ["hook"]


def test_an_error_in_the_recorder_is_a_gap_and_not_the_engines() -> None:
    recorder = Recorder()
    with recorder.guarded():
        recorder.add_states(None)
    assert recorder.gap.startswith("AttributeError: ") and not recorder.is_on


def test_several_tokens_in_a_step_are_parallel_drafting() -> None:
    recorder = Recorder()
    recorder.add_states(torch.zeros(3, 4))
    recorder.add_step(torch.zeros(5), torch.zeros(5), lambda rows: torch.zeros(len(rows), 2))
    assert recorder.gap == "it drafts several tokens in one step"


def test_embeddings_in_place_of_tokens_are_a_gap() -> None:
    recorder = Recorder()
    recorder.add_states(torch.zeros(3, 4))
    recorder.add_step(None, torch.zeros(3), lambda rows: torch.zeros(len(rows), 2))
    assert recorder.write("nowhere")["gap"] == "it takes embeddings in place of token ids"


ROPE = {"frequencies": [1.0, 0.1], "scale": 1.4159, "keys": []}


def test_a_factor_on_cos_and_sin_is_named_by_its_square_on_scores() -> None:
    trained = {"rope": {**ROPE, "scale": 1.0, "keys": ["attention_factor"]}}
    assert score_factor(ROPE, trained["rope"]) == pytest.approx(2.0, rel=1e-2)
    assert list(unlike("vLLM", {"rope": ROPE}, trained)) == [
        "rope: vLLM has attention scores x 2: it does not read attention_factor as training did"
    ]


def test_other_frequencies_are_no_factor() -> None:
    (text,) = unlike("vLLM", {"rope": {**ROPE, "frequencies": [1.0, 0.2]}}, {"rope": ROPE})
    assert text == "rope: vLLM rotates with other frequencies than those of training"


def test_a_table_that_is_not_shown_has_no_factor() -> None:
    assert score_factor(None, ROPE) is None and score_factor(ROPE, None) is None


def test_a_difference_of_exactly_the_bound_is_wrong() -> None:
    assert LogitsCheck((1e-4,), 1e-4, "float32").first_wrong == 0
    assert LogitsCheck((9e-5,), 1e-4, "float32").first_wrong is None
