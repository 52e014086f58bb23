"""Published drafters whose authors measured the file as stored: the engine that they ran runs it so."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl import ServedAs
from eaglectl.commands.inspect.launch_line import inspected
from eaglectl.commands.ready import run as readying
from eaglectl.engines.engine import publication
from eaglectl.errors import UsageError
from eaglectl.formats import published, settling
from eaglectl.formats.published import PublishedDrafter, published_drafter, published_file
from eaglectl.formats.settling import config_digest
from tests.builders import Outcome, call
from tests.conftest import FIXTURES
from tests.hub import LoopbackHub, client_hub
from tests.published import ALL

KIMI, SERVED = "lightseekorg/kimi-k2.6-eagle3.1-mla", "nvidia/Kimi-K2.6-NVFP4"
ANGELSLIM, CODER = "AngelSlim/Qwen3-4B_eagle3", "lightseekorg/kimi-k2.7-coder-eagle3.1-mla"
MAVERICK = "RedHatAI/Llama4-Maverick-17B-128E-Instruct-speculator.eagle3"
FIGURE = "2.03x at concurrency 1 on SPEED-Bench coding, TP=4, GB200"
SPECULATIVE = json.dumps({"model": KIMI, "method": "eagle3", "num_speculative_tokens": 3})
BY_NAME = {drafter.name: drafter for drafter in ALL}
LISTED = published_file().drafters


def named(drafter: str, parent: Path, name: str | None = None, **keys: Any) -> tuple[Path, Path]:
    """A drafter as the Hub client's cache has it, under its name or another, and its target."""
    fixture, name = BY_NAME[drafter], name or drafter
    folder = parent / f"models--{name.replace('/', '--')}" / "snapshots" / ("0" * 40)
    folder.parent.mkdir(parents=True)
    return with_keys(fixture.folder(parent).rename(folder), **keys), fixture.target(parent)


def unnamed(drafter: str, parent: Path, **keys: Any) -> tuple[Path, Path]:
    """A drafter in a folder that has no name, and its target."""
    return with_keys(BY_NAME[drafter].folder(parent), **keys), BY_NAME[drafter].target(parent)


