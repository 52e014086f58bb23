"""smoke on the real vLLM compares draft logits with the reference, and names what differs."""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from eaglectl.run.results import SmokeReport
from tests.engine.agreement.bases import Files
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.edits import config
from tests.engine.agreement.judging import targets
from tests.engine.logits import BOUND

PROMPT = [(37 * place + 5) % 256 for place in range(40)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = targets(tmp_path_factory.mktemp("logits"))
    (root / "prompts.jsonl").write_text(json.dumps({"prompt_token_ids": PROMPT}))
    return root


def smoke(
    root: Path,
    kind: str,
    files: Files,
    folder: Path,
    semantics: dict[str, str] | None = None,
    **arguments: Any,
) -> SmokeReport:
    options = eaglectl.SmokeOptions(
        answers=Answers(semantics=semantics or {}),
        run_in="vllm",
        prompts=root / "prompts.jsonl",
        max_tokens=4,
        lossless=False,
        engine_arguments=arguments,
    )
    return eaglectl.smoke(str(files.write(folder)), str(root / kind), options)


@pytest.mark.parametrize("name", ["llama3/none", "llama31/none", "qwen31/none", "mla31/none"])
def test_a_drafter_as_trained_is_within_rounding_of_the_reference(
    name: str, root: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    run = smoke(root, case.kind, case.files(), tmp_path / "drafter").run
    assert run.logits is not None and (run.differences, run.logits.gap) == ((), "")
    assert (run.logits.dtype, run.logits.bound, run.logits.score_factor) == ("float32", BOUND, 1.0)
    assert len(run.logits.differences) == 3 and max(map(float, run.logits.differences)) < 2e-5


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("llama3/attention biases not told", 1),
        ("llama3/norm_before_residual nested", 1),
        ("qwen31/norm_output nested", 2),
        ("mla31/norm_output nested", 2),
    ],
)
def test_what_the_engine_misreads_shows_in_the_logits(
    name: str, step: int, root: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    report = smoke(root, case.kind, case.files(), tmp_path / "drafter")
    assert report.run.logits is not None and report.run.logits.first_wrong == step - 1
    assert any(f" of the largest at draft step {step};" in text for text in report.run.differences)
    assert report.verdict == "fail"


# vLLM rotates half of each head: as trained, or not, by what the user knows of the training
@pytest.mark.parametrize(
    ("semantics", "is_wrong"),
    [({"rope": "stored"}, False), ({"harmless": "partial_rotary_factor"}, True)],
)
def test_a_partial_rotary_is_compared_with_the_training_that_is_stated(
    semantics: dict[str, str], is_wrong: bool, root: Path, tmp_path: Path
) -> None:
    files = CASES["llama3/partial_rotary_factor"].files()
    run = smoke(root, "llama", files, tmp_path / "drafter", semantics).run
    assert run.logits is not None and run.logits.first_wrong == (0 if is_wrong else None)
    assert [text.partition(" ")[0] for text in run.differences] == (["rope:", "logits:"] if is_wrong else [])


def test_an_open_question_about_the_network_is_not_compared(root: Path, tmp_path: Path) -> None:
    files = CASES["llama3/partial_rotary_factor"].files()
    run = smoke(root, "llama", files, tmp_path / "drafter").run
    assert run.logits is not None and run.logits.differences == ()
    assert run.logits.gap == "it is open how it was trained: partial_rotary_factor"


# no setting that is compared shows it: the class multiplies logits by it
def test_a_key_that_nothing_else_compares_shows_in_the_logits(root: Path, tmp_path: Path) -> None:
    files = CASES["llama3/none"].files()
    config(logit_scale=2.0)(files)
    run = smoke(root, "llama", files, tmp_path / "drafter").run
    (text,) = run.differences
    assert text.startswith("logits: vLLM's differ by 1 of the largest at draft step 1;")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_bound_is_that_of_the_engines_dtype(dtype: str, root: Path, tmp_path: Path) -> None:
    files = CASES["llama31/none"].files()
    run = smoke(root, "llama", files, tmp_path / "drafter", dtype=dtype).run
    assert run.logits is not None and (run.logits.dtype, run.differences) == (dtype, ())
    assert all(off is not None and off > BOUND for off in run.logits.differences)
