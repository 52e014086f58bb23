"""What engine releases do with a checkpoint.

Every fact has a condition, and known cases come out as they were measured.
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.specifiers import SpecifierSet

import eaglectl
from eaglectl.drafter.drafter import Target
from eaglectl.engines import vllm
from eaglectl.engines.behaviour import capture, is_within, release_order
from eaglectl.engines.conditions import COMMON
from eaglectl.engines.data import load
from eaglectl.engines.engine import NetworkReading
from eaglectl.engines.registry import ENGINES, launch_commands, parse_engine, view_for
from eaglectl.engines.vllm import flat_as_read
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.judge.support import ideal, services
from tests.builders import LLAMACPP, SGLANG, call, changed, drafter_folder, target_of
from tests.conftest import FIXTURES
from tests.resolving.configs import CONFIGS, DEPTH, DFLASH, NATIVE, SPECULATORS
from tests.resolving.record import read

PRODUCERS = FIXTURES / "producers"
NOT_FOLLOWED = ("tensorrt-llm", "tokenspeed", "atom", "max", "vllm-ascend", "lmdeploy", "mlx-vlm")


def test_every_fact_has_a_condition_and_every_condition_a_fact() -> None:
    ids = [{fact.id for fact in engine.facts} for engine in ENGINES.values()]
    for engine, own in zip(ENGINES.values(), ids, strict=True):
        assert own <= set(engine.conditions) <= own | set(COMMON)
    assert all(sum(name in own for own in ids) > 1 for name in COMMON)


@pytest.mark.parametrize(
    ("path", "release", "outcome", "word"),
    [
        ("specforge/gqa-full-vocab", "vllm 0.29.0", "as trained", ""),
        ("specforge/gqa-full-vocab", "vllm 0.30.0", "fails", "d2t"),
        ("speculators/eagle3.1", "vllm 0.23.0", "fails", "fc_norm"),
        ("speculators/eagle3.1", f"sglang {SGLANG}", "fails", "speculators"),
        ("torchspec/mla-deepseek-v3", "vllm 0.33.0", "fails", "deepseek_v3"),
        ("sglang/aux-norm", "vllm 0.33.0", "fails", "fc_norm"),
        ("sglang/aux-norm", f"sglang {SGLANG}", "as trained", ""),
        ("speculators/eagle3.1", "llama.cpp 0.3.36", "fails", "fc_norm"),
        ("speculators/plain", "llama.cpp 0.3.36", "as trained", ""),
        # top-level ids are read from 0.11.1 on
        ("vllm/native", "vllm 0.11.0", "unknown", ""),
        ("vllm/native", "vllm 0.11.1", "as trained", ""),
        # what cannot be known is never called as trained
        ("specforge/eagle3.1", "vllm 0.33.0", "unknown", ""),
        ("specforge/gqa-ids", "vllm 0.33.0", "unknown", ""),
    ],
)
def test_known_cases_come_out_as_measured(path: str, release: str, outcome: str, word: str) -> None:
    found = eaglectl.inspect(str(PRODUCERS / path), answers=Answers(semantics={"rope": "stored"})).verdicts
    ((seen, reasons),) = (
        (verdict.outcome, verdict.reasons)
        for verdict in found
        if f"{verdict.engine} {verdict.release}" == release
    )
    assert seen == outcome and word in " ".join(reasons)


@pytest.mark.parametrize(
    ("text", "releases"),
    [
        ("vllm", (vllm.ENGINE.releases[-1],)),
        ("vllm==0.32.0", ("0.32.0",)),
        ("vllm>=0.31,<=0.33", ("0.31.0", "0.32.0", "0.33.0")),
        ("sglang", (SGLANG,)),
        ("sglang>=0.5.15,<0.5.17", ("0.5.15", "0.5.15.post1", "0.5.16")),
        ("llama.cpp", (LLAMACPP,)),
        (f"llama.cpp=={LLAMACPP}", (LLAMACPP,)),
    ],
)
def test_engines_are_named_as_requirements(text: str, releases: tuple[str, ...]) -> None:
    assert parse_engine(text).releases == releases


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("vllm-0.32.0", "near it: vllm, "),
        ("sglangg==0.5.23", "near it: sglang"),
        ("tensorrt_llm", "near it: tensorrt-llm"),
        ("tensorrt-llm==1.2", "write tensorrt-llm"),
        ("llamacpp", "near it: llama.cpp"),
        ("triton", "engines are vllm, sglang, llama.cpp, atom, lmdeploy, max, mlx-vlm, tensorrt-llm"),
        ("vllm==0.22.5", f"vllm is known from 0.10.0 to {vllm.ENGINE.releases[-1]}; update eaglectl"),
        ("vllm<0.3", f"{vllm.ENGINE.releases[-1]}; let smoke --run-in vllm measure the installed one"),
        ("vllm==0.9.*", f"{vllm.ENGINE.releases[-1]}; let smoke"),
        ("vllm===0.9.2.post1", "no known release fits"),
        ("vllm===nightly", "no known release fits"),
        ("vllm>=99,!=99.1", "update eaglectl"),
        ("vllm=>1", "vllm"),
        ("\x1b[31mvllm\n==", "vllm"),
        ("", "engines are"),
    ],
)
def test_an_engine_that_is_not_known_names_the_nearest(text: str, near: str) -> None:
    with pytest.raises(EaglectlError, match="--engine") as raised:
        parse_engine(text)
    assert near in str(raised.value)


@pytest.mark.parametrize(
    ("release", "target", "taken"),
    [
        ("0.21.0", "qwen3", ("V1",)),
        ("0.22.0", "qwen3", ("V2",)),
        ("0.22.0", "llama", ("V1",)),
        ("0.23.0", "llama", ("V2",)),
        ("0.24.0", "deepseek_v2", ("V2",)),
        ("0.28.0", "gpt_oss", ("V1",)),
        ("0.28.0", "some_new", ("V1", "V2")),
        ("0.25.0", None, ("V1", "V2")),
        ("0.29.0", "gpt_oss", ("V2",)),
        ("0.33.0", None, ("V2",)),
    ],
)
def test_the_runner_of_a_release_depends_on_the_target_for_a_while(
    release: str, target: str | None, taken: tuple[str, ...]
) -> None:
    assert vllm.ENGINE.behaviour(release).runners_for(target) == taken


@pytest.mark.parametrize(("release", "taken"), [("0.22.1", ["V1"]), ("0.23.0", ["V1"]), ("0.24.0", ["V2"])])
def test_a_quantised_target_is_run_by_v1_for_two_releases(release: str, taken: list[str]) -> None:
    assert [*vllm.ENGINE.behaviour(release).runners_for("qwen3", is_quantised=True)] == taken


SERVED = {(one.engine, one.layout, one.version, one.attention): one.releases for one in services()}


@pytest.mark.parametrize(
    ("layout", "version", "attention", "first"),
    [
        ("vllm", "3", "GQA", "0.10.2"),
        ("vllm", "3.1", "GQA", "0.22.0"),
        ("vllm", "3.1-joint", "GQA", "0.22.0"),
        ("vllm", "3", "MLA", "0.18.0"),
        ("vllm", "3.1", "MLA", "0.23.0"),
        ("vllm", "3", "Qwen3", "0.24.0"),
        ("vllm", "3.1", "Qwen3", "0.24.0"),
        ("speculators", "3", "GQA", "0.10.1"),
        ("speculators", "3.1", "GQA", "0.25.0"),
        ("speculators", "3.1", "Qwen3", "0.25.0"),
    ],
)
def test_the_first_release_that_serves_an_ideal_drafter(
    layout: str, version: str, attention: str, first: str
) -> None:
    served = SERVED["vllm", layout, version, attention]
    assert served == vllm.ENGINE.releases[vllm.ENGINE.releases.index(first) :]


def test_what_no_release_serves_is_empty_and_not_left_out() -> None:
    assert (
        SERVED["vllm", "vllm", "3.1-joint", "MLA"] == () and SERVED["sglang", "speculators", "3", "GQA"] == ()
    )
    known = ENGINES["sglang"].releases
    assert SERVED["sglang", "sglang", "3.1", "MLA"] == known
    assert SERVED["sglang", "sglang", "3.1-joint", "GQA"] == known[known.index("0.5.17") :]
    assert ("vllm", "speculators", "3", "MLA") not in SERVED  # the layout has no place for it


@pytest.mark.parametrize(
    ("engine", "release", "expected"),
    [
        ("vllm", "0.21.0", True),
        ("vllm", "0.22.0", False),
        ("vllm", "0.33.0", False),
        ("sglang", "0.5.23", False),
    ],
)
def test_a_switch_in_eagle_config_goes_before_the_one_at_the_top(
    engine: str, release: str, expected: bool
) -> None:
    config = {"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}
    view = view_for(engine, ideal("3.1-joint", "GQA"), config, config, ())
    assert ENGINES[engine].case(view, release).flag("norm_before_fc") is expected


RANGES = sorted(
    {row["range"] for row in vllm.ENGINE.data["behaviour"]} | {fact.releases for fact in vllm.ENGINE.facts}
)


@pytest.mark.parametrize("text", [*RANGES, "<0.22", "==0.10", "<=0.33.0", "==0.22.0.post1", "<0.22.0.post2"])
def test_ranges_are_those_of_pep_508(text: str) -> None:
    posts = ("0.22.0.post1", "0.22.0.post12", "0.10.1.post1")
    for release in (*vllm.ENGINE.releases, *posts, "0.22", "0.100.0", "1", "0.0"):
        assert is_within(text, release) == (not text or release in SpecifierSet(text)), release


@pytest.mark.parametrize("engine", ENGINES)
def test_the_entries_and_facts_of_an_engine_do_not_contradict_themselves(engine: str) -> None:
    for entry in load(engine)["behaviour"]:
        assert all(is_within(entry["range"], release) for release in entry["releases"])
    releases = ENGINES[engine].releases
    assert sorted(set(releases), key=release_order) == list(releases)
    for fact in ENGINES[engine].facts:
        for run in ENGINES[engine].runs_of(fact):
            assert is_within(fact.releases, run.release) == run.holds, (fact.id, run)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_hand_written_entry_states_where_it_was_run(engine: str) -> None:
    written = load(engine)
    stated = {key for entry in (*written["facts"], *written["behaviour"], written) for key in entry}
    assert [key for key in stated if "run_in" in key] == []


def test_the_table_of_engines_says_what_each_serves_and_what_was_run_and_what_was_read() -> None:
    done = call("engines", "-v")
    assert done.code == 0
    text = " ".join(done.out.split())
    for words in (
        f"0.22.0 - {vllm.ENGINE.releases[-1]}",
        "eagle3_layers_to_capture",
        "run: 0.32.0 (",
        "read in their sources, not run, all else: 0.10.0 - 0.21.0",
        "the functions that resolve layer ids were run: 0.22.0 - 0.33.0",
        f"read in their sources, not run: {', '.join(NOT_FOLLOWED)}",
        "P-EAGLE with structured output",
        "pipeline parallel",
        "-sm tensor: stops",
    ):
        assert words in text, words
    assert "SGLang" not in call("engines", "-v", "vllm").out


def test_the_document_of_engines_fits_its_schema_and_has_the_evidence_of_releases_and_facts() -> None:
    document = call("engines", "-v", "--json").document
    jsonschema.validate(document, json.loads((FIXTURES.parent / "schemas/engines.schema.json").read_text()))
    assert {one["engine"] for one in document["engines"]} == {"vllm", "sglang", "llama.cpp"}
    assert tuple(one["engine"] for one in document["not_followed"]) == NOT_FOLLOWED
    assert {row["evidence"] for row in document["not_followed"]} == {"read"}
    releases = {row["release"]: row for row in document["engines"][0]["releases"]}
    assert "V1" in releases["0.32.0"]["run"] and releases["0.32.0"]["facts"]["run"] >= 28
    assert releases["0.29.0"]["run"] == [] and releases["0.29.0"]["facts"]["run"] == 0
    assert releases["0.31.0"]["ids"] == "run" and releases["0.21.0"]["ids"] == "read"
    facts = {row["id"]: row["runs"] for row in document["engines"][0]["facts"]}
    run = {"release": "0.32.0", "runner": "V1", "holds": True, "case": "llama3/d2t missing"}
    assert run in facts["d2t-missing"] and facts["fc-norm-dropped"] == []
    absent = {"release": "0.22.0", "runner": "V1", "holds": False, "case": "llama-shared/identity d2t"}
    assert absent in facts["identity-d2t"]


def test_engines_shows_of_each_fact_where_it_was_run_or_read() -> None:
    text = " ".join(call("engines", "-v", "vllm").out.split())
    assert "EGL1008 identity-d2t >=0.30.0 run" in text and "run without it" in text
    assert "EGL1016 fc-norm-dropped <0.22.0 read: " in text


@pytest.mark.parametrize(
    ("rule", "evidence"),
    [
        ("EGL1009", "run on vLLM 0.22.0"),
        ("EGL1016", "read in the sources of vLLM, not run"),
        ("EGL101", ""),
    ],
)
def test_rules_shows_the_evidence_of_a_fact(rule: str, evidence: str) -> None:
    text = call("rules", rule).out
    assert evidence in text and ("Evidence" in text) == bool(evidence)
    told = call("rules", rule, "--json").document["rules"][0]["evidence"]
    assert told.startswith(evidence) and bool(told) == bool(evidence)


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lmdeploy", "(2, 30, 58) without, and only checks and counts them"),
        ("lmdeploy", "fc_norm (or use_aux_norm) and norm_output"),
        ("max", "no norm_before_fc"),
        *((name, "") for name in ("tensorrt-llm", "vllm-ascend", "mlx-vlm")),
    ],
)
def test_engines_says_what_was_read_of_an_engine_whose_releases_are_not_followed(
    name: str, words: str
) -> None:
    assert words in " ".join(call("engines", name).out.split())
    document = call("engines", name, "--json").document
    assert document["engines"] == [] and [row["engine"] for row in document["not_followed"]] == [name]


SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention"]}
TARGET = {"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 64}
AWQ = {"quantization_config": {"quant_method": "awq"}}
UNQUANTISED = "--speculative-draft-model-quantization unquant"


def launched(parent: Path, target: dict[str, object] | None = None) -> dict[str, str]:
    place = None if target is None else target_of(parent / "target", **target)
    drafter = eaglectl.inspect(drafter_folder(parent), target=place).drafter
    return dict(launch_commands(drafter, "a/head", 3, "main"))


def commands(parent: Path, target: dict[str, object] | None = None, **config: object) -> dict[str, str]:
    place = None if target is None else target_of(parent / "target", **target)
    return dict(eaglectl.inspect(drafter_folder(parent, config=config), target=place).commands)


@pytest.mark.parametrize(("config", "target"), [({}, None), (SLIDING, None), ({}, {**TARGET, **AWQ})])
def test_each_option_is_one_that_the_engine_has(
    config: dict[str, object], target: dict[str, object] | None, tmp_path: Path
) -> None:
    printed = commands(tmp_path, target, **config)
    known = load("sglang")["speculative_options"]["names"]
    options = [word for word in shlex.split(printed["sglang"]) if word.startswith("--speculative-")]
    assert options and [word for word in options if word.removeprefix("--speculative-") not in known] == []
    stated = json.loads(shlex.split(printed["vllm"])[-1])
    assert set(stated) <= set(load("vllm")["speculative_options"]["names"])
    assert ("--speculative-draft-window-size 63" in printed["sglang"]) == (config == SLIDING)


@pytest.mark.parametrize(
    ("target", "is_there"),
    [
        ({**TARGET, **AWQ}, True),
        ({"model_type": "llava", "text_config": {**TARGET, **AWQ}}, True),
        (TARGET, False),
        (None, False),
    ],
)
def test_a_drafter_takes_over_no_quantisation_of_its_target(
    target: dict[str, object] | None, is_there: bool, tmp_path: Path
) -> None:
    assert (UNQUANTISED in launched(tmp_path, target)["sglang"]) == is_there


IDS = "eagle_aux_hidden_state_layer_ids"


def reading(folder: Path, engine: str = "vllm==0.33.0", **semantics: str) -> NetworkReading | None:
    """The reading of a release that serves the drafter otherwise than as trained."""
    target = FIXTURES / "tiny/target" if folder.parent.parent != PRODUCERS else None
    answers = Answers(semantics=semantics)
    (verdict,) = eaglectl.inspect(str(folder), engines=[engine], target=target, answers=answers).requested
    assert verdict.outcome == "differs", verdict
    return verdict.reading


@pytest.mark.parametrize(
    ("name", "config", "engine", "read"),
    [
        (
            "eagle3.1",
            {"norm_output": None, "eagle_config": {"norm_output": True}},
            "vllm==0.33.0",
            NetworkReading("vLLM 0.33.0", switches={"norm_output": False}),
        ),
        (
            "eagle3.1",
            {"norm_output": None, "eagle_config": {"norm_output": True, IDS: [2, 4, 5]}},
            "sglang==0.5.23",
            NetworkReading("SGLang 0.5.23", (3, 5, 6), {"norm_output": False}),
        ),
        # the blocks of fc are for 5, 2, 4 and get 2, 4, 5: sorted, those for 2, 4, 5 get 4, 5, 2
        (
            "eagle3",
            {IDS: None, "eagle_config": {IDS: [4, 1, 3], "use_aux_hidden_state": True}},
            "sglang==0.5.23",
            NetworkReading("SGLang 0.5.23", (4, 5, 2)),
        ),
        (
            "eagle3.1",
            {"norm_output": None, "eagle_config": {"norm_output": True}, "num_hidden_layers": 2},
            "vllm==0.33.0",
            None,
        ),
    ],
    ids=["a switch elsewhere", "a switch and other layers", "layers sorted", "more than a reading"],
)
def test_what_an_engine_reads_otherwise_is_a_reading(
    name: str, config: dict[str, Any], engine: str, read: NetworkReading | None, tmp_path: Path
) -> None:
    folder = shutil.copytree(FIXTURES / "tiny" / name, tmp_path / "drafter")
    (folder / "config.json").write_text(json.dumps(changed(folder, **config)))
    assert reading(folder, engine) == read


def test_the_rope_base_that_the_file_states_is_the_one_that_the_engine_takes() -> None:
    found = reading(PRODUCERS / "angelslim/qwen3", rope="10000")
    assert found == NetworkReading("vLLM 0.33.0", theta=1e6)
    assert found.words == "read as vLLM 0.33.0 reads it"


def test_a_drafter_read_otherwise_is_the_same_but_for_that() -> None:
    drafter = eaglectl.inspect(str(FIXTURES / "tiny/eagle3.1")).drafter
    read = NetworkReading("vLLM", (1, 2, 3), {"fc_norm": False}, 10000.0).applied_to(drafter)
    assert (read.norms.fc_norm, read.rope.theta) == (False, 10000.0)
    assert (read.dims, read.norms.norm_output, read.aux) == (drafter.dims, True, drafter.aux)


RECORDED = read()
LLAMA = Target(depth=DEPTH, model_type="llama")


def captured(release: str, runner: str, name: str) -> list[int]:
    config = CONFIGS[name]
    if name in SPECULATORS:
        config = flat_as_read(config, by_name("speculators").flat(config))
    boundaries = capture(vllm.ENGINE.behaviour(release).runners[runner], config, LLAMA).boundaries
    assert boundaries is not None
    return list(boundaries)


def test_every_release_from_0_22_on_is_recorded() -> None:
    known = vllm.ENGINE.releases
    assert list(RECORDED) == list(known[known.index("0.22.0") :])
    assert list(RECORDED) == [release for release in known if vllm.ENGINE.ids_evidence(release) == "run"]


@pytest.mark.parametrize("runner", ["V1", "V2"])
@pytest.mark.parametrize("release", RECORDED)
def test_each_runner_captures_what_its_own_function_returns(release: str, runner: str) -> None:
    answers = RECORDED[release][runner]
    assert set(answers) == set(CONFIGS)
    names = [*NATIVE, *DFLASH, *(name for name in SPECULATORS if answers[name] is not None)]
    differing = {name: answers[name] for name in names if captured(release, runner, name) != answers[name]}
    assert not differing
