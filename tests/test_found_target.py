"""A target that is left out is the one that the checkpoint names, if it is here; printed commands run."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl import shell
from tests.builders import ABSENT, call, drafter_folder, target_of
from tests.hub import LoopbackHub, client_hub
from tests.tiny import TARGET as TINY_TARGET
from tests.tiny import TINY

IDS = "eagle_aux_hidden_state_layer_ids"
UNSTATED = {IDS: ABSENT, "eagle_config": ABSENT}
# nested ids of a file without marks, whose meaning the target's depth settles
ASKED = {
    IDS: ABSENT,
    "eagle_config": {IDS: [1, 3, 5]},
    "num_aux_hidden_states": ABSENT,
    "norm_before_fc": ABSENT,
}


def name_in_card(drafter: Path, text: str = "org/target") -> None:
    (drafter / "README.md").write_text(f"---\nlicense: mit\nbase_model: {text}\n---\n")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub._snapshot_download.HF_HUB_CACHE", str(folder), raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return folder


def cached(cache: Path, repo: str, source: Path) -> Path:
    commit = "0" * 40
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    shutil.copytree(source, folder / "snapshots" / commit)
    return folder / "snapshots" / commit


def flat(text: str) -> str:
    """Text without the breaks of a terminal's lines."""
    return " ".join(text.split())


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "where", ["target_model_name_or_path in config.json", "eaglectl.json", "base_model in README.md"]
)
def test_a_cached_target_is_taken_and_told(where: str, cache: Path, tmp_path: Path) -> None:
    named = {**UNSTATED, where.partition(" ")[0]: "org/target"} if "config.json" in where else UNSTATED
    drafter = drafter_folder(tmp_path, config=named)
    if where == "eaglectl.json":
        (drafter / where).write_text(json.dumps({"schema": "x", "target": "org/target"}))
    if "README.md" in where:
        name_in_card(drafter)
    cached(cache, "org/target", target_of(tmp_path / "files"))
    sentence = f"named by {where}"
    shown = call("inspect", "-v", drafter)
    assert shown.code == 0 and sentence in flat(shown.out) and "boundaries 2, 4, 5" in shown.out
    assert sentence in call("convert", "-v", drafter, "-o", tmp_path / "out").out
    assert json.loads((tmp_path / "out/config.json").read_text())[IDS] == [2, 4, 5]
    assert sentence in flat(call("validate", "-v", drafter).out)
    assert sentence in call("validate", "-v", drafter, "--json").document["target"]
    assert eaglectl.inspect(str(drafter)).drafter.target.repo == "org/target"


def test_a_target_that_is_given_wins(cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    name_in_card(drafter)
    cached(cache, "org/target", target_of(tmp_path / "files"))
    other = target_of(tmp_path / "other", num_hidden_layers=12)
    shown = call("inspect", "-v", drafter, "--target", other).out
    assert "boundaries 2, 6, 9" in shown and "which base_model" not in shown


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": 24}, "the target has width 24 and this drafter's aux states 16"),
        ({"vocab_size": 99}, "the target has 99 tokens and this drafter was made for 64"),
        ({"draft_vocab_size": 24}, "it is a drafter itself"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "it is a drafter itself"),
    ],
)
def test_one_that_does_not_fit_is_told_and_not_taken(
    changes: dict[str, Any], why: str, cache: Path, tmp_path: Path
) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    name_in_card(drafter)
    cached(cache, "org/target", target_of(tmp_path / "files", **changes))
    found = eaglectl.inspect(str(drafter)).drafter
    assert found.target.depth is None and found.aux.boundaries is None
    assert any(note.text.startswith("not used: org/target") and why in note.text for note in found.notes)
    assert not found.notes_at("problem")


