"""A start that `convert --to 3.1` writes, in the trainers' own code, and the result back."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

import eaglectl  # noqa: E402
from tests.builders import call  # noqa: E402
from tests.tiny import PROMPTS, TARGET, TINY  # noqa: E402
from tests.trainers import pair  # noqa: E402
from tests.trainers.conftest import interpreter  # noqa: E402

pytestmark = pytest.mark.slow
EAGLE3 = str(TINY / "eagle3")
NAME = "example/tiny-target"
TIMEOUT = 1500
# logits are up to 30: float32 of other operations in another order
CLOSE = 1e-4


@dataclass(frozen=True)
class Trained:
    """The folder that a trainer's child worked in: start/, logits.safetensors, facts.json, trained/."""

    folder: Path

    @property
    def facts(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return value

    def differences(self, **norms: bool) -> list[float]:
        """By draft step: the largest difference of the trainer's logits from eaglectl's reference."""
        found = load_file(self.folder / "logits.safetensors")["logits"]
        reference = pair.reference_logits(self.folder / "start", self.folder / json.dumps(norms), **norms)
        return [
            float((one[:, : other.shape[1]] - other).abs().max())
            for one, other in zip(found, reference, strict=True)
        ]

    def moved(self) -> set[str]:
        """Names of the float tensors that training changed, of those that start and result share."""
        before = load_file(self.folder / "start/model.safetensors")
        after = load_file(self.folder / "trained/model.safetensors")
        return {
            name
            for name, weight in before.items()
            if name in after and not torch.equal(weight.float(), after[name].float().to(weight.dtype).float())
        }


Train = Callable[[str], Trained]


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("statistics") / "stats"
    lines = (TINY / "calibration.jsonl").read_text().splitlines(keepends=True)
    prompts = folder.with_name("prompts.jsonl")
    prompts.write_text("".join(lines[:24]))
    eaglectl.calibrate(EAGLE3, str(TARGET), folder, eaglectl.CalibrateOptions(prompts=prompts, device="cpu"))
    return folder


@pytest.fixture(scope="module")
def train(statistics: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """A start in a trainer's layout, given to its child process; each trainer runs once."""
    done: dict[str, Trained] = {}

    def run(trainer: str) -> Trained:
        if trainer not in done:
            python, folder = interpreter(trainer), tmp_path_factory.mktemp(trainer)
            upgrade = ("--to", "3.1", "--calibration", statistics, "--no-gate", "--target-name", NAME)
            made = call(
                "convert", EAGLE3, "--target", TARGET, *upgrade, "--for", trainer, "-o", folder / "start"
            )
            assert made.code == 0, made.err
            pair.write_pair(folder)
            if trainer == "speculators":
                assert "wants embed_tokens in the file" in " ".join(made.out.split())
                pair.add_embedding(folder / "start")
            child = Path(__file__).with_name(f"{trainer}_child.py")
            with (folder / "output.txt").open("wb") as output:
                ended = subprocess.run(
                    [python, child, folder], stdout=output, stderr=output, timeout=TIMEOUT, check=False
                )
            assert ended.returncode == 0, (folder / "output.txt").read_text(errors="replace")[-4000:]
            done[trainer] = Trained(folder)
        return done[trainer]

    return run


def assert_trained_as_long(trained: Trained, folder: Path, *answers: str) -> None:
    """Check that what was trained, converted with these answers, accepts nearly as much as the start."""
    prompts = folder / "few.jsonl"
    prompts.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[:6]))
    run = ("--run-in", "reference", "--device", "cpu", "--max-tokens", "32", "--prompts", prompts)
    lengths = {}
    for name, more in (("start", ()), ("trained", answers)):
        made = call("convert", trained.folder / name, "--target", TARGET, *more, "-o", folder / name)
        assert made.code == 0, made.err
        smoked = call("smoke", folder / name, "--target", TARGET, *run, "--json")
        assert smoked.code in (0, 1), smoked.err
        lengths[name] = smoked.document["acceptance_length"]
    assert lengths["trained"] > 0.9 * lengths["start"]


def test_speculators_reads_the_start_as_meant_and_computes_the_same(train: Train) -> None:
    trained = train("speculators")
    facts = trained.facts
    assert (facts["fc_norm"], facts["norm_output"], facts["norm_before_fc"]) == (True, True, False)
    assert (facts["norm_before_residual"], facts["ids"]) == (False, [2, 4, 5])
    assert max(trained.differences()) < CLOSE
    # the comparison would see another reading
    assert trained.differences(norm_output=False)[1] > 1
    assert trained.differences(fc_norm=False)[0] > 1


def test_speculators_trains_the_start_and_the_result_comes_back(train: Train, tmp_path: Path) -> None:
    trained = train("speculators")
    assert {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= trained.moved()
    assert "lm_head.weight" not in trained.moved()
    seen = call("inspect", trained.folder / "trained", "--json").document["drafter"]
    assert (seen["eagle"], seen["norms"]["norm_output"]) == ("3.1", True)
    assert_trained_as_long(trained, tmp_path)


def test_specforge_020_reads_norm_output_as_the_warning_says(train: Train) -> None:
    trained = train("specforge")
    facts = trained.facts
    assert (facts["fc_norm"], facts["norm_output"], facts["ids"]) == (True, True, [1, 3, 4])
    assert facts["missing"] == ["embed_tokens.weight"]
    # it feeds the state before the norm back: fc_norm and EAGLE-3's feedback
    assert max(trained.differences(norm_output=False)) < CLOSE
    as_written = trained.differences()
    assert as_written[0] < CLOSE and as_written[1] > 1


def test_the_start_for_specforge_is_written_with_that_warning(tmp_path: Path) -> None:
    arguments = ("--to", "3.1", "--init-only", "--for", "specforge", "-o", tmp_path / "out")
    made = call("convert", EAGLE3, "--target", TARGET, *arguments)
    assert made.code == 0 and "before pull request 879" in made.out


def test_specforge_trains_the_start_and_the_result_comes_back(train: Train, tmp_path: Path) -> None:
    trained = train("specforge")
    assert {"fc.weight", "midlayer.self_attn.q_proj.weight", "lm_head.weight"} <= trained.moved()
    stored = [load_file(trained.folder / name / "model.safetensors") for name in ("start", "trained")]
    assert all(torch.equal(stored[0][name], stored[1][name]) for name in ("d2t", "t2d"))
    asked = call("convert", trained.folder / "trained", "--target", TARGET, "-o", tmp_path / "asked")
    assert asked.code == 2 and "specforge=pre-879" in asked.err
    assert_trained_as_long(trained, tmp_path, "--source-semantics", "specforge=pre-879")


def test_modelopt_0470_trains_no_eagle_31_and_the_conversion_says_so(tmp_path: Path) -> None:
    look = (
        "import importlib.metadata as m, pathlib, modelopt.torch.speculative as s;"
        "root = pathlib.Path(s.__file__).parent;"
        "import re; keys = re.compile(r'(?<![a-z_])(fc_norm|norm_output)');"
        "found = [p.name for p in root.rglob('*.py') if keys.search(p.read_text())];"
        "print(m.version('nvidia-modelopt'), found)"
    )
    ended = subprocess.run(
        [interpreter("modelopt"), "-c", look], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    assert ended.stdout.splitlines()[-1] == "0.47.0 []"
    arguments = ("--to", "3.1", "--init-only", "--for", "modelopt", "-o", tmp_path / "out")
    made = call("convert", EAGLE3, "--target", TARGET, *arguments)
    assert made.code == 1 and "ModelOpt 0.47.0 trains no EAGLE-3.1" in made.err
