"""The commands of eaglectl in both of vLLM's model runners: V1, and V2 by Triton's interpreter.

The children's lines are counted over all of it: none may be left that only another test's child runs.
"""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage
import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.errors import RefusedError
from eaglectl.run.installed import ask
from eaglectl.run.process import VLLM
from eaglectl.run.vllm import child
from tests.builders import call
from tests.engine import pairs
from tests.engine.runners import RUNNERS, use_runner
from tests.tiny import PROMPTS, TARGET, TINY

EAGLE3 = TINY / "eagle3"
SHORT = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 8, "--max-tokens", 12, "--device", "cpu")
CHILDREN = Path(child.__file__).parent
CHILD_MODULES = ("child.py", "connector.py")


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


@pytest.fixture
def torchspec(tmp_path: Path) -> Path:
    """The tiny drafter with ids that are nested alone, which V1 takes for boundaries and V2 does not read."""
    folder = tmp_path / "torchspec"
    eaglectl.convert(str(EAGLE3), folder, layout="torchspec", target=str(TARGET))
    (folder / "eaglectl.json").unlink()
    return folder


def test_smoke_measures_what_the_reference_measures(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--json")
    report = json.loads(done.out)
    reference = json.loads(call("smoke", EAGLE3, *SHORT, "--run-in", "reference", "--json").out)
    assert report["engine"]["resolved"]["runner"] == f"{runner} (CPUModelRunner)"
    assert report["engine"]["resolved"]["aux_layers"] == [2, 4, 5]
    assert (report["lossless"], report["drafts"]) == (True, reference["drafts"])
    assert report["per_position"] == reference["per_position"]


def test_load_only_says_what_vllm_takes_from_the_target(runner: str) -> None:
    done = call("smoke", EAGLE3, "--target", TARGET, "--engine", "vllm", "--load-only", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["unfilled"], document["shared"]) == ([], ["model.embed_tokens.weight"])


# nested ids are boundaries to V1; V2 does not read them, and takes its default, on which this one was trained
def test_ready_measures_the_stored_file_and_converts_what_the_runner_reads_otherwise(
    runner: str, torchspec: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    longer = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 12, "--max-tokens", 32, "--device", "cpu")
    done = call("ready", torchspec, *longer, "--engine", "vllm==0.32.0", "--no-reuse", "-o", out)
    assert done.code == 0, done.out + done.err
    assert out.exists() == (runner == "V1")
    first = done.out.splitlines()[0]
    assert first.startswith("ready  as stored ") and (", converted " in first) == (runner == "V1"), done.out


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


def test_a_tensor_of_another_shape_is_named(runner: str, tmp_path: Path) -> None:
    eaglectl.convert(str(EAGLE3), tmp_path / "drafter", target=str(TARGET))
    narrow = pairs.changed(tmp_path / "drafter", tmp_path / "narrow")
    tensors = pairs.tensors(narrow)
    pairs.write(tensors | {"norm.weight": tensors["norm.weight"][:-1].clone()}, narrow)
    job = replace(pairs.job_of(tmp_path / "drafter", TARGET), folder=narrow)
    where = r"not run this drafter.*\(tensor norm.weight, llama_eagle3.py, load_weights\)"
    with pytest.raises(RefusedError, match=where):
        ask(VLLM, job, "generate", [[5, 6, 7]])


def test_a_setup_that_vllm_refuses_could_not_look(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--engine-arg", "kv_cache_memory_bytes=1000")
    assert done.code == 3, done.err
    assert "memory does not suffice" in done.err, done.err


def test_an_argument_that_vllm_does_not_have_is_usage(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--engine-arg", "quantisation=fp8")
    assert done.code == 2 and "the nearest names are quantization" in done.err, done.err


def test_an_mla_pair_is_run(runner: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    pairs.mla_target(target)
    pairs.write_prompts(tmp_path / "prompts.jsonl")
    case = pairs.case("vllm/mla")
    options = eaglectl.SmokeOptions(
        run_in="vllm",
        prompts=str(tmp_path / "prompts.jsonl"),
        max_tokens=8,
        device="cpu",
        answers=case.answered(),
    )
    report = eaglectl.smoke(str(case.folder), str(target), options)
    assert report.is_lossless
    assert report.run.resolved["class"] == "Eagle3DeepseekV2ForCausalLM"


def test_an_argument_that_vllm_refuses_is_usage(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--engine-arg", "block_size=many")
    assert done.code == 2 and "--engine-arg block_size" in done.err, done.err


def test_a_temperature_that_the_cpu_build_loses_is_not_measured(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--temperature", 0.7, "--no-lossless")
    # Triton's interpreter does not run the kernel that samples drafts in V2
    words = {"V1": "loses the temperature", "V2": "its kernels do not run on this device"}[runner]
    assert done.code == 3 and words in done.err, done.err


# what runs on GPUs, what only a stand-in of vLLM makes happen (tests/test_vllm_smoke.py), what CPU builds do
# not measure: a temperature, and what test_speed_engine runs
ELSEWHERE = {
    *("llm_arguments", "gpu_memory", "memory_share", "_submit_async_write", "keeps_temperature"),
    *("_check_device", "_counters", "captured_layers", "main"),
    *("generate", "speculative_config", "sampled_drafting"),
    *("measure", "run", "run_requests", "serving_arguments"),
}


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
