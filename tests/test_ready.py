"""`ready`: from a trainer's folder to a serving command, in one call."""

import json
import os
import re
import shlex
import shutil
import signal
import tempfile
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.api.convert import OpenQuestions  # noqa: E402
from eaglectl.commands.ready import run as readying  # noqa: E402
from eaglectl.commands.ready.run import last_line  # noqa: E402
from eaglectl.engines import registry  # noqa: E402
from eaglectl.results import ServedFiles  # noqa: E402
from eaglectl.run.results import Reason, SmokeReport  # noqa: E402
from eaglectl.target.choice import as_target  # noqa: E402
from eaglectl.verdicts import ServedAs  # noqa: E402
from tests.builders import SGLANG, VLLM, Outcome, call, changed, drafter_folder, refusal  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.faults.processes import paused  # noqa: E402
from tests.measurements import EAGLE3, report, worse  # noqa: E402
from tests.tiny import PROMPTS, TARGET, TINY  # noqa: E402

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/ready.schema.json").read_text())
)
RUN = ("--target", TARGET, "--prompts", PROMPTS, "--sample", "8", "--max-tokens", "16", "--device", "cpu")


def first(done: Outcome) -> str:
    return done.out.splitlines()[0]


def following(done: Outcome) -> str:
    """The command to run next, whole."""
    (line,) = [line for line in done.out.splitlines() if line.startswith("next: ")]
    return line.removeprefix("next: ").strip()


@pytest.fixture(scope="module")
def automodel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny drafter in NeMo Automodel's layout, which no engine reads."""
    place = tmp_path_factory.mktemp("ready") / "automodel"
    call("convert", TINY / "eagle3", "--for", "automodel", "--target", TARGET, "-o", place)
    return place


def test_a_drafter_that_is_right_as_stored_is_not_converted(tmp_path: Path) -> None:
    done = call("ready", TINY / "eagle3", *RUN, "-o", tmp_path / "out", "--json")
    assert done.code == 0
    SCHEMA.validate(done.document)
    line = done.document["line"]
    assert re.match(
        r"pass: ready: as stored 2\.\d\d .*\(8 prompts, k=3\); nothing was written to \S+out: ", line
    )
    assert line.partition(" as it is stored; start it with: ")[2].startswith("vllm serve ")
    assert not (tmp_path / "out").exists()


def test_a_drafter_that_no_engine_reads_is_converted_measured_and_started_once(
    automodel: Path, tmp_path: Path
) -> None:
    """A second call takes the conversion that is there."""
    out = tmp_path / "out"
    done = call("ready", automodel, *RUN, "-o", out)
    assert done.code == 0 and first(done).startswith("pass: ready: converted 2.")
    assert json.loads(shlex.split(following(done))[-1])["model"] == str(out)
    assert call("validate", out, "--target", TARGET).code == 0
    before = (out / "config.json").stat().st_mtime_ns
    again = call("ready", automodel, *RUN, "-o", out)
    assert first(again) == first(done) and (out / "config.json").stat().st_mtime_ns == before


def test_what_one_engine_reads_otherwise_is_measured_as_it_reads_it_and_needs_a_conversion(
    tmp_path: Path,
) -> None:
    """Of nested ids that are boundaries, to which SGLang adds one; vLLM does not."""
    misread = tmp_path / "misread"
    call("convert", TINY / "eagle3", "--for", "lightseekorg", "--target", TARGET, "-o", misread)
    (misread / "eaglectl.json").unlink()
    done = call("ready", misread, *RUN)
    assert re.match(r"pass: ready: as stored 1\.\d\d, converted 2\.\d\d tokens per", first(done))
    assert f"  SGLang {SGLANG}, as stored: captures other layers than were trained on" in done.out
    assert following(done).startswith("eaglectl convert ")
    document = call("ready", misread, *RUN, "--engine", f"sglang=={SGLANG}", "--json").document
    (engine,) = document["engines"]
    place = tmp_path / "otherwise"
    layers = ("--aux-layers", "3,5,6", "--aux-convention", "boundary")
    assert call("convert", TINY / "eagle3", *layers, "--target", TARGET, "-o", place).code == 0
    smoked = call("smoke", place, *RUN, "--run-in", "reference", "--json").document
    lengths = [engine[part]["acceptance"]["acceptance_length"] for part in ("stored", "converted")]
    assert smoked["acceptance_length"] == lengths[0] < lengths[1]
    assert engine["stored"]["reading"] == f"at the layers that SGLang {SGLANG} captures"
    assert "; start it with: eaglectl convert " in document["line"]
    assert " && python -m sglang.launch_server " in document["line"]
    gain = engine["gain"]
    assert gain["value"] == pytest.approx(lengths[1] / lengths[0]) and gain["interval"][0] > 1
    assert gain["prompts_needed"] == 8


