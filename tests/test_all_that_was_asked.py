"""Every engine and release that a call names is judged, and is in what the command answers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.engines.registry import ENGINES, parse_engine
from tests.builders import VLLM, call, drafter_folder, refusal, target_of
from tests.conftest import FIXTURES

MLA, ROPE = FIXTURES / "producers/torchspec/mla", ("--source-semantics", "rope=10000")
TINY = FIXTURES / "tiny"
SPELLED = ("{}", "{}=={}", "{}>={}", "{}<={}")
REQUESTS = st.lists(
    st.sampled_from([*ENGINES]).flatmap(
        lambda name: st.builds(
            lambda form, release: form.format(name, release),
            st.sampled_from(SPELLED),
            st.sampled_from(ENGINES[name].releases),
        )
    ),
    min_size=1,
    max_size=4,
)
Rows = list[tuple[str, str]]


def rows(documents: list[dict[str, Any]]) -> Rows:
    return [(document["engine"], document["release"]) for document in documents]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A drafter that newer releases of vLLM and SGLang run as trained, and its target."""
    place = tmp_path_factory.mktemp("good")
    return drafter_folder(place), target_of(place / "target")


def answers(source: Path, target: Path, texts: list[str]) -> dict[str, Rows]:
    """The releases in the answer of each command, in the order in which they stand there."""
    asked: dict[str, Any] = {"target": str(target), "engines": texts}
    plan = eaglectl.convert(source, dry_run=True, force_unserved=True, **asked)
    inspection = eaglectl.inspect(source, **asked)
    return {
        "inspect": [(verdict.engine, verdict.release) for verdict in inspection.requested],
        "validate": rows(eaglectl.validate(source, **asked).to_dict()["releases"]),
        "convert": rows(plan.to_dict()["serving"]),
        "ready": rows(eaglectl.ready(source, **asked).to_dict()["engines"]),
    }


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=REQUESTS)
def test_what_was_given_is_what_is_in_the_answer(texts: list[str], good: tuple[Path, Path]) -> None:
    check_answers(texts, good)


@pytest.mark.parametrize(
    "texts",
    [
        ["vllm==0.26.0", f"vllm=={VLLM}", "vllm==0.26.0"],
        ["sglang", f"vllm>={VLLM}", "vllm>=0.32", "llama.cpp"],
    ],
    ids=" ".join,
)
def test_the_same_engine_twice_has_a_row_for_each_release(texts: list[str], good: tuple[Path, Path]) -> None:
    check_answers(texts, good)


def check_answers(texts: list[str], good: tuple[Path, Path]) -> None:
    expected = sorted({place for text in texts for place in parse_engine(text).places})
    assert {name: sorted(found) for name, found in answers(*good, texts).items()} == dict.fromkeys(
        ("inspect", "validate", "convert", "ready"), expected
    )


def test_the_order_of_releases_changes_neither_the_verdict_nor_the_first_line() -> None:
    first, second = ("--engine", "vllm==0.10.0"), ("--engine", f"vllm=={VLLM}")
    for command in ("ready", "validate", "inspect"):
        here, there = (call(command, MLA, *ROPE, *order) for order in ((*first, *second), (*second, *first)))
        assert (here.code, here.out.splitlines()[0]) == (there.code, there.out.splitlines()[0])
        assert here.code == (0 if command == "inspect" else 1)
        assert "vLLM 0.10.0" in here.out.splitlines()[0]


def test_a_release_that_one_range_names_and_that_does_not_run_it_fails_what_was_written(
    tmp_path: Path,
) -> None:
    given = ("convert", MLA, *ROPE, "--engine", "vllm>=0.10", "-o")
    done = call(*given, tmp_path / "out")
    head = done.out.splitlines()[0]
    assert (done.code, (tmp_path / "out").is_dir()) == (1, True)
    assert head.startswith("fail: wrote ") and "vLLM 0.10.0" in head and "does not start with it" in head
    forced = call(*given, tmp_path / "forced", "--force-unserved")
    assert forced.code == 0 and "does not start with it" in forced.out.splitlines()[0]
    quiet = call("-q", *given, tmp_path / "quiet")
    assert quiet.code == 1 and "vLLM 0.10.0" in quiet.out.splitlines()[0]


def test_what_only_the_target_s_config_shows_is_refused_for_the_engine_that_was_asked_for(
    tmp_path: Path,
) -> None:
    source = drafter_folder(tmp_path, config={"max_position_embeddings": 64})
    target = target_of(tmp_path / "target", max_position_embeddings=131072, num_attention_heads=4)
    for asked in (("--for", "sglang"), ("--engine", "sglang")):
        given = ("convert", source, "--target", target, *asked, "-o")
        message = refusal(1, *given, tmp_path / "out", "--tensor-parallel-size", "3")
        assert "SGLang" in message and "--force-unserved" in message and not (tmp_path / "out").exists()
        head = call(*given, tmp_path / asked[0]).out.splitlines()[0]
        assert "SGLang" in head and "runs it as trained, started with --context-length 64" in head


def test_an_engine_without_releases_is_answered_for_itself(tmp_path: Path) -> None:
    source, target = FIXTURES / "producers/specforge/gqa", FIXTURES / "target"
    done = call("convert", source, "--target", target, "--engine", "atom", "-o", tmp_path / "out")
    assert "ATOM" in done.out.splitlines()[0] and "vLLM" not in done.out.splitlines()[0]


def test_diagnose_takes_one_release_and_no_other_is_dropped() -> None:
    twice = call("diagnose", TINY / "eagle3", "--engine", "vllm", "--engine", "sglang")
    assert twice.code == 2 and "takes one --engine" in twice.err
    assert "names several releases" in refusal(2, "diagnose", TINY / "eagle3", "--engine", "vllm>=0.30")


@pytest.mark.slow
def test_smoke_speaks_of_no_engine_that_is_judged_only_where_it_is_named() -> None:
    done = call("smoke", TINY / "eagle3.1", "--target", TINY / "target", "--sample", "2", "--max-tokens", "8")
    assert "llama.cpp" not in done.out