def with_keys(folder: Path, **keys: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return folder


def look(place: tuple[Path, Path], *engines: str, **options: Any) -> eaglectl.Inspection:
    return eaglectl.inspect(str(place[0]), target=str(place[1]), engines=engines, **options)


def asks(inspection: eaglectl.Inspection) -> list[str]:
    return [note.about for note in inspection.drafter.notes_at("question")]


def outcomes(place: tuple[Path, Path], *engines: str, **options: Any) -> list[ServedAs]:
    return [verdict.outcome for verdict in look(place, *engines, **options).requested]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub with the seeds' drafter and the target of their command."""
    with client_hub(monkeypatch, tmp_path) as running:
        folder = BY_NAME[KIMI].folder(tmp_path)
        files: dict[str, bytes | Path] = {"model.safetensors": folder / "model.safetensors"}
        running.add_repo(KIMI, {**files, "config.json": (folder / "config.json").read_bytes()})
        config = json.dumps(BY_NAME[KIMI].said["target"]["config"]).encode()
        running.add_repo(SERVED, {"config.json": config})
        yield running


def launched(*before: str) -> Outcome:
    options = ("--trust-remote-code", "--tensor-parallel-size", "4")
    return call(*before, "vllm", "serve", SERVED, *options, "--speculative-config", SPECULATIVE)


def test_the_seeds_launch_command_behind_inspect_ends_as_published(hub: LoopbackHub) -> None:
    done = launched("inspect")
    assert done.code == 0, done
    assert done.out.rstrip().splitlines()[-1].strip() == f"as published: {FIGURE}"
    assert done.err == "eaglectl: not looked at: --trust-remote-code --tensor-parallel-size 4\n"


def test_a_launch_command_has_a_document_too(hub: LoopbackHub) -> None:
    (engine,) = launched("inspect", "--json").document["engines"]
    assert (engine["engine"], engine["outcome"], engine["reasons"][0]) == ("vllm", "as published", FIGURE)


# the name given


@pytest.mark.parametrize("drafter", LISTED, ids=lambda drafter: drafter.name)
def test_by_its_name_none_asks_whose_authors_measured_it(drafter: PublishedDrafter, tmp_path: Path) -> None:
    place = named(drafter.name, tmp_path)
    assert asks(look(place)) == []
    assert asks(eaglectl.inspect(str(place[0]))) == []


@pytest.mark.parametrize("drafter", LISTED, ids=lambda drafter: drafter.name)
def test_the_engine_that_its_authors_ran_runs_it_as_they_did(
    drafter: PublishedDrafter, tmp_path: Path
) -> None:
    (figure, *_) = (one for one in drafter.figures if one.is_by_authors and one.engine_name)
    engine = str(figure.engine_name).lower()
    release = figure.release or figure.since
    (outcome,) = outcomes(named(drafter.name, tmp_path), f"{engine}=={release}" if release else engine)
    # a target's config settles for one how it was trained
    assert outcome == (ServedAs.AS_TRAINED if "GLM" in drafter.name else ServedAs.AS_PUBLISHED)


def test_another_engine_than_the_one_that_was_run_is_unknown(tmp_path: Path) -> None:
    vllm, sglang = look(named(KIMI, tmp_path), "vllm", "sglang").requested
    assert (vllm.outcome, sglang.outcome) == (ServedAs.AS_PUBLISHED, ServedAs.UNKNOWN)
    assert sglang.reasons[-1] == "its authors measured it in vLLM, not in SGLang"


def test_without_its_target_it_is_not_known_which_layers_are_captured(tmp_path: Path) -> None:
    (verdict,) = eaglectl.inspect(str(named(KIMI, tmp_path)[0]), engines=["vllm"]).requested
    assert verdict.outcome == ServedAs.UNKNOWN


def test_a_release_that_reads_the_file_otherwise_differs(tmp_path: Path) -> None:
    older = look(named(KIMI, tmp_path), "vllm==0.22.0").requested[0]
    assert (older.outcome, older.reasons) == (ServedAs.DIFFERS, ("loads fc_norm and never applies it",))


def test_a_later_release_with_other_layers_differs_and_the_one_that_was_run_does_not(tmp_path: Path) -> None:
    place = named(MAVERICK, tmp_path)
    assert outcomes(place, "vllm==0.11.0", "vllm") == [ServedAs.AS_PUBLISHED, ServedAs.DIFFERS]


def test_gpt_oss_hands_on_its_last_state_in_sglang_since_0_5_17(tmp_path: Path) -> None:
    place = named("nvidia/gpt-oss-120b-Eagle3-v3", tmp_path)
    assert outcomes(place, "sglang==0.5.16", "sglang") == [ServedAs.DIFFERS, ServedAs.AS_PUBLISHED]


@pytest.mark.parametrize("key", [{"rope_theta": 40000.0}, {"fc_norm": None}, {"kv_lora_rank": 256}])
def test_a_copy_with_one_other_public_key_is_not_as_published(key: dict[str, Any]) -> None:
    config = {**BY_NAME[KIMI].said["config"], **key}
    assert published_drafter(KIMI, config_digest(config), config) is None


def test_a_repository_whose_base_was_changed_is_asked_about(tmp_path: Path) -> None:
    place = named(ANGELSLIM, tmp_path, rope_theta=500000)
    assert asks(look(place)) == ["rope_theta"]
    assert outcomes(place, "vllm") == [ServedAs.UNKNOWN]


def test_a_copy_under_another_name_is_asked_about(tmp_path: Path) -> None:
    assert asks(look(named(ANGELSLIM, tmp_path, "somebody/Qwen3-4B_eagle3"))) == ["rope_theta"]


def test_a_folder_without_a_name_is_asked_about(tmp_path: Path) -> None:
    assert asks(look(unnamed(KIMI, tmp_path))) == ["rope_theta"]


def test_for_another_target_it_is_not_what_was_measured(tmp_path: Path) -> None:
    folder, target = named(ANGELSLIM, tmp_path)
    other = tmp_path / "models--Qwen--Qwen3-4B-Base" / "snapshots" / ("0" * 40)
    other.parent.mkdir(parents=True)
    assert asks(look((folder, target.rename(other)))) == ["rope_theta"]


# a folder whose whole config is public


def with_public_config(monkeypatch: pytest.MonkeyPatch, name: str, config: Mapping[str, Any]) -> None:
    """Put the digest of a whole config into the entry of one drafter."""
    digest = config_digest(config)
    changed = tuple(
        replace(drafter, config=digest) if drafter.name == name else drafter for drafter in LISTED
    )
    file = replace(published_file(), drafters=changed)
    monkeypatch.setattr(published, "published_file", lambda: file)


@pytest.fixture
def public_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of drafters, with the digest of one's whole config."""
    with_public_config(monkeypatch, ANGELSLIM, BY_NAME[ANGELSLIM].said["config"])


@pytest.mark.usefixtures("public_config")
def test_a_folder_without_a_name_is_known_by_the_digest_of_its_config(tmp_path: Path) -> None:
    place = unnamed(ANGELSLIM, tmp_path)
    assert asks(look(place)) == []
    assert outcomes(place, "vllm") == [ServedAs.AS_PUBLISHED]


@pytest.mark.usefixtures("public_config")
def test_with_one_other_key_its_digest_is_another(tmp_path: Path) -> None:
    place = unnamed(ANGELSLIM, tmp_path, initializer_range=0.01)
    assert asks(look(place)) == ["rope_theta"]
    assert outcomes(place, "vllm") == [ServedAs.UNKNOWN]


@pytest.mark.usefixtures("public_config")
def test_a_repository_of_another_name_is_not_known_by_its_digest(tmp_path: Path) -> None:
    assert asks(look(named(ANGELSLIM, tmp_path, "somebody/a-finetune"))) == ["rope_theta"]


# what stays wrong, and what the user says


def test_a_file_with_an_error_is_not_as_published(tmp_path: Path) -> None:
    folder, target = named(ANGELSLIM, tmp_path, hidden_size=2048)
    assert ServedAs.AS_PUBLISHED not in {verdict.outcome for verdict in look((folder, target)).verdicts}


def test_layers_that_a_release_is_known_to_capture_otherwise_stay_wrong(tmp_path: Path) -> None:
    place = named("lmsys/EAGLE3-gpt-oss-120b-bf16", tmp_path)
    assert outcomes(place, "vllm", "sglang") == [ServedAs.DIFFERS, ServedAs.AS_TRAINED]


def test_an_answer_of_the_user_is_taken_before_what_was_published(tmp_path: Path) -> None:
    inspection = look(named(ANGELSLIM, tmp_path), "vllm", semantics={"rope": "10000"})
    assert [entry.by for entry in inspection.drafter.settled] == ["given"]
    assert inspection.requested[0].outcome == ServedAs.DIFFERS


def test_half_an_answer_is_not_replaced(tmp_path: Path) -> None:
    inspection = look(named(KIMI, tmp_path), semantics={"rope": "plain"})
    assert asks(inspection) == ["rope_theta"]


# other commands


def test_validate_passes_with_what_was_published_and_not_for_another_engine(tmp_path: Path) -> None:
    folder, target = named(ANGELSLIM, tmp_path)
    options = ("--target", target, "--headers-only", "--json")
    done = call("validate", folder, "--engine", "vllm", *options)
    assert done.code == 0, done.out
    (release,) = done.document["releases"]
    assert release["verdict"] == "pass"
    assert release["reasons"][0].startswith("acceptance length 2.07 on gsm8k")
    (folder, target) = named(KIMI, tmp_path / "other")
    done = call("validate", folder, "--engine", "sglang", "--target", target, "--headers-only", "--json")
    assert (done.code, done.document["verdict"]) == (3, "could-not-look")


def test_convert_keeps_what_is_stored_without_an_answer(tmp_path: Path) -> None:
    folder, target = named(ANGELSLIM, tmp_path)
    options = eaglectl.ConvertOptions(target=str(target), layout="sglang", dry_run=True)
    plan = eaglectl.convert(str(folder), None, options).plan
    assert plan.config["rope_theta"] == 1000000
    (entry,) = plan.drafter.settled
    assert (entry.by, entry.answer.value) == ("published", "rope=stored")


@pytest.fixture
def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `convert` writes of a small drafter whose config stands for a published one's."""
    source = FIXTURES / "producers/lightseekorg/mla"
    config = json.loads((source / "config.json").read_text())
    with_public_config(monkeypatch, "lightseekorg/kimi-k2.6-eagle3-mla", config)
    done = eaglectl.convert(source, tmp_path / "out", target=str(FIXTURES / "target"))
    assert {row.verdict.outcome for row in done.serving if row.verdict.engine == "vllm"} == {ServedAs.UNKNOWN}
    return tmp_path / "out"


def test_what_convert_writes_has_the_stored_base_and_asks_nothing(converted: Path) -> None:
    assert json.loads((converted / "config.json").read_text())["rope_theta"] == 50000.0
    (entry,) = json.loads((converted / "eaglectl.json").read_text())["settled"]
    assert entry["by"] == "published" and entry["evidence"].startswith(
        "lightseekorg/kimi-k2.6-eagle3-mla: vLLM"
    )
    assert asks(look((converted, FIXTURES / "target"))) == []


def test_what_convert_writes_was_measured_by_nobody(converted: Path) -> None:
    assert outcomes((converted, FIXTURES / "target"), "vllm") == [ServedAs.UNKNOWN]
    assert call("validate", converted, "--target", FIXTURES / "target").code == 3


def test_an_answer_settles_what_convert_wrote(converted: Path) -> None:
    done = outcomes((converted, FIXTURES / "target"), "vllm", semantics={"rope": "stored"})
    assert done == [ServedAs.AS_TRAINED]


def test_what_others_measured_stands_beside_it(tmp_path: Path) -> None:
    folder, target = named(ANGELSLIM, tmp_path)
    shown = " ".join(call("inspect", "-v", folder, "--target", target).out.split())
    assert "others, as stored: acceptance length 2.387 on sharegpt" in shown
    assert "others, rope base 10000: acceptance length 2.497 on sharegpt" in shown
    assert "(sfllm, 2026-09-09, https://github.com/wejoncy/sfllm/pull/32)" in shown


def test_whose_authors_measured_it_is_in_the_list() -> None:
    measured = {figure.drafter for figure in published_file().figures if figure.is_by_authors}
    assert measured == {drafter.name for drafter in LISTED}


def test_ready_starts_it_as_published_and_converts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_weights(*arguments: Any, headers_only: bool) -> Any:
        assert not headers_only
        return inspect_files(*arguments, headers_only=True)

    inspect_files = readying.inspect_files
    monkeypatch.setattr(readying, "inspect_files", without_weights)  # the fixture's are zeros
    folder, target = named(KIMI, tmp_path)
    done = call("ready", folder, "--target", target, "--engine", "vllm")
    assert done.code == 0, done
    assert f"as published ({FIGURE})" in " ".join(done.out.split())
    assert "vllm serve" in done.out and "eaglectl convert" not in done.out


# releases that a figure can be of


def test_a_release_is_as_published_where_the_one_that_was_run_reads_alike() -> None:
    found = publication(CODER, "SGLang", ("0.5.14", "0.5.23"), lambda release: release == "0.5.14")
    assert found[0] and found[1] == ""


def test_a_release_that_reads_otherwise_than_the_one_that_was_run_is_not() -> None:
    found = publication(CODER, "SGLang", ("0.5.14", "0.5.23"), lambda release: release == "0.5.23")
    assert found[1].endswith("and 0.5.14 reads it otherwise")


def test_of_a_release_that_is_not_known_nothing_follows() -> None:
    found = publication(CODER, "SGLang", ("0.5.23",), lambda _: True)
    assert found[1].endswith("and what that release reads is not known")


def test_where_no_release_is_stated_all_since_must_read_alike() -> None:
    releases = ("0.22.0", "0.23.0", "0.33.0")
    assert publication(KIMI, "vLLM", releases, lambda release: release != "0.22.0")[1] == ""
    found = publication(KIMI, "vLLM", releases, lambda release: release != "0.33.0")
    assert found[1].endswith("and 0.33.0 reads it otherwise")


# the list


@pytest.mark.parametrize("drafter", LISTED, ids=lambda drafter: drafter.name)
def test_each_of_the_list_has_a_figure_of_its_authors_in_an_engine(drafter: PublishedDrafter) -> None:
    figures = [figure for figure in drafter.figures if figure.is_by_authors and figure.engine_name]
    assert figures and all(figure.url and (figure.lengths or figure.speedups) for figure in figures)
    assert {figure.target for figure in figures} <= set(drafter.targets)


@pytest.mark.parametrize("drafter", LISTED, ids=lambda drafter: drafter.name)
def test_what_is_public_of_each_stands_in_its_fixture(drafter: PublishedDrafter) -> None:
    config = BY_NAME[drafter.name].said["config"]
    assert published_drafter(drafter.name, "", config) == drafter
    assert drafter.keys.keys() & {"rope_theta", "eagle_aux_hidden_state_layer_ids"} or "eagle_config" in str(
        drafter.keys
    )


def test_no_drafter_is_listed_twice_or_known_otherwise() -> None:
    names = [drafter.name for drafter in LISTED]
    assert len(set(names)) == len(names)
    assert not set(names) & set(settling.known_drafters())


# the command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vllm", "serve"], "names no target"),
        (["vllm", "serve", "--port", "8000", "T"], "names no target"),
        (["vllm", "serve", "T"], "has no --speculative-config"),
        (["vllm", "serve", "T", "--speculative-config"], "has no --speculative-config"),
        (["vllm", "serve", "T", "--speculative-config", "{model:"], "quote it as one word"),
        (["vllm", "serve", "T", "--speculative-config", "[1]"], "a JSON object was expected"),
        (["vllm", "serve", "T", "--speculative-config", '{"method": "ngram"}'], "names no drafter"),
        (["vllm", "serve", "T", "--speculative-config", '{"model": 5}'], "names no drafter"),
    ],
)
def test_a_command_that_serves_no_drafter_is_a_usage_error(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inspected(["inspect", *words])
    assert call("inspect", *words).code == 2


@pytest.mark.parametrize("option", ["--speculative-config", "--speculative_config", "-sc"])
def test_a_command_is_the_drafter_for_its_target_in_vllm(option: str) -> None:
    config = '{"model": "org/d", "revision": "abc"}'
    wanted = ["inspect", "--json", "org/d@abc", "--target", "org/t", "--engine", "vllm"]
    assert inspected(["inspect", "--json", "vllm", "serve", "org/t", option, config]) == wanted
    assert inspected(["inspect", "--json", "vllm", "serve", "org/t", f"{option}={config}"]) == wanted


def test_folders_of_these_names_are_checkpoints() -> None:
    assert inspected(["inspect", "./vllm", "./serve"]) == ["inspect", "./vllm", "./serve"]
