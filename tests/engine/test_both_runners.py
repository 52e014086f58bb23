"""The commands of eaglectl in both of vLLM's model runners: V1, and V2 by Triton's interpreter.

The children's lines are counted over all of it: none may be left that only another test's child runs.
"""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage
import pytest

import eaglectl
from eaglectl.drafter.drafter import Target
from eaglectl.engines import vllm
from eaglectl.engines.behaviour import capture
from eaglectl.run.installed import run_installed
from eaglectl.run.job import EngineJob
from eaglectl.run.process import VLLM
from eaglectl.run.prompts import Prompt
from eaglectl.run.vllm import child
from tests.builders import call
from tests.engine import pairs, trained
from tests.engine.agreement import bases
from tests.engine.agreement.cases import CASES
from tests.engine.runners import RUNNERS, use_runner
from tests.tiny import PROMPTS, TARGET, TINY

EAGLE3 = TINY / "eagle3"
SHORT = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 8, "--max-tokens", 12, "--device", "cpu")
CHILDREN = Path(child.__file__).parent
CHILD_MODULES = ("child.py", "connector.py")
DEFAULT = (2, 4, 5)
# layer ids in every place that tells the runners apart: the agreement case, what 0.32.0 captures in V1 and V2
SPELLINGS = {
    "no aux ids": (DEFAULT, DEFAULT),
    "aux ids at the top alone": ((1, 4, 6), (1, 4, 6)),
    "aux ids nested alone, as at the top": ((1, 4, 6), DEFAULT),
    "aux ids nested as layer_ids": (DEFAULT, (1, 4, 6)),
    "aux ids as target_layer_ids": (DEFAULT, (1, 4, 6)),
    "aux ids empty at the top": ((1, 4, 6), DEFAULT),
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the coverage of the children."""
    folder = tmp_path_factory.mktemp("coverage")
    settings = folder / "coveragerc"
    settings.write_text(f"[run]\nparallel = true\ndata_file = {folder}/data\ninclude = {CHILDREN}/*\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVERAGE_PROCESS_START", str(settings))
        yield folder


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest, counted: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        use_runner(patch, request.param)
        yield request.param


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_runner_captures_the_layers_that_the_data_has(runner: str, name: str, tmp_path: Path) -> None:
    layers = SPELLINGS[name][RUNNERS.index(runner)]
    files, target = CASES[f"llama31/{name}"].files(), bases.target("llama").write(tmp_path / "target")
    known = vllm.ENGINE.behaviour("0.32.0").runners[runner]
    assert capture(known, files.config, Target(depth=8, model_type="llama")).boundaries == layers
    folder, good = files.write(tmp_path / "drafter"), bases.drafter("llama31").write(tmp_path / "good")
    drafter = eaglectl.inspect(str(good), target=str(target)).drafter
    job = EngineJob(
        folder, drafter, target, (Prompt("", token_ids=(5, 6)),), max_tokens=2, compares_plain=False
    )
    resolved = run_installed(VLLM, job).resolved
    assert (resolved["runner"], tuple(resolved["aux_layers"])) == (f"{runner} (CPUModelRunner)", layers)


def test_the_trained_pair_is_accepted_as_in_every_engine(runner: str, tmp_path: Path) -> None:
    served, reference = (trained.smoke(EAGLE3, engine, tmp_path) for engine in ("vllm", "reference"))
    assert served.is_lossless and served.run.resolved["runner"] == f"{runner} (CPUModelRunner)"
    logits = served.run.logits
    assert logits is not None and (logits.gap, logits.first_wrong, len(logits.differences)) == ("", None, 3)
    assert pairs.counts(served) == pairs.counts(reference)
    assert trained.total(served) == trained.recorded()[f"vllm==0.32.0, {runner}"]


def test_load_only_says_what_vllm_takes_from_the_target(runner: str) -> None:
    done = call("smoke", EAGLE3, "--target", TARGET, "--engine", "vllm", "--load-only", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["unfilled"], document["shared"]) == ([], ["model.embed_tokens.weight"])


# nested ids are boundaries to V1; V2 does not read them, and takes its default, on which this one was trained
def test_ready_measures_the_stored_file_and_converts_what_the_runner_reads_otherwise(
    runner: str, tmp_path: Path
) -> None:
    folder, out = tmp_path / "torchspec", tmp_path / "out"
    eaglectl.convert(str(EAGLE3), folder, layout="torchspec", target=str(TARGET))
    (folder / "eaglectl.json").unlink()
    longer = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 12, "--max-tokens", 32, "--device", "cpu")
    done = call("ready", folder, *longer, "--engine", "vllm==0.32.0", "-o", out)
    assert done.code == 0, done.out + done.err
    is_converted, first = runner == "V1", done.out.splitlines()[0]
    assert out.exists() == is_converted
    assert first.startswith("pass: ready: as stored ") and (", converted " in first) == is_converted, done.out
    if is_converted:
        assert "vllm serve " in done.out and json.dumps(str(out)) in done.out


def test_calibrate_takes_the_states_of_transformers(runner: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join((TINY / "calibration.jsonl").read_text().splitlines(keepends=True)[:4]))
    rms = {}
    for engine in ("vllm", "transformers"):
        out = tmp_path / engine
        run = ("--prompts", prompts, "--answer-tokens", 6, "--device", "cpu", "--engine", engine, "-o", out)
        done = call("calibrate", EAGLE3, "--target", TARGET, *run)
        assert done.code == 0, done.err
        rms[engine] = json.loads((out / "statistics.json").read_bytes())["rms"]
    assert rms["vllm"] == pytest.approx(rms["transformers"], rel=1e-5)


def test_a_drafter_that_the_loader_refuses_fails_with_its_function(runner: str, tmp_path: Path) -> None:
    eaglectl.convert(str(TINY / "eagle3.1"), tmp_path / "drafter", target=str(TARGET))
    unset = pairs.changed(tmp_path / "drafter", tmp_path / "unset", fc_norm=False)
    done = call("smoke", unset, *SHORT, "--engine", "vllm", "--no-lossless")
    assert done.code == 1, done.err
    assert (
        "does not run this drafter: ValueError: There is no module or parameter named 'fc_norm'" in done.err
    )
    assert "(llama_eagle3.py, load_weights)" in done.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--engine-arg", "kv_cache_memory_bytes=1000"), 3, "for lack of memory"),
        (("--engine-arg", "quantisation=fp8"), 2, "--engine-arg quantisation: vLLM"),
        (("--engine-arg", "block_size=many"), 2, "--engine-arg block_size: vLLM"),
        (("--temperature", 0.7, "--no-lossless"), 3, "loses the temperature"),
    ],
)
def test_what_vllm_lacks_or_refuses_is_no_fault_of_the_drafter(
    words: tuple[str, ...], code: int, message: str, runner: str
) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", *words)
    assert done.code == code and message in done.err, done.err


def test_an_mla_pair_is_run(runner: str, tmp_path: Path) -> None:
    target, case = pairs.mla_target(tmp_path / "target"), pairs.case("vllm/mla")
    prompts = pairs.write_prompts(tmp_path / "prompts.jsonl")
    options = eaglectl.SmokeOptions(
        run_in="vllm", prompts=prompts, max_tokens=8, device="cpu", answers=case.answered()
    )
    report = eaglectl.smoke(str(case.folder), str(target), options)
    assert report.is_lossless
    assert report.run.resolved["class"] == "Eagle3DeepseekV2ForCausalLM"


# what runs on GPUs, what only a stand-in of vLLM makes happen (tests/test_vllm_smoke.py), what CPU builds do
# not measure: a temperature, and what test_speed_engine runs
ELSEWHERE = {
    *("llm_arguments", "gpu_memory", "memory_share", "_submit_async_write"),
    *("_check_device", "_counters", "captured_layers", "main"),
    *("generate", "speculative_config", "sampled_drafting"),
    *("measure", "run", "run_requests", "serving_arguments"),
}


# a sample leaves cases out
@pytest.mark.minutes
def test_every_line_of_the_children_has_run(counted: Path) -> None:
    data = coverage.Coverage(data_file=str(counted / "data"), config_file=str(counted / "coveragerc"))
    data.combine([str(counted)])
    left = {
        name
        for module in CHILD_MODULES
        for name in functions_at(CHILDREN / module, data.analysis2(str(CHILDREN / module))[3])
    }
    assert left <= ELSEWHERE


def functions_at(path: Path, lines: Sequence[int]) -> Iterator[str]:
    """The functions that these lines are in; "" outside of them."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    for line in lines:
        around = [node for node in functions if node.lineno <= line <= (node.end_lineno or 0)]
        yield around[-1].name if around else ""
