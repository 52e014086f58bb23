"""The commands that run a model, with --device of the GPU."""

import json
from pathlib import Path

import pytest

from tests.builders import call
from tests.gpu.conftest import restated
from tests.tiny import PROMPTS, TARGET, TINY

EAGLE3 = TINY / "eagle3"
RUN = ("--target", TARGET, "--prompts", PROMPTS, "--sample", "16")


def test_calibrate_gives_the_cpus_statistics(device: str, tmp_path: Path) -> None:
    values = {}
    for name in (device, "cpu"):
        out = tmp_path / f"on-{name}"
        run = (*RUN, "--answer-tokens", "16", "--device", name, "-o", out, "--force")
        done = call("calibrate", EAGLE3, *run)
        assert done.code == 0, done.err
        values[name] = json.loads((out / "statistics.json").read_bytes())
    assert values[device]["engine"]["device"] == device
    assert values[device]["rms"] == pytest.approx(values["cpu"]["rms"], rel=0.02)
    assert values[device]["sigma"] == pytest.approx(values["cpu"]["sigma"], rel=0.05)


def test_smoke_with_the_probe_passes_a_good_drafter(device: str) -> None:
    done = call("smoke", EAGLE3, *RUN, "--run-in", "reference", "--probe", "sensitivity", "--device", device)
    assert done.code == 0, done.err or done.out


def test_a_wrong_switch_is_seen_by_the_probe(device: str, tmp_path: Path) -> None:
    out = restated(tmp_path / "wrong", norm_output=True)
    done = call("smoke", out, *RUN, "--run-in", "reference", "--probe", "sensitivity", "--device", device)
    assert done.code == 1 and "norm_output" in done.out


def test_the_gate_measures_an_upgrade(device: str, tmp_path: Path) -> None:
    run = (*RUN, "--to", "3.1", "--device", device, "-o", tmp_path / "out")
    done = call("convert", EAGLE3, *run)
    assert done.code in (0, 1, 3), done.err  # these few prompts may not tell
    assert "Gate  acceptance length on " in done.out
    assert (tmp_path / "out").exists() == (done.code == 0)


def test_ready_measures_and_prints_the_command(device: str, tmp_path: Path) -> None:
    run = (*RUN, "--max-tokens", "16", "--device", device, "-o", tmp_path / "out")
    done = call("ready", EAGLE3, *run)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].startswith("pass: ready: ")