def test_diff_reads_each_side_with_the_target_that_it_names(cache: Path, tmp_path: Path) -> None:
    a = drafter_folder(tmp_path, "a", config=UNSTATED)
    b = drafter_folder(tmp_path, "b", config={IDS: [2, 4, 5], "eagle_config": ABSENT})
    for drafter in (a, b):
        name_in_card(drafter)
    alone = call("diff", a, b)
    assert alone.code == 3
    why = "base_model in README.md names org/target, and it is neither in a folder of that name nor in the"
    assert f"the target of A and B was not found: {why}" in flat(alone.out)
    cached(cache, "org/target", target_of(tmp_path / "files"))
    for headers in ((), ("--headers-only",)):
        done = call("diff", a, b, *headers)
        assert done.code == 0 and "the target of A and B: org/target" in flat(done.out)
    deeper = target_of(tmp_path / "deeper", num_hidden_layers=12)
    given = call("diff", a, b, "--target", deeper)
    assert given.code == 1 and "the target of" not in given.out
    (b / "config.json").write_text((a / "config.json").read_text())
    name_in_card(b, "org/deeper")
    assert "the target of B was not found: base_model" in flat(call("diff", a, b).out)
    cached(cache, "org/deeper", deeper)
    document = call("diff", a, b, "--json").document
    assert document["verdict"] == "differs"
    assert [fact["name"] for fact in document["facts"] if fact["state"] == "differs"] == ["boundaries"]
    notes = [note.partition(" (")[0] for note in document["notes"][:2]]
    assert notes == ["the target of A: org/target", "the target of B: org/deeper"]