def judged(
    stored: SmokeReport, converted: SmokeReport | None = None, served: ServedAs = ServedAs.AS_TRAINED
) -> eaglectl.Readiness:
    """The verdict of one engine's runs, of which the stored files are `served`."""
    files, output = ServedFiles(served, report=stored), ServedFiles(ServedAs.AS_TRAINED, report=converted)
    state = eaglectl.EngineReadiness("sglang", SGLANG, files, output if converted else None, "serve")
    result = eaglectl.Readiness("a", eaglectl.inspect(TINY / "eagle3"), (state,))
    options = eaglectl.ReadyOptions(sample=32)
    work = readying._Work("a b", as_target("target"), (), options, OpenQuestions(options.answers), None)
    return work.judged(result)


GOOD, BAD = report(EAGLE3[:24]), report(worse(EAGLE3[:24], 0.5))
WEAK = report([replace(one, accepted=tuple(count // 4 for count in one.accepted)) for one in EAGLE3[:24]])
DEAD = replace(GOOD, reasons=(Reason("failure", "dead drafter: 1.00"),))
ALIKE = "k=3); the prompts do not tell the two apart; "


@pytest.mark.parametrize(
    ("stored", "converted", "served", "words"),
    [
        (BAD, GOOD, "differs", "pass: ready: .*(24 prompts, k=3); start it"),
        (report(EAGLE3[72:96]), GOOD, "differs", f"pass: ready: .*{ALIKE}about 71 would; start it"),
        (GOOD, GOOD, "differs", f"pass: ready: .*{ALIKE}start it"),
        (GOOD, BAD, "as trained", f"fail: .*the conversion drafts worse in SGLang {SGLANG}.*keep the stored"),
        (BAD, GOOD, "as trained", "pass: ready: "),
        (GOOD, GOOD, "as trained", "pass: ready: "),
        (GOOD, None, "as trained", "pass: ready: "),
        (WEAK, None, "as trained", "pass: .*accepted.*eaglectl diagnose 'a b' --sample 32 --target target"),
        (DEAD, None, "as trained", "fail: not ready: .*dead drafter: 1.00"),
    ],
)
def test_the_last_line_judges_what_was_measured(
    stored: SmokeReport, converted: SmokeReport | None, served: str, words: str
) -> None:
    line = last_line(judged(stored, converted, ServedAs(served)))
    assert re.match(words.replace("(", r"\(").replace(")", r"\)"), line), line
    assert ("diagnose" in line) == (stored is WEAK)


def test_a_folder_of_something_else_is_never_written_over(automodel: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    message = refusal(2, "ready", automodel, *RUN, "-o", tmp_path / "out")
    assert f"{tmp_path / 'out'} exists already and is not a conversion of {automodel}" in message
    assert "--force" not in message  # which ready does not have
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_without_the_targets_weights_acceptance_is_said_not_to_be_measured() -> None:
    source = FIXTURES / "producers/eagle/bin"
    done = call("ready", source)
    assert done.code == 0
    assert first(done) == "pass: ready: converted, acceptance not measured"
    assert "  not measured: the target's weights are not here\n" in done.out
    result = eaglectl.ready(source)
    SCHEMA.validate(result.to_dict())
    assert result.verdict == "pass" and result.to_dict()["line"].startswith(first(done))


def test_a_drafter_that_nothing_runs_is_not_ready(tmp_path: Path) -> None:
    geglu = drafter_folder(tmp_path, "geglu", config={"hidden_act": "gelu_pytorch_tanh"})
    done = call("ready", geglu)
    assert done.code == 1
    assert first(done).startswith("fail: not ready: ")
    assert "no known release of any engine does" in " ".join(done.out.split())


def test_a_target_that_no_engine_is_known_to_capture_is_no_pass(tmp_path: Path) -> None:
    config = changed(TARGET, model_type="foo_bar", architectures=["FooBarForCausalLM"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = call("ready", TINY / "eagle3", "--target", tmp_path)
    assert done.code in (1, 3)
    assert not done.out.startswith("pass") and "Start it" not in done.out and "serve" not in done.out


@pytest.mark.slow
def test_a_dead_drafter_is_not_ready_and_its_cause_is_named(tmp_path: Path) -> None:
    dead = shutil.copytree(TINY / "eagle3", tmp_path / "dead")
    (dead / "config.json").write_text(json.dumps(changed(dead, rms_norm_eps=1e6)))
    done = call("ready", dead, *RUN[:4], "--max-tokens", "24", "--device", "cpu", "--json")
    assert done.code == 1
    assert done.document["verdict"] == "fail"
    assert done.document["line"].startswith("fail: not ready: ")
    assert done.document["cause"]


FEW, NONE = ("--sample", "2", "--max-tokens", "4"), ("--prompts", "none.jsonl")


@pytest.mark.parametrize(
    ("given", "head", "words"),
    [
        ((*RUN, *FEW), r"as stored 2\.\d\d .*\(2 prompts, k=3\)", ""),
        ((*RUN[:2], *NONE), "as stored, acceptance not measured", "  --prompts none.jsonl: No such file or"),
        (("--target", "damaged"), "", "  the target "),
        ((*RUN, "--run-in", "http://127.0.0.1:9"), "", r"  http://127.0.0.1:9.* cannot be reached"),
    ],
    ids=["too few prompts", "no prompts", "a damaged target", "a dead server"],
)
def test_what_cannot_be_measured_is_no_pass(
    given: tuple[object, ...], head: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TARGET, "damaged")
    os.truncate("damaged/model.safetensors", 1000)
    done = call("ready", TINY / "eagle3", *given)
    assert done.code == 3
    assert re.match(f"could not look: {head}", first(done)) and re.match(words, done.out.splitlines()[1])


def test_a_server_alone_is_the_engine_that_was_asked_for() -> None:
    document = call("ready", TINY / "eagle3", *RUN, "--run-in", "http://127.0.0.1:9", "--json").document
    assert [engine["engine"] for engine in document["engines"]] == ["http://127.0.0.1:9"]


def test_nothing_is_kept_and_the_command_writes_the_layout_of_the_engine_and_makes_its_gguf_file(
    automodel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = call("ready", automodel, *RUN, "--engine", "llama.cpp", "-k", "2", "--json").document
    assert list(tmp_path.iterdir()) == []
    convert, made, server = document["line"].partition("start it with: ")[2].split(" && ")
    assert call(*shlex.split(convert)[1:]).code == 0
    place = tmp_path / "automodel-eagle3"
    assert json.loads((place / "eaglectl.json").read_text())["layout"] == "llama.cpp"
    assert made.startswith(f"python convert_hf_to_gguf.py {place.name} --target-model-dir {TARGET} ")
    assert server.startswith("llama-server ") and f"{place.name}.gguf" in server
    assert server.endswith(" --spec-draft-n-max 2 --metrics")


def test_each_engine_that_was_asked_for_has_its_command() -> None:
    engines = ("--engine", "vllm", "--engine", "sglang", "--engine", "llama.cpp")
    done = call("ready", FIXTURES / "producers/angelslim/cosyvoice", *engines)
    assert following(done).startswith("eaglectl convert ")
    starts = done.out.partition("\nStart it")[2].splitlines()[1:4]
    rows = [re.split(r"  +", line.strip()) for line in starts]
    assert [(row[0].split()[0], row[1].split()[0]) for row in rows] == [
        ("vLLM", "vllm"),
        ("SGLang", "python"),
        ("llama.cpp", "python"),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--engine-arg", "quantization=fp8"), "--engine-arg is for one installed engine"),
        (("--engine", "vllm", "--engine-arg", "quantization=fp8"), "is for one installed engine: pass"),
        (("--engine", "sglang", "--engine-arg", "speculative_num_steps=7"), "use -k"),
        (("--tensor-parallel-size", "0"), "--tensor-parallel-size needs to be at least 1"),
        (("--engine", "tokenspeed"), r"read, not judged.* smoke --run-in http://"),
    ],
)
def test_what_is_for_installed_or_judged_engines_is_refused_for_others(
    given: tuple[str, ...], words: str
) -> None:
    code = 3 if "tokenspeed" in given else 2
    assert re.search(words, refusal(code, "ready", TINY / "eagle3", *RUN[:2], *given))


def test_what_only_the_user_knows_is_asked() -> None:
    message = refusal(2, "ready", FIXTURES / "producers/automodel/eagle3.1")
    assert re.search(r"--aux-layers 2,4,5.* pass --target with the target's weights to measure it", message)


@pytest.mark.fast(1)
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


def test_the_result_is_markdown_that_keeps_its_command_whole(tmp_path: Path) -> None:
    file = tmp_path / "ready.md"
    asked = ("ready", FIXTURES / "producers/vllm/native", "--target", FIXTURES / "target")
    assert call(*asked, "--markdown", file).code == 0
    lines = file.read_text().splitlines()
    assert lines[0].startswith("## eaglectl ready: ready: ")
    assert any(line.startswith("    vllm serve ") and "--speculative-config" in line for line in lines)
    assert "exists already" in refusal(2, *asked, "--markdown", file)


@pytest.mark.slow
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
    done = call("ready", places[0], *RUN, "--engine", f"sglang=={SGLANG}", "--json").document
    smoked = call("smoke", places[1], *RUN, "--run-in", "reference", "--json").document
    stored, converted = (done["engines"][0][side]["acceptance"] for side in ("stored", "converted"))
    assert stored["acceptance_length"] == smoked["acceptance_length"] < converted["acceptance_length"] - 0.5


@pytest.mark.parametrize(("installed", "release"), [("0.32.0", "0.32.0"), ("99.0", "99.0"), (None, VLLM)])
def test_an_engine_without_a_release_is_the_installed_one_which_can_be_measured(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, release: str
) -> None:
    for module in (readying, registry):
        monkeypatch.setattr(module, "installed_release", lambda engine: installed)
    done = eaglectl.ready(FIXTURES / "producers/vllm/bias", engines=("vllm",))
    assert [(state.engine, state.release) for state in done.engines] == [("vllm", release)]
