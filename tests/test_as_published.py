"""Published drafters whose authors measured the file as stored: the engine that they ran runs it so."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl import ServedAs
from eaglectl.commands.ready import run as readying
from eaglectl.formats import published
from eaglectl.formats.published import PublishedDrafter, config_digest, published_drafter, published_file
from tests.builders import call
from tests.conftest import FIXTURES
from tests.hub import client_hub
from tests.published import ALL

KIMI, SERVED = "lightseekorg/kimi-k2.6-eagle3.1-mla", "nvidia/Kimi-K2.6-NVFP4"
ANGELSLIM, CODER = "AngelSlim/Qwen3-4B_eagle3", "lightseekorg/kimi-k2.7-coder-eagle3.1-mla"
MAVERICK = "RedHatAI/Llama4-Maverick-17B-128E-Instruct-speculator.eagle3"
GPT_OSS = "nvidia/gpt-oss-120b-Eagle3-v3"
FIGURE = "2.03x on SPEED-Bench coding"
BY_NAME = {drafter.name: drafter for drafter in ALL}
LISTED = [drafter for drafter in published_file().drafters if not drafter.source]


@pytest.fixture(autouse=True)
def patch() -> Iterator[pytest.MonkeyPatch]:
    """What puts the Hub client's cache where a test has it."""
    with pytest.MonkeyPatch.context() as patch:
        PATCHES.append(patch)
        yield patch
        PATCHES.clear()


PATCHES: list[pytest.MonkeyPatch] = []


def named(drafter: str, parent: Path, **keys: Any) -> tuple[Path, Path]:
    """A drafter as the Hub client's cache has it, which knows its name, and its target."""
    PATCHES[0].setattr("huggingface_hub.constants.HF_HUB_CACHE", str(parent))
    fixture = BY_NAME[drafter]
    folder = parent / f"models--{drafter.replace('/', '--')}" / "snapshots" / ("0" * 40)
    folder.parent.mkdir(parents=True)
    fixture.folder(parent).rename(folder)
    (folder / "config.json").write_text(json.dumps({**fixture.said["config"], **keys}))
    return folder, fixture.target(parent)


def look(place: tuple[Path, Path], *engines: str, **options: Any) -> eaglectl.Inspection:
    return eaglectl.inspect(str(place[0]), target=str(place[1]), engines=engines, **options)


def asks(inspection: eaglectl.Inspection) -> list[str]:
    return [note.about for note in inspection.drafter.notes_at("question")]


def outcomes(place: tuple[Path, Path], *engines: str, **options: Any) -> list[ServedAs]:
    return [verdict.outcome for verdict in look(place, *engines, **options).requested]


def test_the_seeds_pair_ends_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_hub(monkeypatch, tmp_path) as hub:
        folder = BY_NAME[KIMI].folder(tmp_path)  # its weights are zeros that no disk has: a path, not bytes
        files: dict[str, bytes | Path] = {path.name: path for path in folder.iterdir()}
        hub.add_repo(KIMI, files | {"config.json": (folder / "config.json").read_bytes()})
        hub.add_repo(SERVED, BY_NAME[KIMI].target(tmp_path))
        done = call("inspect", KIMI, "--target", SERVED, "--engine", "vllm")
    assert done.code == 0, done
    assert done.out.rstrip().splitlines()[-1].strip() == f"as published: {FIGURE}"


@pytest.mark.fast(6)
@pytest.mark.parametrize("drafter", LISTED, ids=lambda drafter: drafter.name)
def test_by_its_name_none_asks_and_the_engine_that_its_authors_ran_runs_it_as_they_did(
    drafter: PublishedDrafter, tmp_path: Path
) -> None:
    (figure, *_) = (one for one in drafter.figures if one.is_by_authors and one.engine_name)
    engine = str(figure.engine_name).lower()
    release = figure.release or figure.since
    place = named(drafter.name, tmp_path)
    inspection = look(place, f"{engine}=={release}" if release else engine)
    assert asks(inspection) == asks(eaglectl.inspect(str(place[0]))) == []
    # a target's config settles for one how it was trained
    expected = ServedAs.AS_TRAINED if "GLM" in drafter.name else ServedAs.AS_PUBLISHED
    assert [verdict.outcome for verdict in inspection.requested] == [expected]


