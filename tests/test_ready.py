"""`ready`: from a trainer's folder to a serving command, in one call."""

import json
import os
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.commands.ready import run as readying  # noqa: E402
from eaglectl.commands.ready.report import last_line  # noqa: E402
from eaglectl.commands.ready.run import KeptRuns  # noqa: E402
from eaglectl.engines import registry  # noqa: E402
from eaglectl.errors import UsageError  # noqa: E402
from eaglectl.operations.open_questions import OpenQuestions  # noqa: E402
from eaglectl.run.measurement import PromptResult, measure  # noqa: E402
from eaglectl.run.report import SmokeReport  # noqa: E402
from eaglectl.verdicts import ServedAs  # noqa: E402
from tests.builders import Outcome, call, drafter_folder, refusal  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.faults.processes import paused  # noqa: E402
from tests.measurements import EAGLE3, worse  # noqa: E402
from tests.measurements import report as against_report  # noqa: E402
from tests.pages import read_image  # noqa: E402
from tests.tiny import PROMPTS, TARGET, TINY  # noqa: E402

SCHEMA = json.loads((FIXTURES.parent / "schemas/ready.schema.json").read_text())
RUN = ("--target", TARGET, "--prompts", PROMPTS, "--sample", "8", "--max-tokens", "16", "--device", "cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the test's own."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    return place / "eaglectl/runs"


def sentence(*given: object) -> str:
    """The result in a sentence, which the document has."""
    return str(call("ready", *given, "--json").document["line"])


def first(done: Outcome) -> str:
    return done.out.splitlines()[0]


def following(done: Outcome) -> str:
    """The command to run next, whole."""
    return (
        next(line for line in done.out.splitlines() if line.startswith("next: "))
        .removeprefix("next: ")
        .strip()
    )


@pytest.fixture(scope="module")
def automodel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny drafter in NeMo Automodel's layout, which no engine reads."""
    place = tmp_path_factory.mktemp("ready") / "automodel"
    call("convert", TINY / "eagle3", "--for", "automodel", "--target", TARGET, "-o", place)
    return place


def test_a_drafter_that_is_right_as_stored_is_not_converted(tmp_path: Path) -> None:
    done = call("ready", TINY / "eagle3", *RUN, "-o", tmp_path / "out")
    assert done.code == 0
    assert first(done).startswith("ready  as stored 2.") and first(done).endswith("(8 prompts, k=3)")
    assert following(done).startswith("vllm serve ")
    assert not (tmp_path / "out").exists()


def test_the_reference_decodes_with_the_drafter_alone() -> None:
    made = eaglectl.ready(TINY / "eagle3", TARGET, prompts=PROMPTS, sample=8, max_tokens=16, device="cpu")
    runs = [state.stored.run for state in made.engines if state.stored]
    assert runs and all(run.engine == "reference" and run.results and not run.plain for run in runs)


def test_a_drafter_that_no_engine_reads_is_converted_measured_and_started(
    automodel: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = call("ready", automodel, *RUN, "-o", out)
    assert done.code == 0
    assert first(done).startswith("ready  converted 2.")
    assert json.loads(shlex.split(following(done))[-1])["model"] == str(out)
    assert call("validate", out, "--target", TARGET).code == 0


@pytest.fixture(scope="module")
def misread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny drafter with nested ids that are boundaries, to which SGLang adds one; vLLM does not."""
    place = tmp_path_factory.mktemp("ready") / "misread"
    call("convert", TINY / "eagle3", "--for", "lightseekorg", "--target", TARGET, "-o", place)
    (place / "eaglectl.json").unlink()
    return place


def test_what_an_engine_reads_otherwise_is_measured_as_it_reads_it(misread: Path, tmp_path: Path) -> None:
    done = call("ready", misread, *RUN, "--engine", "sglang==0.5.23", "--json").document
    stored, converted = done["engines"][0]["stored"], done["engines"][0]["converted"]
    place = tmp_path / "otherwise"
    layers = ("--aux-layers", "3,5,6", "--aux-convention", "boundary")
    assert call("convert", TINY / "eagle3", *layers, "--target", TARGET, "-o", place).code == 0
    smoked = call("smoke", place, *RUN, "--run-in", "reference", "--json").document
    assert stored["acceptance"]["acceptance_length"] == smoked["acceptance_length"]
    assert stored["reading"] == "at the layers that SGLang 0.5.23 captures"
    lengths = [part["acceptance"]["acceptance_length"] for part in (stored, converted)]
    assert done["line"].startswith(
        f"ready  as stored {lengths[0]:.2f}, converted {lengths[1]:.2f} tokens per target step (8 prompts,"
    )
    assert "; start it with: eaglectl convert " in done["line"]
    assert lengths[0] < lengths[1]
    gain = done["engines"][0]["gain"]
    assert gain["value"] == pytest.approx(lengths[1] / lengths[0]) and gain["interval"][0] > 1
    assert gain["prompts_needed"] == 8


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (worse(EAGLE3[:24], 0.5), "(24 prompts, k=3); start it"),
        (EAGLE3[72:96], "k=3); the prompts do not tell the two apart; about 71 would; start it"),
        (EAGLE3[:24], "k=3); the prompts do not tell the two apart; start it"),
    ],
    ids=["worse", "near", "equal"],
)
def test_figures_that_the_prompts_do_not_tell_apart_are_said_to_be_so(
    stored: list[PromptResult], words: str
) -> None:
    runs = [
        replace(report, measured=measure(report.run.results))
        for report in (against_report(stored), against_report(EAGLE3[:24]))
    ]
    state = eaglectl.EngineReadiness(
        "sglang",
        "0.5.23",
        ServedAs.DIFFERS,
        (),
        stored=runs[0],
        converted_outcome=ServedAs.AS_TRAINED,
        converted=runs[1],
        command="serve",
    )
    inspection = eaglectl.inspect(TINY / "eagle3")
    result = eaglectl.Readiness("a", inspection, (state,), verdict=eaglectl.CheckVerdict.PASS)
    assert words in last_line(result)


def run_of(results: Sequence[PromptResult]) -> SmokeReport:
    report = against_report(results)
    return replace(report, measured=measure(report.run.results))


def judged(**fields: Any) -> eaglectl.Readiness:
    """The verdict of one engine's runs."""
    state = eaglectl.EngineReadiness("sglang", "0.5.23", ServedAs.AS_TRAINED, (), command="serve", **fields)
    result = eaglectl.Readiness("a", eaglectl.inspect(TINY / "eagle3"), (state,))
    options = eaglectl.ReadyOptions(sample=32)
    work = readying._Work(
        "a b", "target", None, (), options, OpenQuestions(options.answers), None, KeptRuns(Path())
    )
    return work.judged(result)


def test_a_conversion_that_drafts_worse_is_not_ready() -> None:
    good, bad = run_of(EAGLE3[:24]), run_of(worse(EAGLE3[:24], 0.5))
    served = {"converted_outcome": ServedAs.AS_TRAINED}
    result = judged(stored=good, converted=bad, **served)
    assert result.verdict == "fail" and "the conversion drafts worse in SGLang 0.5.23" in last_line(result)
    assert "keep the stored files there" in last_line(result)
    assert judged(stored=bad, converted=good, **served).verdict == "pass"
    assert judged(stored=good, converted=good, **served).verdict == "pass"


def test_a_length_that_is_weak_names_the_command_that_looks_for_the_cause() -> None:
    weak = [replace(one, accepted=tuple(count // 4 for count in one.accepted)) for one in EAGLE3[:24]]
    result = judged(stored=run_of(weak))
    assert result.verdict == "pass" and "of first draft tokens are accepted" in last_line(result)
    assert "eaglectl diagnose 'a b' --sample 32 --target target" in last_line(result)
    assert "diagnose" not in last_line(judged(stored=run_of(EAGLE3[:24])))


def test_a_rate_that_falls_at_the_second_token_names_the_command_too() -> None:
    falling = [replace(one, accepted=(one.accepted[0], one.accepted[1] // 3, 0)) for one in EAGLE3[:24]]
    line = last_line(judged(stored=run_of(falling)))
    assert "of those that follow: look for the cause with eaglectl diagnose" in line


def test_the_first_line_is_of_the_engine_that_a_conversion_was_needed_for(misread: Path) -> None:
    done = call("ready", misread, *RUN)
    assert re.match(
        r"ready  as stored 1\.\d\d, converted 2\.\d\d tokens per target step \(8 prompts", first(done)
    )
    assert "  SGLang 0.5.23, as stored: captures other layers than were trained on" in done.out
    assert following(done).startswith("eaglectl convert ") and "sglang.launch_server" in done.out
    assert " && python -m sglang.launch_server " in sentence(misread, *RUN)


def test_what_is_converted_drafts_as_the_original_did(automodel: Path) -> None:
    original = call("ready", TINY / "eagle3", *RUN, "--json").document["engines"][0]["stored"]
    converted = call("ready", automodel, *RUN, "--json").document["engines"][0]["converted"]
    assert converted["acceptance"]["acceptance_length"] == original["acceptance"]["acceptance_length"]


def test_without_out_nothing_is_kept_and_the_command_that_writes_it_is_printed(
    automodel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("ready", automodel, *RUN)
    assert list(tmp_path.iterdir()) == []
    written, _, serve = sentence(automodel, *RUN).partition("start it with: ")[2].partition(" && ")
    assert serve.startswith("vllm serve ") and following(done) == written and f"  {serve}\n" in done.out
    assert call(*shlex.split(written)[1:]).code == 0
    assert (tmp_path / "automodel-eagle3" / "eaglectl.json").is_file()


def test_a_second_call_takes_the_conversion_that_is_there(automodel: Path, tmp_path: Path) -> None:
    call("ready", automodel, *RUN, "-o", tmp_path / "out")
    before = (tmp_path / "out" / "config.json").stat().st_mtime_ns
    again = call("ready", automodel, *RUN, "-o", tmp_path / "out")
    assert first(again).startswith("ready  converted 2.")
    assert (tmp_path / "out" / "config.json").stat().st_mtime_ns == before


def test_a_folder_of_something_else_is_never_written_over(automodel: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    message = refusal(2, "ready", automodel, *RUN, "-o", tmp_path / "out")
    assert f"{tmp_path / 'out'} is there already, and is no conversion of {automodel}" in message
    assert "--force" not in message  # which ready does not have
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_what_only_the_user_knows_is_asked() -> None:
    message = refusal(2, "ready", FIXTURES / "producers/automodel/eagle3.1")
    assert (
        "--aux-layers 2,4,5" in message and "--target with the target's weights would measure it" in message
    )


def test_without_the_targets_weights_acceptance_is_said_not_to_be_measured() -> None:
    done = call("ready", FIXTURES / "producers/eagle/bin")
    assert done.code == 0
    assert first(done) == "ready  converted, acceptance not measured"
    assert "  not measured: the target's weights are not here\n" in done.out


def test_a_drafter_that_nothing_runs_is_not_ready(tmp_path: Path) -> None:
    geglu = drafter_folder(tmp_path, "geglu", config={"hidden_act": "gelu_pytorch_tanh"})
    done = call("ready", geglu)
    assert done.code == 1
    assert first(done).startswith("not ready  ")
    assert "no known release of any engine does" in " ".join(done.out.split())


def test_every_engine_that_is_asked_for_has_to_serve_it(tmp_path: Path) -> None:
    done = call("ready", TINY / "eagle3", "--engine", "vllm", "--engine", "llama.cpp==0.3.36", *RUN[:2])
    document = call("ready", TINY / "eagle3", "--engine", "vllm", "--engine", "llama.cpp", *RUN[:2], "--json")
    outcomes = {
        engine["engine"]: (engine["converted"] or engine["stored"])["outcome"]
        for engine in document.document["engines"]
    }
    assert set(outcomes) == {"vllm", "llama.cpp"}
    assert (done.code == 0) == all(outcome == "as trained" for outcome in outcomes.values())


def test_a_target_that_no_engine_is_known_to_capture_is_no_pass(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(TARGET, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((target / "config.json").read_text())
    config |= {"model_type": "foo_bar", "architectures": ["FooBarForCausalLM"]}
    (target / "config.json").write_text(json.dumps(config))
    done = call("ready", TINY / "eagle3", "--target", target)
    assert done.code in (1, 3)
    assert not done.out.startswith("ready") and "Start it" not in done.out and "serve" not in done.out


def test_a_dead_drafter_is_not_ready_and_its_cause_is_named(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    shutil.copytree(TINY / "eagle3", dead)
    config = json.loads((dead / "config.json").read_text())
    (dead / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e6}))
    done = call("ready", dead, *RUN[:4], "--max-tokens", "24", "--device", "cpu", "--json")
    assert done.code == 1
    assert done.document["verdict"] == "fail"
    assert done.document["line"].startswith("not ready  ")
    assert done.document["cause"]


def test_too_few_prompts_are_no_pass() -> None:
    done = call("ready", TINY / "eagle3", *RUN[:4], "--sample", "2", "--max-tokens", "4", "--device", "cpu")
    assert done.code == 3
    assert first(done).startswith("could not look  as stored ") and "(2 prompts, k=3)" in first(done)


@pytest.mark.parametrize("folder", [TINY / "eagle3", FIXTURES / "producers/eagle/bin"])
def test_the_document_is_as_its_schema_says(folder: Path) -> None:
    document = call("ready", folder, *(RUN if folder.parent == TINY else ()), "--json").document
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["line"].startswith("ready  ")


def test_a_preset_that_is_not_known_is_named_with_those_that_are() -> None:
    assert "vllm-mt-bench" in refusal(2, "ready", TINY / "eagle3", *RUN[:2], "--like", "mt-bench")


def test_a_preset_and_prompts_exclude_each_other() -> None:
    assert "leave --prompts out" in refusal(2, "ready", TINY / "eagle3", *RUN, "--like", "vllm-mt-bench")


def test_python_returns_what_the_command_prints() -> None:
    options = eaglectl.ReadyOptions(prompts=PROMPTS, sample=8, max_tokens=16, device="cpu")
    result = eaglectl.ready(str(TINY / "eagle3"), str(TARGET), None, options)
    assert result.verdict == eaglectl.CheckVerdict.PASS
    assert result.best is not None and result.best.engine == "vllm" and result.best.final is not None


def test_python_raises_what_only_the_user_knows() -> None:
    with pytest.raises(UsageError, match="--aux-layers"):
        eaglectl.ready(str(FIXTURES / "producers/automodel/eagle3.1"))


def test_a_server_alone_is_the_engine_that_was_asked_for_and_a_dead_one_was_not_looked_at() -> None:
    done = call("ready", TINY / "eagle3", *RUN, "--run-in", "http://127.0.0.1:9", "--json")
    assert done.code == 3
    assert [engine["engine"] for engine in done.document["engines"]] == ["http://127.0.0.1:9"]
    assert "cannot be reached" in done.document["line"]


def test_prompts_that_were_asked_for_and_cannot_be_read_are_no_pass(tmp_path: Path) -> None:
    done = call("ready", TINY / "eagle3", *RUN[:2], "--prompts", tmp_path / "none.jsonl")
    assert done.code == 3
    assert first(done) == "could not look  as stored, acceptance not measured"
    assert done.out.splitlines()[1] == f"  --prompts {tmp_path}/none.jsonl: No such file or directory"


def test_a_target_that_is_damaged_is_no_pass(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    with (target / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    done = call("ready", TINY / "eagle3", "--target", target)
    assert done.code == 3
    assert first(done).startswith("could not look  ") and done.out.splitlines()[1].startswith("  the target ")


def test_the_command_writes_the_layout_of_the_engine_and_makes_its_gguf_file(
    automodel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = call("ready", automodel, *RUN, "--engine", "llama.cpp", "-k", "2", "--json").document
    convert, made, server = document["line"].partition("start it with: ")[2].split(" && ")
    assert call(*shlex.split(convert)[1:]).code == 0
    place = tmp_path / "automodel-eagle3"
    assert json.loads((place / "eaglectl.json").read_text())["layout"] == "llama.cpp"
    assert made.startswith(f"python convert_hf_to_gguf.py {place.name} --target-model-dir {TARGET} ")
    assert server.startswith("llama-server ") and f"{place.name}.gguf" in server
    assert server.endswith(" --spec-draft-n-max 2 --metrics")
    again = document["engines"][0]["measure"]
    wanted = ("--run-in", "http://127.0.0.1:8080", "--prompts", PROMPTS, "--sample", 8, "--max-tokens", 16)
    given = ("eaglectl", "ready", place.name, *wanted, "--target", TARGET)
    assert shlex.split(again) == list(map(str, given))


def test_the_command_drafts_as_many_tokens_as_were_measured() -> None:
    line = sentence(TINY / "eagle3", *RUN, "-k", "2")
    assert "(8 prompts, k=2)" in line and '"num_speculative_tokens": 2' in line


def test_each_engine_that_was_asked_for_has_its_command() -> None:
    engines = ("--engine", "vllm", "--engine", "sglang", "--engine", "llama.cpp")
    done = call("ready", FIXTURES / "producers/angelslim/cosyvoice", *engines)
    assert following(done).startswith("eaglectl convert ")
    starts = done.out.partition("\nStart it\n")[2].splitlines()[:3]
    rows = [re.split(r"  +", line.strip()) for line in starts]
    assert [(row[0].split()[0], row[1].split()[0]) for row in rows] == [
        ("vLLM", "vllm"),
        ("SGLang", "python"),
        ("llama.cpp", "python"),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--engine-arg", "quantization=fp8"), "--engine-arg is for one engine that is installed here"),
        (("--engine", "vllm", "--engine-arg", "quantization=fp8"), "is installed here: name it with"),
        (("--engine", "sglang", "--engine-arg", "speculative_num_steps=7"), "use -k"),
        (("--tensor-parallel-size", "2"), "--tensor-parallel-size is for an installed vLLM or SGLang"),
        (("--tensor-parallel-size", "0"), "--tensor-parallel-size needs to be at least 1"),
    ],
)
def test_what_is_for_installed_engines_is_refused_without_one(given: tuple[str, ...], words: str) -> None:
    assert words in refusal(2, "ready", TINY / "eagle3", *RUN[:2], *given)


def test_an_engine_of_which_the_layers_alone_are_known_cannot_be_asked_for() -> None:
    message = refusal(3, "ready", FIXTURES / "producers/eagle/bin", "--engine", "tokenspeed")
    assert "read, not judged" in message and "smoke --run-in http://" in message


def again(*options: str | Path) -> list[str]:
    """What a second call took of the first."""
    return list(call("ready", *options, "--json").document["reused"])


def test_a_call_that_is_repeated_measures_nothing_again(misread: Path) -> None:
    asked = (misread, *RUN, "--engine", "sglang==0.5.23")
    first, second = (call("ready", *asked, "--json").document for _ in range(2))
    assert first["reused"] == []
    assert second["reused"] == [
        "as stored, in the reference, at the layers that SGLang 0.5.23 captures",
        "converted, in the reference",
    ]
    assert {**first, "reused": 0, "seconds": 0} == {**second, "reused": 0, "seconds": 0}


def test_a_call_that_is_told_so_measures_again() -> None:
    assert again(TINY / "eagle3", *RUN) == []
    assert again(TINY / "eagle3", *RUN, "--no-reuse") == []
    assert again(TINY / "eagle3", *RUN) == ["as stored, in the reference"]


def test_other_options_are_another_run() -> None:
    again(TINY / "eagle3", *RUN)
    for option in (("-k", "2"), ("--seed", "1"), ("--max-tokens", "12")):
        assert again(TINY / "eagle3", *RUN, *option) == []


def test_a_file_that_changed_is_another_run(tmp_path: Path) -> None:
    shutil.copytree(TINY / "eagle3", tmp_path / "drafter")
    shutil.copytree(TARGET, tmp_path / "target")
    shutil.copy(PROMPTS, tmp_path / "prompts.jsonl")
    asked = (tmp_path / "drafter", "--target", tmp_path / "target", "--prompts", tmp_path / "prompts.jsonl")
    again(*asked, *RUN[4:])
    weights, config, prompts = (
        tmp_path / name for name in ("drafter/model.safetensors", "target/config.json", "prompts.jsonl")
    )
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert again(*asked, *RUN[4:]) == []
    config.write_bytes(config.read_bytes() + b"\n")
    assert again(*asked, *RUN[4:]) == []
    prompts.write_bytes(prompts.read_bytes().replace(b"the", b"teh"))
    assert again(*asked, *RUN[4:]) == []


def test_the_cache_keeps_the_runs_that_were_used_last(cache: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(120):
        (cache / f"{number:064}.json").write_text("{}")
        os.utime(cache / f"{number:064}.json", (number, number))
    for other in ("mine.json", "mine.part"):
        (cache / other).write_text("")
        os.utime(cache / other, (0, 0))
    again(TINY / "eagle3", *RUN)
    names = sorted(path.name for path in cache.iterdir())
    assert len(names) == 102 and {"mine.json", "mine.part"} <= set(names)
    assert f"{20:064}.json" not in names and f"{21:064}.json" in names


def in_place(file: Path, change: Callable[[], object]) -> None:
    """Other bytes of the same size while the run goes on, and then the old ones again."""
    good = file.read_bytes()
    file.write_bytes(good[::-1])
    change()
    file.write_bytes(good)


def exchanged(file: Path, change: Callable[[], object]) -> None:
    """Another file while the run goes on, and then the old one again, with its times."""
    aside = file.rename(file.parent.parent / "aside")
    file.write_bytes(aside.read_bytes()[::-1])
    change()
    aside.replace(file)


@pytest.mark.parametrize("act", [in_place, exchanged])
def test_a_run_of_other_bytes_is_not_kept(
    act: Callable[[Path, Callable[[], object]], None], cache: Path, tmp_path: Path
) -> None:
    drafter, target = (drafter_folder(tmp_path / name) for name in ("a", "b"))
    weights, read = drafter / "model.safetensors", list[bytes]()

    def other() -> int:
        act(weights, lambda: read.append(weights.read_bytes()))
        return 1

    assert KeptRuns(target).get("run", drafter, (), other, int) == 1
    assert read != [weights.read_bytes()] and not cache.exists()
    assert KeptRuns(target).get("run", drafter, (), lambda: 2, int) == 2
    assert KeptRuns(target).get("run", drafter, (), lambda: 3, int) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_call_that_is_ended_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    source = FIXTURES / "producers/eagle/bin"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with paused("eaglectl.commands.ready.run.validate", "ready", source) as process:
        assert list(tmp_path.glob(".eaglectl.*.partial/files/converted/config.json"))
        process.send_signal(number)
        process.communicate(timeout=60)
    if number == signal.SIGKILL:  # the next call removes it
        assert call("ready", source).code == 0
    else:
        assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_the_result_is_an_image_of_its_own(tmp_path: Path) -> None:
    file, source = tmp_path / "ready.svg", tmp_path / "a <b> & c"
    shutil.copytree(FIXTURES / "producers/angelslim/ids", source)
    assert call("ready", source, "--target", FIXTURES / "target", "--page", file).code == 0
    lines = read_image(file.read_text())
    assert any("SGLang 0.5.23" in line and "fails" in line for line in lines)
    assert any(line.startswith("ready") and "acceptance not measured" in line for line in lines)
    assert "".join(str(source).split()) in "".join("".join(lines).split())


def test_the_result_is_markdown_that_keeps_its_command_whole(tmp_path: Path) -> None:
    file = tmp_path / "ready.md"
    asked = ("ready", FIXTURES / "producers/vllm/native", "--target", FIXTURES / "target")
    assert call(*asked, "--markdown", file).code == 0
    lines = file.read_text().splitlines()
    assert lines[0].startswith("## eaglectl ready: ready: ")
    assert any(line.startswith("    vllm serve ") and "--speculative-config" in line for line in lines)
    assert "is there already" in refusal(2, *asked, "--markdown", file)


def test_layers_that_an_engine_sorts_are_measured_in_its_order(tmp_path: Path) -> None:
    """fc's blocks are for boundaries 5, 2, 4, and get 2, 4, 5."""
    from safetensors.torch import load_file, save_file

    places = [shutil.copytree(TINY / "eagle3", tmp_path / name) for name in ("stored", "sorted")]
    config = json.loads((places[0] / "config.json").read_text())
    tensors = load_file(places[0] / "model.safetensors")
    first, second, third = tensors["fc.weight"].chunk(3, 1)
    tensors["fc.weight"] = torch.cat([third, first, second], 1)
    for place, ids in zip(places, ([4, 1, 3], [1, 3, 4]), strict=True):
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
        (place / "config.json").write_text(json.dumps(config))
        save_file(tensors, place / "model.safetensors", {"format": "pt"})
    done = call("ready", places[0], *RUN, "--engine", "sglang==0.5.23", "--json").document
    smoked = call("smoke", places[1], *RUN, "--run-in", "reference", "--json").document
    stored, converted = (done["engines"][0][side]["acceptance"] for side in ("stored", "converted"))
    assert stored["acceptance_length"] == smoked["acceptance_length"] < converted["acceptance_length"] - 0.5


@pytest.mark.parametrize(("installed", "release"), [("0.32.0", "0.32.0"), ("99.0", "99.0"), (None, "0.33.0")])
def test_an_engine_without_a_release_is_the_installed_one_which_can_be_measured(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, release: str
) -> None:
    for module in (readying, registry):
        monkeypatch.setattr(module, "installed_release", lambda engine: installed)
    done = eaglectl.ready(FIXTURES / "producers/vllm/bias", engines=("vllm",))
    assert [(state.engine, state.release) for state in done.engines] == [("vllm", release)]
