"""calibrate through the real vLLM: states and statistics are those that transformers gives."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.api.upgrade import UpgradeOptions
from eaglectl.conversion.upgrade import Statistics, read_statistics
from eaglectl.progress import Progress
from eaglectl.reference.states import TransformersEngine
from eaglectl.reference.target_model import load_target
from eaglectl.run.installed import start_vllm
from eaglectl.run.job import EngineJob
from tests.engine import pairs
from tests.tiny import TARGET, TINY

SOURCE = str(TINY / "eagle3")
CLOSE = 1e-5  # float32 in both, added up in another order
ENDS = (8, 0, 4)  # the stream before the final norm, the embeddings, one between; not in order


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join((TINY / "calibration.jsonl").read_text().splitlines(keepends=True)[:24]))
    return path


@pytest.fixture(scope="module")
def plain(prompts: Path) -> Statistics:
    options = eaglectl.CalibrateOptions(prompts=prompts, device="cpu")
    return eaglectl.calibrate(SOURCE, str(TARGET), options=options)


def assert_same(found: Statistics, plain: Statistics) -> None:
    assert (found.digests, found.prompts, found.tokens) == (plain.digests, plain.prompts, plain.tokens)
    assert found.matrices is not None and plain.matrices is not None
    for name in ("rms", "spread", "sigma"):
        np.testing.assert_allclose(getattr(found, name), getattr(plain, name), rtol=CLOSE)
    for name in ("gram", "cross"):
        mine, theirs = getattr(found.matrices, name), getattr(plain.matrices, name)
        assert np.linalg.norm(mine - theirs) < CLOSE * np.linalg.norm(theirs)


@pytest.mark.usefixtures("no_process_stays")
def test_the_statistics_are_those_of_transformers_and_an_upgrade_takes_them(
    prompts: Path, plain: Statistics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    progress: list[Progress] = []
    options = eaglectl.CalibrateOptions(prompts=prompts, run_in="vllm", device="cpu", timeout=300)
    eaglectl.calibrate(SOURCE, str(TARGET), tmp_path / "stats", options, on_progress=progress.append)
    found = read_statistics(tmp_path / "stats")
    assert_same(found, plain)
    assert found.engine == {"name": "vllm", "vllm": "0.32.0", "device": "cpu", "dtype": "float32"}
    assert progress[-1] == Progress("calibrating", 72, 72, "prompts")
    assert not list(tmp_path.joinpath("temporary").iterdir())
    asked = UpgradeOptions(statistics=tmp_path / "stats", has_gate=False)
    eaglectl.upgrade(SOURCE, tmp_path / "out", asked, conversion=ConvertOptions(target=str(TARGET)))
    record = json.loads((tmp_path / "out" / "eaglectl.json").read_text())
    assert record["upgrade"]["calibration"]["engine"] == found.engine
    assert record["upgrade"]["fc_norm"] == "refit"


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_a_target_over_two_ranks_gives_the_same(
    prompts: Path, plain: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # one NUMA node has room for both
    run = {"prompts": prompts, "device": "cpu", "timeout": 300}
    options = eaglectl.CalibrateOptions(run_in="vllm", tensor_parallel_size=2, **run)
    found = eaglectl.calibrate(SOURCE, str(TARGET), options=options)
    assert_same(found, plain)
    assert found.engine["tensor_parallel_size"] == "2"


def test_an_mla_target_gives_the_same(tmp_path: Path) -> None:
    target, case = pairs.mla_target(tmp_path / "target"), pairs.case("vllm/mla")
    run = {"prompts": pairs.write_prompts(tmp_path / "prompts.jsonl"), "answers": case.answered()}
    run |= {"answer_tokens": 8, "device": "cpu", "timeout": 300}
    engines = [eaglectl.CalibrateOptions(run_in=engine, **run) for engine in ("vllm", "transformers")]
    assert_same(*(eaglectl.calibrate(str(case.folder), str(target), options=each) for each in engines))


def test_every_boundary_is_vllms_id_up_to_the_last_token_of_the_context(tmp_path: Path) -> None:
    pairs.llama_target(tmp_path / "target")
    source = pairs.case("modelopt/hf").folder
    drafter = eaglectl.inspect(str(source), target=str(tmp_path / "target")).drafter
    drafter = replace(drafter, aux=replace(drafter.aux, boundaries=ENDS))
    job = EngineJob(source, drafter, tmp_path / "target", (), device="cpu", timeout=300)
    context, answer = 512, 8
    texts = [[5, 6, 7], [9] * 70, [ids % 256 for ids in range(context - answer - 1)]]
    mine = TransformersEngine(
        load_target(tmp_path / "target", ENDS, dtype="float32", device="cpu"), "cpu", "float32"
    )
    with start_vllm(job, context - 1) as theirs:
        answers = theirs.answers(texts, answer)
        assert answers == mine.answers(texts, answer)
        whole = [[*text, *more] for text, more in zip(texts, answers, strict=True)]
        found, meant = theirs.states(whole), mine.states(whole)
    assert torch.equal(found.valid, meant.valid)
    close = (found.aux - meant.aux)[meant.valid].norm(dim=-1) / meant.aux[meant.valid].norm(dim=-1)
    assert float(close.max()) < 1e-4
