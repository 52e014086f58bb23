"""`--speed`: which requests are timed, what repeats come to, and what reports say of it."""

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.commands.ready.report import readiness_outline  # noqa: E402
from eaglectl.errors import UnreadableError, UsageError  # noqa: E402
from eaglectl.report.acceptance import smoke_outline  # noqa: E402
from eaglectl.report.markdown import markdown  # noqa: E402
from eaglectl.run import installed, speed  # noqa: E402
from eaglectl.run.process import VLLM, InstalledEngine  # noqa: E402
from eaglectl.run.report import SmokeReport  # noqa: E402
from eaglectl.run.speed import (  # noqa: E402
    BreakEven,
    FastestK,
    Place,
    Speed,
    SpeedRow,
    Spread,
    choose_k,
    compare_timings,
    find_break_even,
)
from eaglectl.run.timing import (  # noqa: E402
    BUDGET,
    REPEATS,
    Batch,
    Timing,
    choose_requests,
    time_repeats,
)
from eaglectl.run.vllm import child  # noqa: E402
from tests.builders import Outcome, call, drafter_folder, refusal  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.pages import smoke_report  # noqa: E402
from tests.servers import ANSWER, LLAMA, MODELS, SGLANG, server  # noqa: E402
from tests.tiny import PROMPTS, TARGET, TINY  # noqa: E402

SCHEMAS = {
    name: jsonschema.Draft202012Validator(
        json.loads((FIXTURES.parent / f"schemas/{name}.schema.json").read_text())
    )
    for name in ("smoke", "ready")
}


@pytest.mark.parametrize(
    ("concurrency", "repeat", "prompts", "indices"),
    [
        (1, 0, 40, [0, 1, 2, 3, 4, 5, 6, 7]),
        (1, 2, 40, [16, 17, 18, 19, 20, 21, 22, 23]),
        (3, 0, 40, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (4, 0, 10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]),
        (2, 1, 3, [2, 0, 1, 2, 0, 1, 2, 0]),
    ],
)
def test_a_repeat_has_prompts_in_turn_three_for_each_at_a_time(
    concurrency: int, repeat: int, prompts: int, indices: list[int]
) -> None:
    assert choose_requests(concurrency, repeat, prompts) == indices


