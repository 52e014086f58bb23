"""Runs the drafters of flips in releases of vLLM, one release after another; `make test-releases`.

`python -m tests.engine.releases.run WHEELS NEWER OLDER RELEASE...`: the folder of unpacked wheels, and the
Pythons of the environments with torch 2.13 and torch 2.11. A result that is recorded of the same files is not
run again. RUNNERS="V1 V2" takes the V2 runner too, by Triton's interpreter, which is slow.
`python -m tests.engine.releases.run needs FOLDER` prints what the wheel in FOLDER needs, without torch.
"""

import os
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

from eaglectl.engines.behaviour import is_since
from tests.conftest import FIXTURES
from tests.engine.agreement import records

ROOT = FIXTURES.parent
RECORDS = Path(__file__).with_name("records")
# linked with CUDA, and not used by EAGLE-3
OTHERS = ("torch", "torchvision", "torchaudio", "torchcodec", "setuptools")
SETTINGS = {
    "V1": {},
    "V2": {"ENGINE_RUNNER": "V2", "ENGINE_NEW_TOKENS": "6", "AGREEMENT_PATIENCE": "400"},
}


def needs(wheel: Distribution) -> list[str]:
    """The requirements of an unpacked wheel here, without torch and what comes with it."""
    every = map(Requirement, wheel.requires or ())
    return [
        str(need).partition(";")[0].strip()
        for need in every
        if need.name not in OTHERS and (need.marker is None or need.marker.evaluate({"extra": ""}))
    ]


def path_of(release: str, runner: str) -> Path:
    """The file with what a runner of a release did."""
    if f"vllm=={release}" == records.VLLM:
        return records.RECORDS if runner == "V1" else records.RECORDS_V2
    return RECORDS / f"vllm-{release}-{runner}.json"


def run(release: str, runner: str, python: str, wheels: Path) -> None:
    """Run all cases of a release that are not recorded yet."""
    print(f"vLLM {release}, {runner}", flush=True)
    environment = {
        **os.environ,
        **SETTINGS[runner],
        "OMP_NUM_THREADS": "1",
        "MALLOC_PERTURB_": "189",  # memory that the engine never writes does not hold 0
        "VLLM_CACHE_ROOT": str(wheels / f"cache-{release}"),
        "PYTHONPATH": f"{wheels / release}:{ROOT}",
    }
    module = "tests.engine.agreement.runner"
    command = [python, "-W", "ignore", "-m", module, str(path_of(release, runner))]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main(wheels: str, newer: str, older: str, *releases: str) -> None:
    """Run the releases in their order."""
    for release in releases:
        python = newer if is_since("0.27.0", release) else older
        for runner in os.environ.get("RUNNERS", "V1").split():
            run(release, runner, python, Path(wheels).absolute())


if __name__ == "__main__":
    if sys.argv[1] == "needs":
        print(*(need for wheel in distributions(path=sys.argv[2:]) for need in needs(wheel)), sep="\n")
    else:
        main(*sys.argv[1:])