@pytest.mark.parametrize(
    ("name", "engines", "expected"),
    [
        (MAVERICK, ("vllm==0.11.0", "vllm"), [ServedAs.AS_PUBLISHED, ServedAs.DIFFERS]),
        # gpt-oss hands on its last state in SGLang since 0.5.17
        (GPT_OSS, ("sglang==0.5.16", "sglang"), [ServedAs.DIFFERS, ServedAs.AS_PUBLISHED]),
        ("lmsys/EAGLE3-gpt-oss-120b-bf16", ("vllm", "sglang"), [ServedAs.DIFFERS, ServedAs.AS_TRAINED]),
    ],
)
def test_a_release_with_other_layers_differs_and_the_one_that_was_run_does_not(
    name: str, engines: tuple[str, ...], expected: list[ServedAs], tmp_path: Path
) -> None:
    assert outcomes(named(name, tmp_path), *engines) == expected


@pytest.mark.parametrize("key", [{"rope_theta": 40000.0}, {"fc_norm": None}, {"kv_lora_rank": 256}])
def test_a_copy_with_one_other_public_key_is_not_as_published(key: dict[str, Any]) -> None:
    config = {**BY_NAME[KIMI].said["config"], **key}
    assert published_drafter(KIMI, config) is None


def test_a_repository_whose_base_was_changed_or_for_another_target_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "changed").mkdir()
    place = named(ANGELSLIM, tmp_path / "changed", rope_theta=500000)
    assert asks(look(place)) == ["rope_theta"]
    assert outcomes(place, "vllm") == [ServedAs.UNKNOWN]
    folder, target = named(ANGELSLIM, tmp_path)
    other = tmp_path / "models--Qwen--Qwen3-4B-Base" / "snapshots" / ("0" * 40)
    other.parent.mkdir(parents=True)
    assert asks(look((folder, target.rename(other)))) == ["rope_theta"]


def with_public_config(monkeypatch: pytest.MonkeyPatch, name: str, config: Mapping[str, Any]) -> None:
    """Put the digest of a whole config into the entry of one drafter."""
    digest = config_digest(config)
    changed = tuple(
        replace(drafter, config=digest) if drafter.name == name else drafter for drafter in LISTED
    )
    file = replace(published_file(), drafters=changed)
    monkeypatch.setattr(published, "published_file", lambda: file)


def test_a_folder_without_a_name_is_asked_about_unless_its_whole_config_is_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = BY_NAME[ANGELSLIM].folder(tmp_path), BY_NAME[ANGELSLIM].target(tmp_path)
    assert asks(look(place)) == ["rope_theta"]
    with_public_config(monkeypatch, ANGELSLIM, BY_NAME[ANGELSLIM].said["config"])
    assert asks(look(place)) == []
    assert outcomes(place, "vllm") == [ServedAs.AS_PUBLISHED]


def test_an_answer_of_the_user_goes_first_and_what_others_measured_stands_beside_it(tmp_path: Path) -> None:
    folder, target = named(ANGELSLIM, tmp_path)
    inspection = look((folder, target), "vllm", semantics={"rope": "10000"})
    assert [entry.by for entry in inspection.drafter.settled] == ["given"]
    assert inspection.requested[0].outcome == ServedAs.DIFFERS
    shown = " ".join(call("inspect", "-v", folder, "--target", target).out.split())
    assert "others, as stored: acceptance length 2.387 on sharegpt" in shown
    assert "others, rope base 10000: acceptance length 2.497 on sharegpt" in shown
    assert "(sfllm, 2026-09-09, https://github.com/wejoncy/sfllm/pull/32)" in shown


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
    # its weights are zeros here, which nothing serves
    options = eaglectl.ConvertOptions(target=str(target), layout="sglang", dry_run=True, force_unserved=True)
    plan = eaglectl.convert(str(folder), None, options).plan
    assert plan.config["rope_theta"] == 1000000
    (entry,) = plan.drafter.settled
    assert (entry.by, entry.answer.value) == ("published", "rope=stored")


def test_what_convert_writes_of_one_has_the_stored_base_and_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, name = FIXTURES / "producers/lightseekorg/mla", "lightseekorg/kimi-k2.6-eagle3-mla"
    with_public_config(monkeypatch, name, json.loads((source / "config.json").read_text()))
    done = eaglectl.convert(source, out := tmp_path / "out", target=str(FIXTURES / "target"))
    assert {row.verdict.outcome for row in done.serving if row.verdict.engine == "vllm"} == {ServedAs.UNKNOWN}
    assert json.loads((out / "config.json").read_text())["rope_theta"] == 50000.0
    (entry,) = json.loads((out / "eaglectl.json").read_text())["settled"]
    assert entry["by"] == "published" and entry["evidence"].startswith(f"{name}: vLLM")
    assert asks(look((out, FIXTURES / "target"))) == []


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