class Engine:
    """Takes a second for each request, by a clock of its own."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self.now, self.runs = seconds, 0.0, list[tuple[int, int]]()

    def run(self, concurrency: int, indices: Sequence[int]) -> Batch:
        self.runs.append((concurrency, len(indices)))
        self.now += self.seconds * len(indices)
        return Batch(10 * len(indices), self.seconds * len(indices), 4, 2)

    def clock(self) -> float:
        return self.now


def test_the_first_batch_of_each_concurrency_is_not_counted() -> None:
    engine = Engine(0.01)
    timings = time_repeats(engine.run, (1, 4), 40, engine.clock)
    assert engine.runs[:2] == [(1, 1), (4, 4)]
    assert [len(timing.batches) for timing in timings] == [REPEATS, REPEATS]


def test_concurrencies_take_turns() -> None:
    engine = Engine(0.01)
    time_repeats(engine.run, (1, 4), 40, engine.clock)
    assert engine.runs[2:6] == [(1, 8), (4, 12), (1, 8), (4, 12)]


@pytest.mark.parametrize(
    ("seconds", "repeats"), [(1.0, 5), (BUDGET / 8 / 4, 4), (BUDGET / 8 / 3.5, 3), (1000.0, 3)]
)
def test_time_ends_repeats_beyond_the_least(seconds: float, repeats: int) -> None:
    engine = Engine(seconds)
    (timing,) = time_repeats(engine.run, (1,), 40, engine.clock)
    assert len(timing.batches) == repeats


def timing(concurrency: int, *rates: float, drafts: int = 0, accepted: int = 0) -> Timing:
    """Repeats of a second each."""
    return Timing(concurrency, tuple(Batch(int(rate), 1.0, drafts, accepted) for rate in rates))


def test_the_length_is_that_of_the_timed_repeats() -> None:
    assert timing(1, 10, 20, drafts=8, accepted=6).length == 1.75


def test_what_was_not_counted_has_no_length() -> None:
    assert timing(1, 10, 20).length is None


def test_a_spread_is_the_median_the_least_and_the_most() -> None:
    assert Spread.of([3.0, 1.0, 8.0, 2.0]) == Spread(2.5, 1.0, 8.0)


def test_a_ratio_is_of_repeats_with_the_same_prompts() -> None:
    # each repeat is twice as fast, however slow its prompts are
    (row,) = compare_timings(3, [timing(1, 200, 20, 100)], [timing(1, 100, 10, 50)])
    assert row.ratio == Spread(2.0, 2.0, 2.0)
    assert (row.drafted, row.plain) == (Spread(100, 20, 200), Spread(50, 10, 100))


def test_a_repeat_that_only_one_run_had_time_for_has_no_ratio() -> None:
    (row,) = compare_timings(3, [timing(1, 20, 20, 20, 90)], [timing(1, 10, 10, 20)])
    assert row.ratio == Spread(2.0, 1.0, 2.0)


def test_a_server_has_no_ratio() -> None:
    (row,) = compare_timings(3, [timing(4, 20, 30, 40)], None)
    assert (row.plain, row.ratio) == (None, None)


@pytest.mark.parametrize(
    ("points", "place"),
    [
        ([(1, 2.0), (4, 1.5)], Place(4, "above")),
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


RATIOS = st.floats(0.1, 10)
POINTS = st.dictionaries(st.integers(1, 1024), RATIOS, min_size=1, max_size=6).map(
    lambda found: sorted(found.items())
)


@given(POINTS)
def test_the_break_even_lies_between_the_last_gain_and_the_first_loss(
    points: list[tuple[int, float]],
) -> None:
    place = find_break_even(points)
    gains = list(itertools.takewhile(lambda point: point[1] >= 1, points))
    match place.side:
        case "below":
            assert not gains and place.concurrency == points[0][0]
        case "above":
            assert gains == points and place.concurrency == points[-1][0]
        case "at":
            loss = points[len(gains)][0]
            assert gains[-1][0] <= place.concurrency <= loss * (1 + 1e-12)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=9), st.floats(1, 1e6))
def test_a_drafter_that_is_as_much_faster_in_each_repeat_has_that_ratio(
    seconds: list[float], factor: float
) -> None:
    slow = Timing(1, tuple(Batch(100, second) for second in seconds))
    fast = Timing(1, tuple(Batch(100, second / factor) for second in seconds))
    (row,) = compare_timings(3, [fast], [slow])
    assert row.ratio is not None
    assert row.ratio.low == pytest.approx(factor) and row.ratio.high == pytest.approx(factor)


def row(k: int, concurrency: int, rates: tuple[float, float, float], ratio: float | None = 1.0) -> SpeedRow:
    ratios = None if ratio is None else Spread(ratio, ratio, ratio)
    return SpeedRow(k, concurrency, Spread(*rates), None, ratios, 2.0)


@pytest.mark.parametrize(
    ("rows", "choice"),
    [
        ([row(1, 4, (10, 9, 11), 1.1), row(3, 4, (20, 19, 21), 2.0)], FastestK(4, 3, (), True)),
        ([row(1, 4, (10, 9, 19), 1.1), row(3, 4, (20, 19, 21), 2.0)], FastestK(4, 3, (1,), True)),
        ([row(1, 4, (10, 9, 11), 0.9), row(3, 4, (8, 7, 8), 0.8)], FastestK(4, 1, (), False)),
        ([row(1, 4, (10, 9, 11), None), row(3, 4, (8, 7, 8), None)], FastestK(4, 1, (), None)),
    ],
)
def test_the_fastest_k_is_the_one_of_the_best_median(rows: list[SpeedRow], choice: FastestK) -> None:
    assert choose_k(rows) == choice


def test_words_of_the_fastest_k() -> None:
    choices = FastestK(1, 3, (), True), FastestK(4, 3, (1, 5), True), FastestK(16, 1, (3,), False)
    assert [choice.text for choice in choices] == [
        "k=3 at 1",
        "k=3 at 4 (k=1, 5 within its spread)",
        "no drafter at 16",
    ]


@pytest.mark.parametrize(
    ("even", "words"),
    [
        (BreakEven(3, Place(16, "above"), Place(16, "above"), Place(16, "above")), "above 16"),
        (
            BreakEven(3, Place(7.321, "at"), Place(1, "below"), Place(9.8, "at")),
            "about 7.32 (below 1 to about 9.8 by the repeats)",
        ),
    ],
)
def test_words_of_the_break_even(even: BreakEven, words: str) -> None:
    assert even.text == words


# the child, on a GPU that is stood in for

REQUEST = {
    "target": "target",
    "drafter": "drafter",
    "mode": "generate",
    "prompts": [[5, 6], [8], [9, 9, 9]],
    "concurrencies": [1, 2],
    "k": 2,
    "max_tokens": 9,
    "context": None,
    "temperature": 0.0,
    "seed": 0,
    "ignore_eos": False,
    "stop": [3],
    "device": "auto",
    "is_mla": False,
    "is_mla_target": False,
    "engine_arguments": {},
    "needs_tokenizer": False,
}


class VllmEngine:
    """vLLM's: a request of n prompt tokens ends after n steps, with 9 new tokens."""

    def __init__(self, config: object) -> None:
        self.vllm_config = config
        self.running, self.ended, self.sizes = dict[str, int](), 0, list[int]()

    def add_request(self, number: str, prompt: dict[str, Any], params: Any) -> None:
        assert params["ignore_eos"] and "stop_token_ids" not in params
        assert prompt["type"] == "token" and number not in self.running
        self.running[number] = len(prompt["prompt_token_ids"])

    def step(self) -> list[object]:
        self.sizes.append(len(self.running))
        self.running = {number: left - 1 for number, left in self.running.items()}
        ending = [number for number, left in self.running.items() if not left]
        for number in ending:
            del self.running[number]
        self.ended += len(ending)
        states = [True] * len(ending) + [False] * len(self.running)
        return [
            SimpleNamespace(finished=state, outputs=[SimpleNamespace(token_ids=[0] * 9)]) for state in states
        ]


