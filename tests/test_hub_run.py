"""smoke, calibrate and the upgrade with drafters and targets of the Hub, through the cache and offline."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.builders import Outcome, call, read_safetensors, safetensors_bytes  # noqa: E402
from tests.hub import TOKEN, LoopbackHub, Reply, client_hub  # noqa: E402
from tests.tiny import PROMPTS, TARGET, TINY  # noqa: E402

PAIR = ("org/drafter", "--target", "org/target", "--device", "cpu")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """The trained pair on a loopback Hub, with an empty cache."""
    with client_hub(monkeypatch, tmp_path, tries=1) as running:
        monkeypatch.chdir(tmp_path)
        running.add_repo("org/drafter", TINY / "eagle3")
        running.add_repo("org/target", TARGET)
        yield running


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Six short prompts."""
    path = tmp_path / "few.jsonl"
    path.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[:6]))
    return path


def smoke(few: Path, *more: str | Path, pair: tuple[str, ...] = PAIR) -> Outcome:
    """smoke with enough tokens for a pass: 76 drafts of `few`."""
    return call(
        *more, "smoke", *pair, "--run-in", "reference", "--prompts", few, "--max-tokens", "32", "--json"
    )


def refused(done: Outcome, code: int) -> str:
    """The one sentence of a call that must end with `code`."""
    assert done.code == code and "Traceback" not in done.err and TOKEN not in done.out + done.err, done
    return str(done.document["message"]) if done.out else done.err


def downloads(hub: LoopbackHub) -> list[str]:
    """Names of the weights that were sent, whole."""
    sent = [
        one.path for one in hub.requests if one.is_elsewhere and one.range is None and one.method == "GET"
    ]
    return sorted(path.removeprefix("/files/").replace("/" + path.split("/")[4], "") for path in sent)


def test_a_pair_of_the_hub_measures_what_its_folders_do(hub: LoopbackHub, few: Path) -> None:
    there = smoke(few).document
    folders = (str(TINY / "eagle3"), "--target", str(TARGET), "--device", "cpu")
    here = smoke(few, pair=folders).document
    same = (
        "acceptance_length",
        "interval",
        "per_position",
        "drafts",
        "prompts_digest",
        "verdict",
        "lossless",
    )
    assert {key: there[key] for key in same} == {key: here[key] for key in same}
    assert there["verdict"] == "pass"
    assert there["source"] == "org/drafter" and there["temperature"] == 0.0
    assert downloads(hub) == ["org/drafter/model.safetensors", "org/target/model.safetensors"]
    assert hub.leaks == []


def test_a_target_in_shards_comes_as_its_index_says(hub: LoopbackHub, few: Path) -> None:
    tensors = list(read_safetensors(TARGET / "model.safetensors").items())
    place: dict[str, str] = {}
    files: dict[str, bytes | Path] = {"original.safetensors": b"not wanted", "pytorch_model.bin": b"nor this"}
    for number in (1, 2):
        shard, file = dict(tensors[number - 1 :: 2]), f"model-0000{number}-of-00002.safetensors"
        files[file] = safetensors_bytes(shard, {"format": "pt"})
        place |= dict.fromkeys(shard, file)
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": place}).encode()
    hub.repos["org/target"].commit(files, delete=("model.safetensors",))
    assert smoke(few).code == 0
    assert downloads(hub) == [
        "org/drafter/model.safetensors",
        *(f"org/target/{file}" for file in sorted({*place.values()})),
    ]