@pytest.mark.parametrize(
    "name",
    ["/nowhere/at/all", "../outside", "~/model", "org/target", "-x", "a\nb", ".", "drafter", "org/empty"],
)
def test_what_is_not_here_is_not_taken(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = drafter_folder(tmp_path, config={**ASKED, "target_model_name_or_path": name})
    target_of(tmp_path / "outside")
    (tmp_path / "here/org/empty").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert eaglectl.inspect(str(drafter)).drafter.target.depth is None


def test_a_question_names_what_was_looked_for(cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=ASKED, tensors={"embed_tokens.weight": None})
    plain = call("convert", "-v", drafter, "-o", tmp_path / "out")
    assert plain.code == 2
    assert "(none is named: looked at speculators_config.verifier.name_or_path" in plain.err
    name_in_card(drafter)
    named = call("convert", "-v", drafter, "-o", tmp_path / "out")
    words = "base_model in README.md names org/target, and it is neither in a folder of that name nor in"
    assert named.code == 2 and words in named.err
    assert words in flat(call("inspect", "-v", drafter).out)


def test_a_local_path_is_taken_and_named(cache: Path, tmp_path: Path) -> None:
    target, out = target_of(tmp_path / "a target"), tmp_path / "out"
    drafter = drafter_folder(tmp_path, config={**UNSTATED, "target_model_name_or_path": str(target)})
    shown = call("inspect", drafter)
    assert f"{target}, named by target_model_name_or_path in config.json" in flat(shown.out)
    assert call("convert", drafter, "-o", out).code == 0
    assert not any(str(tmp_path) in (out / name).read_text() for name in ("eaglectl.json", "README.md"))


@pytest.mark.parametrize("place", ["drafter/target", "drafter", "link/target", "elsewhere", "absolute"])
def test_a_target_inside_of_the_checkpoint_is_never_taken(place: str, cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=ASKED)
    inside = target_of(drafter / "target")
    (tmp_path / "link").symlink_to(drafter)
    (tmp_path / "elsewhere").symlink_to(inside)
    name_in_card(drafter, str(inside) if place == "absolute" else place)
    made = call("inspect", "-v", drafter)
    assert "is part of the checkpoint" in flat(made.out + made.err)
    assert "pass --target to use another" not in flat(made.out)


def test_what_runs_the_target_asks_for_one(cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path)
    name_in_card(drafter)
    for verb, more in (("smoke", ()), ("calibrate", ("-o", tmp_path / "stats"))):
        outcome = call(verb, drafter, *more)
        assert outcome.code == 2 and f"{verb} runs the target; pass --target with its folder" in outcome.err
        assert "names org/target, and its weights are neither" in outcome.err
    cached(cache, "org/target", target_of(tmp_path / "files"))  # a config alone does not run
    assert call("smoke", drafter).code == 2
    upgrade = call("convert", drafter, "--to", "3.1", "-o", tmp_path / "out")
    assert upgrade.code == 2 and "names org/target, and its weights are neither" in upgrade.err


@pytest.fixture
def named_pair(cache: Path, tmp_path: Path) -> Path:
    """The trained drafter with a card that names its target, which the cache holds."""
    pytest.importorskip("transformers")
    drafter = tmp_path / "my drafter"
    shutil.copytree(TINY / "eagle3", drafter)
    name_in_card(drafter, "org/tiny")
    cached(cache, "org/tiny", TINY_TARGET)
    return drafter


def test_the_target_is_run_from_the_cache(named_pair: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two three\n")
    options = ("--run-in", "reference", "--prompts", prompts, "--max-tokens", "4", "--json")
    report = call("smoke", named_pair, *options).document
    assert report["prompts"] == 1
    assert any("named by base_model in README.md" in note for note in report["notes"])


@pytest.mark.slow
def test_eagle3_to_31_as_users_type_it(named_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("--to", "3.1", "--prompts", TINY / "gate.jsonl", "--tolerance", "0.5")
    done = call("convert", named_pair, *given, "-o", out)
    assert done.code == 0 and "org/tiny" in done.out and "named by base_model in README.md" in done.out
    assert json.loads((out / "eaglectl.json").read_text())["target"] == "org/tiny"


def test_printed_commands_are_whole_and_run(cache: Path, tmp_path: Path) -> None:
    place = tmp_path / ("a place with spaces and a very long name " * 5).strip()
    drafter, target = drafter_folder(place, "it's a drafter", config=ASKED), target_of(place / "the target")
    answers = ("--aux-convention", "output", "--source-semantics", "norm_before_residual=false")
    engines = ("--engine", "sglang", "--engine", "vllm==0.32.0")
    sources = [
        call("inspect", drafter, "--target", target, *answers),
        call("inspect", drafter, *answers),
        call("validate", drafter, "--target", target, *engines, *answers),
    ]
    quoted = r"^ *(?:next: +)?(eaglectl convert [^`\n]*)$|`(eaglectl convert [^`\n]*)`"
    found = re.findall(quoted, "\n".join(source.out + source.err for source in sources), re.M)
    commands = [alone or within for alone, within in found]
    assert len(commands) >= 3
    for number, text in enumerate(commands):
        words = shell.split(text)
        assert words[:2] == ["eaglectl", "convert"] and str(drafter) in words and "--aux-convention" in words
        assert ("--target" in words) == (str(target) in words)
        outcome = call(*words[1:], "-o", tmp_path / f"out{number}")
        assert outcome.code == 0, outcome


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A loopback Hub with a target of a config and weights, and an empty cache."""
    pytest.importorskip("huggingface_hub")
    with client_hub(monkeypatch, tmp_path, tries=1) as running:
        monkeypatch.chdir(tmp_path)
        folder = target_of(tmp_path / "files")
        (folder / "model.safetensors").write_bytes(b"never read")
        running.add_repo("org/target", folder)
        yield running


def test_convert_fetches_a_config_that_it_needs_and_no_weights(hub: LoopbackHub, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    name_in_card(drafter)
    done = call("convert", drafter, "-o", tmp_path / "out")
    assert done.code == 0 and "org/target on the Hub, named by base_model in README.md" in done.out
    assert json.loads((tmp_path / "out/config.json").read_text())["eagle_config"]
    assert any("config.json" in request.path for request in hub.requests)
    assert not any("safetensors" in request.path for request in hub.requests)


def test_nothing_is_fetched_offline_nor_where_it_is_not_needed(hub: LoopbackHub, tmp_path: Path) -> None:
    plain, stated = drafter_folder(tmp_path, "plain", config=UNSTATED), drafter_folder(tmp_path, "stated")
    for drafter in (plain, stated):
        name_in_card(drafter)
    assert call("--offline", "convert", plain, "-o", tmp_path / "offline").code == 0
    assert call("convert", stated, "-o", tmp_path / "stated-out").code == 0
    assert call("inspect", plain).code == 0
    assert call("validate", plain).code in (0, 1)
    assert call("smoke", plain).code == 2
    assert hub.requests == []