class LLM:
    """vLLM's: each request makes 3 drafts, of which 6 tokens are accepted."""

    arguments: Mapping[str, Any] = {}

    def __init__(self, **arguments: Any) -> None:
        type(self).arguments = arguments
        self.is_drafting = "speculative_config" in arguments
        config = SimpleNamespace(
            device_config=SimpleNamespace(device_type="cuda" if torch.cuda.is_available() else "cpu"),
            model_config=SimpleNamespace(enforce_eager=arguments.get("enforce_eager", False)),
        )
        self.llm_engine = VllmEngine(config)

    def get_metrics(self) -> list[object]:
        counts = {"drafts": 3, "accepted_tokens_per_pos": 3} if self.is_drafting else {}
        return [
            SimpleNamespace(
                name=f"vllm:spec_decode_num_{name}",
                value=count * self.llm_engine.ended,
                values=[count * self.llm_engine.ended] * 2,
            )
            for name, count in counts.items()
        ]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, dict
    monkeypatch.setitem(sys.modules, "vllm", module)
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: not torch.cuda.is_available())
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


@pytest.fixture
def gpu(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 << 30, 80 << 30))


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_vllm_starts_as_vllm_serve_starts_it() -> None:
    answer = child.measure(REQUEST)
    assert {*child.SHORT_RUN} & {*LLM.arguments} == {"gpu_memory_utilization"}
    assert LLM.arguments["gpu_memory_utilization"] == 0.7875  # 0.9 of what is free
    assert LLM.arguments["max_num_seqs"] == 256 and LLM.arguments["enable_prefix_caching"] is False
    assert LLM.arguments["speculative_config"]["num_speculative_tokens"] == 2
    assert (answer["device"], answer["card"], answer["is_eager"]) == ("cuda", "NVIDIA H200", False)


@pytest.mark.usefixtures("gpu")
def test_more_requests_than_vllm_serve_has_room_for_get_room() -> None:
    assert child.serving_arguments(REQUEST | {"concurrencies": [1, 300]}, 64)["max_num_seqs"] == 300