def test_calibrate_and_the_upgrade_run_a_pair_of_the_hub(hub: LoopbackHub, few: Path, tmp_path: Path) -> None:
    stats, out = tmp_path / "stats", tmp_path / "out"
    done = call("calibrate", *PAIR, "--prompts", few, "--answer-tokens", "8", "-o", stats)
    assert done.code == 0 and "--target org/target\n" in done.out, done
    gate = tmp_path / "gate.jsonl"
    gate.write_text("".join((TINY / "gate.jsonl").read_text().splitlines(keepends=True)[:4]))
    upgrade = ("convert", *PAIR, "--to", "3.1", "--prompts", gate, "--tolerance", "0.1")
    done = call(*upgrade, "--calibration", stats, "-o", out)
    assert done.code == 0 and "kept: every lower bound" in done.out, done
    record = json.loads((out / "eaglectl.json").read_text())
    assert record["source"]["name"] == "org/drafter" and record["gate"]["prompts"] == 4
    card = (out / "README.md").read_text()
    assert "base_model: org/target\n" in card and str(tmp_path) not in card + json.dumps(record)
    assert downloads(hub) == ["org/drafter/model.safetensors", "org/target/model.safetensors"]
    count = len(hub.requests)
    again = call("--offline", *upgrade, "--calibration", stats, "-o", tmp_path / "again")
    assert again.code == 0 and len(hub.requests) == count, again
    assert (tmp_path / "again/model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_a_target_of_the_hub_names_itself(hub: LoopbackHub, tmp_path: Path) -> None:
    def name_of(source: str | Path, out: str, *more: str) -> str:
        done = call("convert", source, "--for", "speculators", "-o", tmp_path / out, "--target", *more)
        assert done.code == 0, done
        config = json.loads((tmp_path / out / "config.json").read_text())
        return str(config["speculators_config"]["verifier"]["name_or_path"])

    assert name_of("org/drafter", "out", "org/target@main") == "org/target"
    assert name_of(tmp_path / "out", "named", "org/target", "--target-name", "org/other") == "org/other"
    hub.add_repo("copies/target", TARGET)
    assert name_of(tmp_path / "out", "kept", "copies/target") == "org/target"


def test_a_card_links_the_target_that_upload_was_given(hub: LoopbackHub) -> None:
    import eaglectl

    plan = eaglectl.upload(
        str(TINY / "eagle3"),
        "reader/drafter",
        eaglectl.UploadOptions(dry_run=True, target="org/target", card=eaglectl.CardAnswers("mit")),
    ).plan
    card = next(bytes(file.content) for file in plan.files if file.name == "README.md").decode()  # type: ignore[arg-type]
    assert "base_model: org/target\n" in card and "vllm serve org/target " in card


def test_what_smoke_measured_is_on_the_hub(hub: LoopbackHub, few: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(TINY / "eagle3", tmp_path / "drafter")
    measured = smoke(few, pair=(str(folder), *PAIR[1:]))
    assert (measured.code, measured.document["verdict"]) == (0, "pass")
    (tmp_path / "smoke.json").write_text(measured.out)
    answers = ("--license", "mit", "--base-model", "org/target")
    done = call("upload", folder, "reader/drafter", *answers, "--smoke", tmp_path / "smoke.json")
    assert done.code == 0, done
    record = bytes(hub.repos["reader/drafter"].files()["eaglectl.json"].data)  # type: ignore[arg-type]
    kept = json.loads(record)["published"]["smoke"]
    keys = ("acceptance_length", "interval", "per_position", "prompts", "temperature")
    assert {key: kept[key] for key in keys} == {key: measured.document[key] for key in keys}
    other = call("upload", TINY / "eagle3.1", "reader/other", "--smoke", tmp_path / "smoke.json")
    assert (
        other.code == 1 and "what was measured had another" in other.err and "reader/other" not in hub.repos
    )


@pytest.mark.parametrize(
    "command",
    [
        ("smoke", "--run-in", "reference"),
        ("calibrate", "-o", "stats"),
        ("convert", "--to", "3.1", "-o", "out"),
    ],
    ids=lambda command: command[0],
)
def test_what_cannot_be_had_is_a_sentence(hub: LoopbackHub, command: tuple[str, ...], tmp_path: Path) -> None:
    """Offline what is not in the cache, and a target that is not there, gated or not sent."""
    local = (str(TINY / "eagle3"), *PAIR[1:])
    for pair, name in ((PAIR, "org/drafter"), (local, "org/target")):
        message = refused(call("--offline", *command, *pair), 3)
        assert f"{name} at main is not in the Hub client's cache" in message
        assert f"hf download {name}" in message
    assert hub.requests == []
    nowhere = ("org/drafter", "--target", "org/nowhere", "--device", "cpu")
    assert "org/nowhere" in refused(call(*command, *nowhere), 3)
    hub.repos["org/target"].is_gated = True
    assert "org/target" in refused(call(*command, *PAIR), 3)
    hub.repos["org/target"].is_gated = False
    hub.faults.append(lambda r, _: Reply(503) if r.is_elsewhere and "target" in r.path else None)
    assert "org/target" in refused(call(*command, *PAIR), 3)
    assert not (tmp_path / "out").exists() and not (tmp_path / "stats").exists()


def test_a_target_whose_weights_are_not_in_the_cache_is_a_sentence_offline(hub: LoopbackHub) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/target", allow_patterns=["*.json"], endpoint=hub.endpoint)
    message = refused(call("--offline", "smoke", str(TINY / "eagle3"), *PAIR[1:]), 3)
    assert "without all of its weights" in message and "hf download org/target" in message


def test_a_drafter_is_not_its_own_target(hub: LoopbackHub, few: Path) -> None:
    pair = ("org/target", "--target", "org/target", "--device", "cpu")
    assert "is the target itself" in refused(smoke(few, pair=pair), 1)
