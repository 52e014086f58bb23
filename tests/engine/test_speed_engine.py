"""`smoke --speed` in the real vLLM on a CPU: its engine in a process of its own, at two concurrencies."""

import json
from pathlib import Path

import jsonschema
import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.run.installed import measure_speed
from eaglectl.run.job import EngineJob
from eaglectl.run.prompts import read_prompts
from tests.builders import call
from tests.conftest import FIXTURES
from tests.tiny import PROMPTS, TARGET, TINY, in_vllms_layout

SCHEMA = json.loads((FIXTURES.parent / "schemas/smoke.schema.json").read_text())
RUN = ("--prompts", PROMPTS, "--sample", "6", "--max-tokens", "16", "--device", "cpu", "--engine", "vllm")


@pytest.mark.usefixtures("no_process_stays")
def test_vllm_is_timed_with_and_without_the_drafter_and_no_process_stays() -> None:
    done = call("smoke", TINY / "eagle3", "--target", TARGET, *RUN, "--speed", "2,1", "--json")
    document = done.document
    jsonschema.validate(document, SCHEMA)
    speed = document["speed"]
    found = (speed["device"], speed["card"], speed["how"])
    assert found == ("cpu", "", "measured on a CPU: no measure of serving")
    assert [(row["k"], row["concurrency"]) for row in speed["rows"]] == [(3, 1), (3, 2)]
    assert all(row["ratio"]["least"] > 0 and row["plain"]["total"]["median"] > 0 for row in speed["rows"])
    # greedy answers of the same prompts, one by one or in pairs
    assert len({row["acceptance_length"] for row in speed["rows"]}) == 1
    assert speed["rows"][0]["acceptance_length"] > 1.5
    assert speed["repeats"] >= 3


def test_an_engine_without_memory_says_so_through_its_process(tmp_path: Path) -> None:
    folder = in_vllms_layout(tmp_path)["eagle3"]
    given = {"kv_cache_memory_bytes": 1000}
    drafter = eaglectl.inspect(str(folder), target=str(TARGET)).drafter
    job = EngineJob(folder, drafter, TARGET, read_prompts(PROMPTS)[:4], max_tokens=8, engine_arguments=given)
    with pytest.raises(UnreadableError, match=r"for lack of memory: .*No available memory"):
        measure_speed(job, [1])