@pytest.mark.usefixtures("gpu")
def test_an_argument_of_the_users_goes_last() -> None:
    given = {"enforce_eager": True, "max_num_seqs": 8, "gpu_memory_utilization": 0.4}
    arguments = child.serving_arguments(REQUEST | {"engine_arguments": given}, 64)
    assert {name: arguments[name] for name in given} == given
    assert child.measure(REQUEST | {"engine_arguments": given})["is_eager"] is True


@pytest.mark.usefixtures("vllm")
def test_on_a_cpu_all_drafts_of_all_requests_fit_a_step() -> None:
    arguments = child.serving_arguments(REQUEST | {"concurrencies": [1, 300], "device": "cpu"}, 64)
    assert (arguments["max_num_seqs"], arguments["max_num_batched_tokens"]) == (300, 900)
    assert arguments["enforce_eager"] is True


PARAMS = {"ignore_eos": True}


def test_as_a_request_ends_the_next_begins() -> None:
    engine = VllmEngine(None)
    requests = [(str(number), [0] * length) for number, length in enumerate((3, 1, 1, 2, 1))]
    assert child.run_requests(engine, requests, PARAMS, 2) == 5 * 9
    # 3 beside 1, 1 and the first step of 2, which then runs beside the last 1
    assert engine.sizes == [2, 2, 2, 2]


def test_fewer_requests_than_may_run_run_together() -> None:
    engine = VllmEngine(None)
    assert child.run_requests(engine, [("0", [1]), ("1", [1])], PARAMS, 8) == 18
    assert engine.sizes == [2]


@pytest.mark.usefixtures("gpu")
def test_each_repeat_counts_its_own_tokens_and_drafts() -> None:
    timings = child.measure(REQUEST)["timings"]
    assert [found["concurrency"] for found in timings] == [1, 2]
    counts = {
        (one["tokens"], one["drafts"], one["accepted"]) for found in timings for one in found["batches"]
    }
    assert counts == {(72, 24, 48)}


@pytest.mark.usefixtures("gpu")
def test_nothing_drafts_where_nothing_is_given_to_draft_with() -> None:
    timings = child.measure(REQUEST | {"mode": "plain"})["timings"]
    assert "speculative_config" not in LLM.arguments
    assert {one["drafts"] for found in timings for one in found["batches"]} == {0}


def test_the_engine_that_is_timed_has_a_process_of_its_own() -> None:
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" in VLLM.environment
    assert {*VLLM.environment} - {*speed.SERVED.environment} == {"VLLM_ENABLE_V1_MULTIPROCESSING"}


# the command, with what the child answers stood in for

SECONDS = {"plain": 2.0, 1: 1.6, 3: 1.0, 5: 1.25}
GPU = {"version": "0.32.0", "device": "cuda", "card": "NVIDIA H200", "is_eager": False}


