"""`--speed`: which requests are timed, what repeats come to, and what reports say of it."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from eaglectl.errors import UnreadableError  # noqa: E402
from eaglectl.report.acceptance import smoke_outline  # noqa: E402
from eaglectl.report.markdown import markdown  # noqa: E402
from eaglectl.run import installed  # noqa: E402
from eaglectl.run.job import LogitsCheck  # noqa: E402
from eaglectl.run.measurement import (  # noqa: E402
    REPEATS,
    Batch,
    Place,
    Speed,
    Spread,
    Timing,
    choose_requests,
    compare_timings,
    find_break_even,
    time_repeats,
)
from eaglectl.run.process import InstalledEngine  # noqa: E402
from eaglectl.run.vllm import child  # noqa: E402
from tests import servers  # noqa: E402
from tests.builders import Outcome, call, refusal  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.pages import smoke_report  # noqa: E402
from tests.servers import ANSWER, LLAMA, MODELS, SGLANG  # noqa: E402
from tests.tiny import PROMPTS, TARGET, TINY  # noqa: E402

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/smoke.schema.json").read_text())
)


@pytest.mark.parametrize(
    ("concurrency", "repeat", "prompts", "indices"),
    [(1, 2, 40, [*range(16, 24)]), (4, 0, 10, [*range(10), 0, 1]), (2, 1, 3, [2, 0, 1, 2, 0, 1, 2, 0])],
)
def test_a_repeat_has_prompts_in_turn_three_for_each_at_a_time(
    concurrency: int, repeat: int, prompts: int, indices: list[int]
) -> None:
    assert choose_requests(concurrency, repeat, prompts) == indices


def test_a_slow_engine_has_three_repeats_and_the_first_batch_of_each_concurrency_is_not_counted() -> None:
    runs, now = list[tuple[int, int]](), [0.0]

    def run(concurrency: int, indices: Sequence[int]) -> Batch:
        runs.append((concurrency, len(indices)))
        now[0] += len(indices)
        return Batch(10 * len(indices), len(indices), 4, 2)

    timings = time_repeats(run, (1, 4), 40, lambda: now[0])
    assert runs[:2] == [(1, 1), (4, 4)]
    assert [len(timing.batches) for timing in timings] == [3, 3]


def timing(concurrency: int, *rates: float, drafts: int = 0, accepted: int = 0) -> Timing:
    """Repeats of a second each."""
    return Timing(concurrency, tuple(Batch(int(rate), 1.0, drafts, accepted) for rate in rates))


def test_a_ratio_is_of_repeats_with_the_same_prompts_that_both_runs_had_time_for() -> None:
    # each repeat is twice as fast, however slow its prompts are
    (row,) = compare_timings(3, [timing(1, 200, 20, 100)], [timing(1, 100, 10, 50)])
    assert row.ratio == Spread(2.0, 2.0, 2.0)
    assert (row.drafted, row.plain) == (Spread(100, 20, 200), Spread(50, 10, 100))
    (row,) = compare_timings(3, [timing(1, 20, 20, 20, 90)], [timing(1, 10, 10, 20)])
    assert row.ratio == Spread(2.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("points", "place"),
    [
        ([(1, 2.0), (4, 1.0)], Place(4, "above")),
        ([(1, 0.9), (4, 1.5)], Place(1, "below")),
        ([(1, 1.5), (4, 0.5)], Place(2.0, "at")),
        ([(1, 1.0), (4, 0.5)], Place(1.0, "at")),
        ([(2, 1.5), (8, 0.5), (16, 1.2)], Place(4.0, "at")),
        ([(1, 1.27), (8, 0.96), (40, 0.60)], Place(pytest.approx(6.117, abs=0.001), "at")),
        ([(8, 1.2)], Place(8, "above")),
    ],
)
def test_the_break_even_is_where_the_ratio_first_falls_below_1(
    points: list[tuple[int, float]], place: Place
) -> None:
    assert find_break_even(points) == place


REQUEST = {
    **{"target": "target", "drafter": "drafter", "mode": "generate", "concurrencies": [1, 2], "k": 2},
    **{"prompts": [[5, 6], [8], [9, 9, 9]], "max_tokens": 9, "context": None, "temperature": 0.0, "seed": 0},
    **{"ignore_eos": False, "stop": [3], "device": "auto", "is_mla": False, "is_mla_target": False},
    **{"engine_arguments": {}, "needs_tokenizer": False},
}


class LLM:
    """vLLM's, and its engine: n prompt tokens end after n steps with 9 new tokens and 3 drafts,
    of which 6 tokens are accepted.
    """

    arguments: Mapping[str, Any] = {}

    def __init__(self, **arguments: Any) -> None:
        type(self).arguments = arguments
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.vllm_config = SimpleNamespace(
            device_config=SimpleNamespace(device_type=device),
            model_config=SimpleNamespace(enforce_eager=arguments.get("enforce_eager", False)),
        )
        self.llm_engine, self.running, self.ended = self, dict[str, int](), 0

    def add_request(self, number: str, prompt: dict[str, Any], params: Any) -> None:
        assert params["ignore_eos"] and "stop_token_ids" not in params
        assert prompt["type"] == "token" and number not in self.running
        self.running[number] = len(prompt["prompt_token_ids"])

    def step(self) -> list[object]:
        before = len(self.running)
        self.running = {number: left - 1 for number, left in self.running.items() if left > 1}
        self.ended += before - len(self.running)
        output = SimpleNamespace(token_ids=[0] * 9)
        ends = [place >= len(self.running) for place in range(before)]
        return [SimpleNamespace(finished=is_end, outputs=[output]) for is_end in ends]

    def get_metrics(self) -> list[object]:
        if "speculative_config" not in self.arguments:
            return []
        names, count = ("num_drafts", "num_accepted_tokens_per_pos"), 3 * self.ended
        return [
            SimpleNamespace(name=f"vllm:spec_decode_{name}", value=count, values=[count] * 2)
            for name in names
        ]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, dict
    monkeypatch.setitem(sys.modules, "vllm", module)
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 << 30, 80 << 30))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("mode", "counts"), [("generate", (72, 24, 48)), ("plain", (72, 0, 0))])
def test_on_a_gpu_vllm_starts_as_vllm_serve_starts_it_and_each_repeat_counts_its_own(
    mode: str, counts: tuple[int, ...]
) -> None:
    measured = child.measure(REQUEST | {"mode": mode})
    assert {*child.SHORT_RUN} & {*LLM.arguments} == {"gpu_memory_utilization"}
    assert LLM.arguments["gpu_memory_utilization"] == 0.7875  # 0.9 of what is free
    assert LLM.arguments["max_num_seqs"] == 256 and LLM.arguments["enable_prefix_caching"] is False
    drafts = {"num_speculative_tokens": 2} if mode == "generate" else {}
    assert drafts.items() <= LLM.arguments.get("speculative_config", {}).items()
    assert ("speculative_config" in LLM.arguments) == bool(drafts)
    assert (measured["device"], measured["card"], measured["is_eager"]) == ("cuda", "NVIDIA H200", False)
    assert [found["concurrency"] for found in measured["timings"]] == [1, 2]
    batches = [one for found in measured["timings"] for one in found["batches"]]
    assert {(one["tokens"], one["drafts"], one["accepted"]) for one in batches} == {counts}


@pytest.mark.usefixtures("gpu")
def test_an_argument_of_the_users_goes_last() -> None:
    given = {"enforce_eager": True, "max_num_seqs": 8, "gpu_memory_utilization": 0.4}
    assert child.measure(REQUEST | {"engine_arguments": given})["is_eager"] is True
    assert {name: LLM.arguments[name] for name in given} == given


GPU = {"version": "0.32.0", "device": "cuda", "card": "NVIDIA H200", "is_eager": False}


def timed_answer(mode: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Three repeats; at more than one request at a time the drafter costs time."""
    timings = []
    for number in request["concurrencies"]:
        taken = 2.0 / number if mode == "plain" else 1.0 if number == 1 else 4.0 / number
        batch = {"tokens": 100, "drafts": 40 if mode == "generate" else 0, "accepted": 50}
        batches = [{**batch, "seconds": taken * part} for part in (0.9, 1.0, 1.1)]
        timings.append({"concurrency": number, "batches": batches})
    return {**GPU, "timings": timings}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The mode and k of each start."""
    starts: list[tuple[str, int]] = []

    def ask(engine: Any, job: Any, mode: str, texts: Any, more: Mapping[str, Any] | None = None) -> Any:
        starts.append((mode, job.k))
        if more:
            return timed_answer(mode, more)
        result = {"tokens": list(range(30)), "drafts": 10, "accepted": [9] * job.k}
        resolved = {"class": "Eagle3LlamaForCausalLM", "aux_layers": [2, 4, 5]} if mode == "generate" else {}
        common = {"version": "0.32.0", "device": "cuda", "dtype": "bfloat16", "seconds": 1.0}
        return {**common, "results": [result] * len(texts), "resolved": resolved}

    monkeypatch.setattr(InstalledEngine, "require", lambda engine, alternative: None)

    def answers(engine: Any, job: Any, texts: Any) -> tuple[Any, Any, LogitsCheck]:
        plain = ask(engine, job, "plain", texts) if job.compares_plain else None
        return plain, ask(engine, job, "generate", texts), LogitsCheck(gap="the engine is a stand-in")

    monkeypatch.setattr(installed, "_answers", answers)
    monkeypatch.setattr(installed, "ask", ask)
    return starts


def smoke(*more: str, before: Sequence[str] = ()) -> Outcome:
    run = ("--target", TARGET, "--prompts", PROMPTS, "--sample", "8", "--max-tokens", "16")
    return call(*before, "smoke", TINY / "eagle3", *run, "--engine", "vllm", *more)


def test_the_terminal_shows_the_ratio_at_each_concurrency(engine: list[tuple[str, int]]) -> None:
    done = smoke("--speed", "4,1")
    assert done.code == 0, done
    assert "2.00x at 1, 0.50x at 4" in done.out
    assert "break-even: about 2.52 requests at a time" in done.out
    assert "NVIDIA H200: vLLM 0.32.0 with CUDA graphs as `vllm serve` has them" in " ".join(done.out.split())
    assert engine == [("plain", 3), ("generate", 3), ("plain", 3), ("generate", 3)]


@pytest.mark.usefixtures("engine")
def test_the_time_of_the_run_is_not_called_speed() -> None:
    whole = smoke(before=["-v"]).out
    assert "tokens/s" not in whole and "no measure of serving" in " ".join(whole.split())


@pytest.mark.usefixtures("engine")
def test_the_document_has_every_figure_and_keeps_its_schema() -> None:
    document = smoke("--speed", "1,4", "--json").document
    SCHEMA.validate(document)
    timed = document["speed"]
    assert (timed["text"], timed["repeats"], timed["card"]) == ("2.00x at 1, 0.50x at 4", 3, "NVIDIA H200")
    first, second = timed["rows"]
    assert first["drafted"]["total"] == pytest.approx({"median": 100, "least": 90.9, "most": 111.1}, abs=0.1)
    assert second["plain"]["total"]["median"] == 200.0 and second["plain"]["per_user"]["median"] == 50.0
    assert (first["acceptance_length"], first["k"]) == (2.25, 3)
    (even,) = timed["break_even"]
    assert (even["side"], round(even["concurrency"], 2)) == ("at", 2.52)


def test_an_engine_that_cannot_be_timed_leaves_the_acceptance_and_is_no_pass(
    engine: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise UnreadableError("vLLM did not finish within --timeout 600 s and was stopped")

    monkeypatch.setattr(installed, "ask", fail)
    done = smoke("--speed", "1", "--json")
    SCHEMA.validate(done.document)
    assert (done.code, done.document["verdict"]) == (3, "could-not-look")
    assert done.document["acceptance_length"] > 1 and "speed" not in done.document
    assert done.document["speed_gap"].startswith("vLLM did not finish")
    assert done.document["gaps"] == [f"speed was not measured: {done.document['speed_gap']}"]


def test_markdown_has_the_table() -> None:
    drafted = [timing(1, 200, 190, 210), timing(8, 50, 60, 55)]
    rows = compare_timings(3, drafted, [timing(1, 100, 100, 100), timing(8, 90, 90, 90)])
    speed = Speed(rows, "cuda", "NVIDIA H200", 64, 3, "vLLM | <b>")
    text = markdown(smoke_outline(replace(smoke_report("x", "pass"), speed=speed)))
    assert "**2.00x at 1, 0.61x at 8**" in text
    assert "| 8 | 6.9 | 55.0 \\[50.0, 60.0\\] | 11.2 | 90.0 \\[90.0, 90.0\\] |" in text
    assert "<b>" not in text


NUMBERS = "different whole numbers from 1 to 1024 in rising order, like 1,4,16, was expected"
BAD = {
    **{("--speed", numbers): NUMBERS for numbers in ("0", "a", "1,1", "1,", "-1", "1.5", "1025")},
    ("--speed", "1", "-k", "0"): "at least 1",
    ("-k", "1,3"): "a whole number was expected",
    ("-k", "three"): "a whole number was expected",
    ("--speed", "1", "--run-in", "sglang"): "--speed needs vLLM or a running server, and not --run-in sglang",
    (
        "--speed",
        "1",
        "--run-in",
        "reference",
    ): "--speed needs vLLM or a running server, and not --run-in reference",
    ("--speed", "1", "--load-only"): "nothing to time",
}


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_what_cannot_be_timed_is_usage(words: tuple[str, ...]) -> None:
    engine = () if "--run-in" in words else ("--run-in", "vllm")
    assert BAD[words] in refusal(2, "smoke", TINY / "eagle3", "--target", TARGET, *engine, *words)


SIX = "".join(f"prompt {number}\n" for number in range(6))


def vllm_metrics(requests: int) -> str:
    """The page after so many requests of 20 tokens: 10 rounds, in which 6 and 3 drafts were accepted."""
    counts = {"tokens": 20, "drafts": 10, "first": 6, "second": 3}
    return servers.METRICS.format(**{name: count * requests for name, count in counts.items()})


VLLM_PAGES = {"/v1/models": MODELS, "/metrics": vllm_metrics, "/v1/completions": ANSWER}


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("pages", "k", "length"),
    [(SGLANG, 3, 2.0), (LLAMA, 3, 1.9), (VLLM_PAGES, 2, 1.9)],
    ids=["SGLang", "llama.cpp", "vLLM"],
)
def test_a_server_is_timed_with_what_it_serves(
    pages: Mapping[str, Any], k: int, length: float, tmp_path: Path
) -> None:
    seen: list[Any] = []
    found = servers.smoke(tmp_path, pages, seen, SIX, speed=(1, 3)).speed
    assert found is not None
    rows = [(line.k, line.concurrency, line.plain, line.ratio) for line in found.rows]
    assert rows == [(k, 1, None, None), (k, 3, None, None)]
    assert [line.length for line in found.rows] == [pytest.approx(length)] * 2
    assert all(line.drafted.median > 0 for line in found.rows)
    assert (found.text, found.break_even, found.repeats) == ("", (), REPEATS)
    assert "there is no ratio: pass --baseline-url" in found.how
    # acceptance, as many as are in flight to warm up, and repeats of eight and of nine requests
    assert len(seen) == 6 + 4 + REPEATS * (8 + 9)
    assert [request["ignore_eos"] for request in seen] == [False] * 6 + [True] * (len(seen) - 6)


def test_other_traffic_while_a_server_is_timed_is_no_measurement(tmp_path: Path) -> None:
    def metrics(requests: int) -> str:
        page = vllm_metrics(requests)
        return page if requests <= 6 else page.replace('running{engine="0"} 0', 'running{engine="0"} 1')

    report = servers.smoke(tmp_path, {**VLLM_PAGES, "/metrics": metrics}, [], SIX, speed=(1, 3))
    assert report.speed is None
    assert "is serving other requests" in report.speed_gap
    assert report.gaps[-1] == f"speed was not measured: {report.speed_gap}"
