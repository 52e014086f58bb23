"""The commands of eaglectl in both of vLLM's model runners: V1, and V2 by Triton's interpreter.

The children's lines are counted over all of it: none may be left that only another test's child runs.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.acceptance.installed import ask
from eaglectl.acceptance.process import VLLM
from eaglectl.acceptance.vllm import child
from eaglectl.errors import RefusedError
from tests.builders import call
from tests.engine import pairs
from tests.engine.runners import RUNNERS, use_runner
from tests.tiny import PROMPTS, TARGET, TINY

EAGLE3 = TINY / "eagle3"
SHORT = ("--target", TARGET, "--prompts", PROMPTS, "--sample", 8, "--max-tokens", 12, "--device", "cpu")
CHILDREN = Path(child.__file__).parent
CHILD_MODULES = ("child.py", "connector.py", "starting.py", "states.py")


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
    reference = json.loads(call("smoke", EAGLE3, *SHORT, "--engine", "reference", "--json").out)
    assert report["engine"]["resolved"]["runner"] == f"{runner} (CPUModelRunner)"
    assert report["engine"]["resolved"]["aux_layers"] == [2, 4, 5]
    assert (report["lossless"], report["drafts"]) == (True, reference["drafts"])
    assert report["per_position"] == reference["per_position"]


def test_load_only_says_what_vllm_takes_from_the_target(runner: str) -> None:
    done = call("smoke", EAGLE3, "--target", TARGET, "--engine", "vllm", "--load-only", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["unfilled"], document["shared"]) == ([], ["model.embed_tokens.weight"])


def test_ready_converts_what_the_runner_reads_otherwise(runner: str, torchspec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("ready", torchspec, *SHORT, "--engine", "vllm", "--no-reuse", "-o", out)
    assert "vLLM 0.32.0" in done.out and out.exists(), done.out + done.err
    assert "could not look" not in done.out.splitlines()[-1], done.out
    assert done.code in (0, 3)  # these few prompts need not tell the two figures apart


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
    config = json.loads((tmp_path / "drafter/config.json").read_text())
    wide = pairs.changed(
        tmp_path / "drafter", tmp_path / "wide", intermediate_size=config["intermediate_size"] * 2
    )
    job = replace(pairs.job_of(tmp_path / "drafter", TARGET), folder=wide)
    with pytest.raises(
        RefusedError, match=r"not run this drafter.*tensor .*mlp\..*_proj.weight, llama_eagle3.py"
    ):
        ask(VLLM, job, "generate", [[5, 6, 7]])


def test_a_setup_that_vllm_refuses_could_not_look(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--engine-arg", "kv_cache_memory_bytes=1000")
    assert done.code == 3, done.err
    assert "memory does not suffice" in done.err, done.err


def test_an_argument_that_vllm_refuses_is_usage(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--engine-arg", "block_size=many")
    assert done.code == 2 and "--engine-arg block_size" in done.err, done.err


def test_a_temperature_that_the_cpu_build_loses_is_not_measured(runner: str) -> None:
    done = call("smoke", EAGLE3, *SHORT, "--engine", "vllm", "--temperature", 0.7, "--no-lossless")
    assert done.code == 3 and "loses the temperature" in done.err, done.err


def test_every_line_of_the_children_has_run(counted: Path) -> None:
    """Last: but for what is for GPUs alone, and for other tests' faults."""
    data = coverage.Coverage(data_file=str(counted / "data"), config_file=str(counted / "coveragerc"))
    data.combine([str(counted)])
    missing = {name: data.analysis2(str(CHILDREN / name))[3] for name in CHILD_MODULES}
    assert missing == {}