def timed_answer(job: Any, mode: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Three repeats; at more than one request at a time the drafter costs time."""
    seconds = SECONDS["plain" if mode == "plain" else job.k]
    timings = []
    for number in request["concurrencies"]:
        taken = seconds / number * (1 if mode == "plain" or number == 1 else 4)
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
            return timed_answer(job, mode, more)
        result = {"tokens": list(range(30)), "drafts": 10, "accepted": [9] * job.k}
        resolved = {"class": "Eagle3LlamaForCausalLM", "aux_layers": [2, 4, 5]} if mode == "generate" else {}
        common = {"version": "0.32.0", "device": "cuda", "dtype": "bfloat16", "seconds": 1.0}
        return {**common, "results": [result] * len(texts), "resolved": resolved}

    monkeypatch.setattr(InstalledEngine, "require", lambda engine, alternative: None)

    def answers(engine: Any, job: Any, texts: Any) -> tuple[Any, Any]:
        plain = ask(engine, job, "plain", texts) if job.compares_plain else None
        return plain, ask(engine, job, "generate", texts)

    monkeypatch.setattr(installed, "_answers", answers)
    monkeypatch.setattr(speed, "ask", ask)
    return starts


def smoke(*more: str, before: Sequence[str] = ()) -> Outcome:
    run = ("--target", TARGET, "--prompts", PROMPTS, "--sample", "8", "--max-tokens", "16")
    return call(*before, "smoke", TINY / "eagle3", *run, "--engine", "vllm", *more)


def test_the_terminal_shows_the_ratio_at_each_concurrency(engine: list[tuple[str, int]]) -> None:
    done = smoke("--speed", "4,1")
    assert done.code == 0, done
    assert "2.00x at 1, 0.50x at 4" in done.out
    assert "break-even: about 2.52, in requests at a time" in done.out
    assert "NVIDIA H200: vLLM 0.32.0 with CUDA graphs as `vllm serve` has them" in " ".join(done.out.split())
    assert engine == [("plain", 3), ("generate", 3), ("plain", 3), ("generate", 3)]


@pytest.mark.usefixtures("engine")
def test_the_time_of_the_run_is_not_called_speed() -> None:
    whole = smoke(before=["-v"]).out
    assert "tokens/s" not in whole and "no measure of serving" in " ".join(whole.split())


@pytest.mark.usefixtures("engine")
def test_the_document_has_every_figure_and_keeps_its_schema() -> None:
    document = smoke("--speed", "1,4", "--json").document
    SCHEMAS["smoke"].validate(document)
    timed = document["speed"]
    assert (timed["text"], timed["repeats"], timed["card"]) == ("2.00x at 1, 0.50x at 4", 3, "NVIDIA H200")
    first, second = timed["rows"]
    assert first["drafted"]["total"] == {
        "median": 100.0,
        "least": pytest.approx(90.9, abs=0.1),
        "most": pytest.approx(111.1, abs=0.1),
    }
    assert second["plain"]["total"]["median"] == 200.0 and second["plain"]["per_user"]["median"] == 50.0
    assert (first["acceptance_length"], first["k"]) == (2.25, 3)
    (even,) = timed["break_even"]
    assert (even["side"], round(even["concurrency"], 2)) == ("at", 2.52)
    assert timed["fastest"] == []


def test_one_run_without_a_drafter_serves_every_k(engine: list[tuple[str, int]]) -> None:
    done = smoke("--speed", "1,4", "-k", "5,1,3", "--json")
    SCHEMAS["smoke"].validate(done.document)
    assert engine == [
        ("plain", 5),
        ("generate", 5),
        ("plain", 5),
        ("generate", 1),
        ("generate", 3),
        ("generate", 5),
    ]
    fastest = [
        (choice["concurrency"], choice["k"], choice["pays"]) for choice in done.document["speed"]["fastest"]
    ]
    assert fastest == [(1, 3, True), (4, 3, False)]
    assert done.document["k"] == 5


@pytest.mark.usefixtures("engine")
def test_the_terminal_says_which_k_is_the_fastest() -> None:
    assert "fastest: k=3 at 1, no drafter at 4" in smoke("--speed", "1,4", "-k", "1,3,5").out


@pytest.mark.usefixtures("engine")
def test_a_temperature_is_timed_too() -> None:
    assert smoke("--speed", "1", "--temperature", "0.7", "--json").document["speed"]["text"] == "2.00x at 1"


def test_an_engine_that_cannot_be_timed_leaves_the_acceptance_and_is_no_pass(
    engine: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise UnreadableError("vLLM did not finish within --timeout 600 s and was stopped")

    monkeypatch.setattr(speed, "ask", fail)
    done = smoke("--speed", "1", "--json")
    SCHEMAS["smoke"].validate(done.document)
    assert (done.code, done.document["verdict"]) == (3, "could-not-look")
    assert done.document["acceptance_length"] > 1 and "speed" not in done.document
    assert done.document["speed_gap"].startswith("vLLM did not finish")
    assert done.document["gaps"] == [f"speed was not measured: {done.document['speed_gap']}"]


def timed(**changes: Any) -> SmokeReport:
    rows = compare_timings(
        3,
        [timing(1, 200, 190, 210), timing(8, 50, 60, 55)],
        [timing(1, 100, 100, 100), timing(8, 90, 90, 90)],
    )
    found = Speed(rows, "cuda", "NVIDIA H200", 64, 3, "vLLM | <b>")
    return replace(smoke_report("x", "pass"), speed=replace(found, **changes))


def test_markdown_has_the_table() -> None:
    text = markdown(smoke_outline(timed()))
    assert "**2.00x at 1, 0.61x at 8**" in text
    assert "| 8 | 6.9 | 55.0 \\[50.0, 60.0\\] | 11.2 | 90.0 \\[90.0, 90.0\\] |" in text
    assert "<b>" not in text


def test_a_cpu_is_said_to_be_no_measure_of_serving() -> None:
    text = markdown(smoke_outline(timed(device="cpu", card="", how=speed.ON_CPU)))
    assert "measured on a CPU: no measure of serving" in text


def test_ready_shows_the_speed_of_what_it_serves() -> None:
    result = eaglectl.ready(TINY / "eagle3", engines=("vllm==0.32.0",), reuse=False)
    (state,) = result.engines
    result = replace(result, engines=(replace(state, stored=timed()),))
    assert "### Speed, vLLM 0.32.0" in markdown(readiness_outline(result))
    document = result.to_dict()
    SCHEMAS["ready"].validate(document)
    assert document["engines"][0]["speed"]["text"] == "2.00x at 1, 0.61x at 8"


def test_ready_says_why_nothing_was_timed() -> None:
    asked: dict[str, Any] = {"prompts": str(PROMPTS), "sample": 4, "max_tokens": 16, "speed": (1, 4)}
    result = eaglectl.ready(TINY / "eagle3", TARGET, engines=("vllm==0.31.0",), reuse=False, **asked)
    assert result.speed_gap == "neither vLLM here nor a server ran the drafter as it shall be served"
    assert f"not measured: {result.speed_gap}" in markdown(readiness_outline(result))
    SCHEMAS["ready"].validate(result.to_dict())


def test_ready_does_not_time_a_cpu(monkeypatch: pytest.MonkeyPatch, engine: list[tuple[str, int]]) -> None:
    from eaglectl.operations.smoking import CPU_SKIPPED, smoke_drafts

    def answers(engine: Any, job: Any, texts: Any) -> tuple[Any, Any]:
        result = {"tokens": [1, 2], "drafts": 10, "accepted": [9] * job.k}
        common = {"version": "0.32.0", "device": "cpu", "dtype": "float32", "seconds": 1.0}
        return None, {**common, "results": [result] * len(texts), "resolved": {}}

    monkeypatch.setattr(installed, "_answers", answers)
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=str(PROMPTS), sample=8, speed=(1,))
    report = smoke_drafts(str(TINY / "eagle3"), str(TARGET), options, None, times_cpu=False)
    assert (report.speed, report.speed_gap, report.verdict) == (None, CPU_SKIPPED, "pass")
    assert engine == []


# bad input

NUMBERS = "different whole numbers from 1 to 1024 in rising order, like 1,4,16, was expected"
BAD = {
    ("--speed", "0"): NUMBERS,
    ("--speed", "a"): NUMBERS,
    ("--speed", "1,1"): NUMBERS,
    ("--speed", "1,"): NUMBERS,
    ("--speed", "-1"): NUMBERS,
    ("--speed", "1.5"): NUMBERS,
    ("--speed", "1025"): NUMBERS,
    ("--speed", "1", "-k", "3,3"): NUMBERS,
    ("--speed", "1", "-k", "0,3"): NUMBERS,
    ("--speed", "1", "-k", "0"): "at least 1",
    ("-k", "1,3"): "-k with several numbers is for --speed",
    ("-k", "three"): "a whole number, or with --speed several like 1,3,5, was expected",
    ("--speed", "1", "--run-in", "sglang"): "--speed is measured in vLLM, which --run-in sglang is not",
    ("--speed", "1", "--run-in", "reference"): "--speed is measured in vLLM, which --run-in reference is not",
    ("--speed", "1", "-k", "1,3", "--run-in", "http://127.0.0.1:1"): "a server drafts as many tokens as",
    ("--speed", "1", "--load-only"): "nothing that could be timed",
    ("-k", "1,3", "--load-only"): "nothing that could be timed",
}  # fmt: skip


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_what_cannot_be_timed_is_usage(words: tuple[str, ...]) -> None:
    engine = () if "--run-in" in words else ("--run-in", "vllm")
    assert BAD[words] in refusal(2, "smoke", TINY / "eagle3", "--target", TARGET, *engine, *words)


@pytest.mark.parametrize(
    "given", [{"speed": (4, 1)}, {"speed": ()}, {"speed": (0,)}, {"speed": (1,), "k": (3, 1)}]
)
def test_numbers_that_do_not_rise_are_refused_in_python(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="in rising order"):
        eaglectl.smoke(str(TINY / "eagle3"), str(TARGET), eaglectl.SmokeOptions(run_in="vllm", **given))


def test_ready_takes_one_k() -> None:
    assert "-k 1,3" in refusal(2, "ready", TINY / "eagle3", "-k", "1,3").replace(
        "--num-speculative-tokens", "-k"
    )


# a running server


def smoke_server(tmp_path: Path, pages: Mapping[str, Any], seen: list[Any]) -> SmokeReport:
    folder = drafter_folder(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text('{"num_hidden_layers": 8, "model_type": "llama"}')
    (tmp_path / "prompts.txt").write_text("".join(f"prompt {number}\n" for number in range(6)))
    with server(pages, seen) as url:
        options = eaglectl.SmokeOptions(
            run_in=url, prompts=tmp_path / "prompts.txt", max_tokens=20, speed=(1, 3)
        )
        return eaglectl.smoke(str(folder), str(tmp_path / "target"), options)


def vllm_metrics(requests: int, running: int = 0) -> str:
    """The page after so many requests of 20 tokens: 10 rounds, in which 6 and 3 drafts were accepted."""
    lines = [f'vllm:num_requests_running{{engine="0"}} {running}.0']
    counts = {"generation_tokens_total": 20, "spec_decode_num_drafts_total": 10}
    lines += [f'vllm:{name}{{engine="0"}} {count * requests}.0' for name, count in counts.items()]
    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [
        f'{by_position}{{engine="0",position="{place}"}} {count * requests}.0'
        for place, count in enumerate((6, 3))
    ]
    return "\n".join([*lines, ""])


VLLM_PAGES = {"/v1/models": MODELS, "/metrics": vllm_metrics, "/v1/completions": ANSWER}


@pytest.mark.parametrize(
    ("pages", "k", "length"),
    [(SGLANG, 3, 2.0), (LLAMA, 3, 1.9), (VLLM_PAGES, 2, 1.9)],
    ids=["SGLang", "llama.cpp", "vLLM"],
)
def test_a_server_is_timed_with_what_it_serves(
    pages: Mapping[str, Any], k: int, length: float, tmp_path: Path
) -> None:
    seen: list[Any] = []
    found = smoke_server(tmp_path, pages, seen).speed
    assert found is not None
    assert [(line.k, line.concurrency, line.plain, line.ratio) for line in found.rows] == [
        (k, 1, None, None),
        (k, 3, None, None),
    ]
    assert [line.length for line in found.rows] == [pytest.approx(length)] * 2
    assert all(line.drafted.median > 0 for line in found.rows)
    assert (found.text, found.break_even, found.repeats) == ("", (), REPEATS)
    assert "there is no ratio: --run-in vllm on such a card" in found.how
    # acceptance, as many as are in flight to warm up, and repeats of eight and of nine requests
    assert len(seen) == 6 + 4 + REPEATS * (8 + 9)
    assert [request["ignore_eos"] for request in seen] == [False] * 6 + [True] * (len(seen) - 6)


def test_other_traffic_while_a_server_is_timed_is_no_measurement(tmp_path: Path) -> None:
    def metrics(requests: int) -> str:
        return vllm_metrics(requests, running=int(requests > 6))

    report = smoke_server(tmp_path, {**VLLM_PAGES, "/metrics": metrics}, [])
    assert report.speed is None
    assert "is serving other requests" in report.speed_gap
    assert report.gaps[-1] == f"speed was not measured: {report.speed_gap}"


def test_counts_that_cannot_be_are_no_measurement(tmp_path: Path) -> None:
    def metrics(requests: int) -> str:
        text = vllm_metrics(requests)
        drafts = f'vllm:spec_decode_num_drafts_total{{engine="0"}} {10 * requests}.0'
        return text.replace(drafts, drafts.replace(f" {10 * requests}.0", " 0.0")) if requests > 6 else text

    report = smoke_server(tmp_path, {**VLLM_PAGES, "/metrics": metrics}, [])
    assert report.speed is None and "contradicts itself" in report.speed_gap
