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
from eaglectl.errors import UsageError
from tests.builders import ABSENT, Outcome, call, drafter_folder
from tests.cases import CASES
from tests.conftest import FIXTURES
from tests.hub import LoopbackHub, client_hub
from tests.tiny import TARGET as TINY_TARGET
from tests.tiny import TINY

CONFIG = {"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 64, "model_type": "llama"}
UNSTATED = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
# nested ids of a file without marks, whose meaning the target's depth settles
ASKED = {
    "eagle_aux_hidden_state_layer_ids": ABSENT,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
    "num_aux_hidden_states": ABSENT,
    "norm_before_fc": ABSENT,
}


def target_folder(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def name_in_card(drafter: Path, text: str) -> None:
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


def in_record(drafter: Path) -> None:
    (drafter / "eaglectl.json").write_text(json.dumps({"schema": "x", "target": "org/target"}))


def in_config(drafter: Path) -> None:
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**config, "target_model_name_or_path": "org/target"}))


def in_card(drafter: Path) -> None:
    name_in_card(drafter, "org/target")


NAMED = {
    "target_model_name_or_path in config.json": in_config,
    "eaglectl.json": in_record,
    "base_model in README.md": in_card,
}


@pytest.mark.parametrize("where", NAMED)
def test_a_cached_target_is_taken_and_told(where: str, cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    NAMED[where](drafter)
    cached(cache, "org/target", target_folder(tmp_path / "files"))
    sentence = f"which {where} names"
    shown = call("inspect", "-v", drafter)
    assert shown.code == 0 and sentence in flat(shown.out) and "boundaries 2, 4, 5" in shown.out
    assert sentence in call("convert", "-v", drafter, "-o", tmp_path / "out").out
    assert json.loads((tmp_path / "out/config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == [
        2,
        4,
        5,
    ]
    assert sentence in flat(call("validate", "-v", drafter).out)
    assert sentence in call("validate", "-v", drafter, "--json").document["target"]
    assert eaglectl.inspect(str(drafter)).drafter.target.repo == "org/target"


def test_a_target_that_is_given_wins(cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    in_card(drafter)
    cached(cache, "org/target", target_folder(tmp_path / "files"))
    other = target_folder(tmp_path / "other", num_hidden_layers=12)
    shown = call("inspect", "-v", drafter, "--target", other).out
    assert "boundaries 2, 6, 9" in shown and "which base_model" not in shown


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": 24}, "the target is 24 wide and this drafter's aux states are 16"),
        ({"vocab_size": 99}, "the target has 99 tokens and this drafter was made for 64"),
        ({"draft_vocab_size": 24}, "it is a drafter itself"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "it is a drafter itself"),
    ],
)
def test_one_that_does_not_fit_is_told_and_not_taken(
    changes: dict[str, Any], why: str, cache: Path, tmp_path: Path
) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    in_card(drafter)
    cached(cache, "org/target", target_folder(tmp_path / "files", **changes))
    found = eaglectl.inspect(str(drafter)).drafter
    assert found.target.depth is None and found.aux.boundaries is None
    assert any(note.text.startswith("not taken: org/target") and why in note.text for note in found.notes)
    assert not found.notes_at("problem")


def two_drafters(folder: Path) -> tuple[Path, Path]:
    """A drafter that states no layers, and one that states those of 8; their cards name the target."""
    stated = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "eagle_config": ABSENT}
    pair = (drafter_folder(folder, "a", config=UNSTATED), drafter_folder(folder, "b", config=stated))
    for drafter in pair:
        in_card(drafter)
    return pair


@pytest.mark.parametrize("headers", [(), ("--headers-only",)])
def test_diff_takes_the_target_that_both_name(headers: tuple[str, ...], cache: Path, tmp_path: Path) -> None:
    pair = two_drafters(tmp_path)
    alone = call("diff", *pair, *headers)
    assert alone.code == 3
    why = "base_model in README.md names org/target, and it is neither in a folder of that name nor in the"
    assert f"the target of A and B could not be looked up: {why}" in flat(alone.out)
    cached(cache, "org/target", target_folder(tmp_path / "files"))
    done = call("diff", *pair, *headers)
    assert done.code == 0 and "the target of A and B: org/target" in flat(done.out)
    assert "which base_model in README.md names" in flat(done.out)
    given = call("diff", *pair, *headers, "--target", target_folder(tmp_path / "other", num_hidden_layers=12))
    assert given.code == 1 and "the target of" not in given.out


def test_diff_reads_each_side_with_its_own_target(cache: Path, tmp_path: Path) -> None:
    a, _ = two_drafters(tmp_path)
    b = drafter_folder(tmp_path, "default", config=UNSTATED)
    name_in_card(b, "org/deeper")
    cached(cache, "org/target", target_folder(tmp_path / "files"))
    assert "the target of B could not be looked up: base_model" in flat(call("diff", a, b).out)
    cached(cache, "org/deeper", target_folder(tmp_path / "more", num_hidden_layers=12))
    document = call("diff", a, b, "--json").document
    assert document["verdict"] == "differs"
    assert [fact["name"] for fact in document["facts"] if fact["state"] == "differs"] == ["boundaries"]
    assert [note.partition(" (")[0] for note in document["notes"][:2]] == [
        "the target of A: org/target",
        "the target of B: org/deeper",
    ]


def test_diff_names_a_target_that_does_not_fit(cache: Path, tmp_path: Path) -> None:
    cached(cache, "org/target", target_folder(tmp_path / "files", hidden_size=24))
    done = call("diff", *two_drafters(tmp_path))
    assert done.code == 3 and "the target of A and B: not taken: org/target" in flat(done.out)


@pytest.mark.parametrize(
    "name",
    ["/nowhere/at/all", "../outside", "~/model", "org/target", "-x", "a\nb", ".", "drafter", "org/empty"],
)
def test_what_is_not_here_is_not_taken(name: str, cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=ASKED)
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**config, "target_model_name_or_path": name}))
    target_folder(tmp_path.parent / "outside" if name.startswith("..") else tmp_path / "somewhere")
    (tmp_path / "org/empty").mkdir(parents=True)
    found = eaglectl.inspect(str(drafter)).drafter
    assert found.target.depth is None
    if name.startswith(".."):
        shutil.rmtree(tmp_path.parent / "outside")


def test_a_question_names_what_was_looked_for(cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=ASKED, tensors={"embed_tokens.weight": None})
    plain = call("convert", "-v", drafter, "-o", tmp_path / "out")
    assert plain.code == 2
    assert "(none is named: looked at speculators_config.verifier.name_or_path" in plain.err
    in_card(drafter)
    named = call("convert", "-v", drafter, "-o", tmp_path / "out")
    words = (
        "base_model in README.md names org/target, and it is neither in a folder of that name nor in the Hub"
    )
    assert named.code == 2 and words in named.err
    assert words in flat(call("inspect", "-v", drafter).out)


def test_a_local_path_is_taken_and_named(cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    target = target_folder(tmp_path / "a target")
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**config, "target_model_name_or_path": str(target)}))
    shown = call("inspect", drafter)
    assert f"{target}, which target_model_name_or_path in config.json names" in flat(shown.out)
    out = tmp_path / "out"
    assert call("convert", drafter, "-o", out).code == 0
    assert not any(str(tmp_path) in (out / name).read_text() for name in ("eaglectl.json", "README.md"))


@pytest.mark.parametrize("place", ["drafter/target", "drafter", "link/target", "elsewhere", "absolute"])
def test_a_target_inside_of_the_checkpoint_is_never_taken(place: str, cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=ASKED)
    inside = target_folder(drafter / "target")
    (tmp_path / "link").symlink_to(drafter)
    (tmp_path / "elsewhere").symlink_to(inside)
    name_in_card(drafter, str(inside) if place == "absolute" else place)
    made = call("inspect", "-v", drafter)
    assert "lies in the checkpoint itself" in made.out + made.err
    assert "names; --target takes another" not in made.out


def test_what_runs_the_target_asks_for_one(cache: Path, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path)
    in_card(drafter)
    for verb, more in (("smoke", ()), ("calibrate", ("-o", tmp_path / "stats"))):
        outcome = call(verb, drafter, *more)
        assert outcome.code == 2 and f"{verb} runs the target; pass --target with its folder" in outcome.err
        assert "names org/target, and its weights are neither" in outcome.err
    cached(cache, "org/target", target_folder(tmp_path / "files"))  # a config alone does not run
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
    assert report["prompts"] == 1 and any(
        "which base_model in README.md names" in note for note in report["notes"]
    )


@pytest.mark.slow
def test_eagle3_to_31_as_users_type_it(named_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(
        "convert",
        named_pair,
        "--to",
        "3.1",
        "--prompts",
        TINY / "gate.jsonl",
        "-o",
        out,
        "--tolerance",
        "0.5",
    )
    assert done.code == 0 and "org/tiny" in done.out and "which base_model in README.md names" in done.out
    assert json.loads((out / "eaglectl.json").read_text())["target"] == "org/tiny"


def printed(outcome: Outcome) -> list[str]:
    """The commands that a run printed, each on one line."""
    text = outcome.out + outcome.err
    return re.findall(r"^ *(?:next: +)?(eaglectl convert [^`\n]*)$", text, re.M) + re.findall(
        r"`(eaglectl convert [^`\n]*)`", text
    )


def test_printed_commands_are_whole_and_run(cache: Path, tmp_path: Path) -> None:
    place = tmp_path / ("a place with spaces and a very long name " * 5).strip()
    drafter, target = (
        drafter_folder(place, "it's a drafter", config=ASKED),
        target_folder(place / "the target"),
    )
    answers = ("--aux-convention", "output", "--source-semantics", "norm_before_residual=false")
    sources = [
        call("inspect", drafter, "--target", target, *answers),
        call("inspect", drafter, *answers),
        call(
            "validate",
            drafter,
            "--target",
            target,
            "--engine",
            "sglang",
            "--engine",
            "vllm==0.32.0",
            *answers,
        ),
    ]
    commands = [text for source in sources for text in printed(source)]
    assert len(commands) >= 3
    for number, text in enumerate(commands):
        words = shell.split(text)
        assert words[:2] == ["eaglectl", "convert"] and str(drafter) in words and "--aux-convention" in words
        assert ("--target" in words) == (str(target) in words)
        outcome = call(*words[1:], "-o", tmp_path / f"out{number}")
        assert outcome.code == 0, outcome


def test_calibrate_prints_the_whole_conversion(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    prompts, stats = tmp_path / "prompts.txt", tmp_path / "my stats"
    prompts.write_text("one two three four five six\nseven eight nine ten eleven\n")
    options = (
        "--prompts",
        prompts,
        "--answer-tokens",
        "8",
        "--source-semantics",
        "norm_before_residual=false",
    )
    done = call("calibrate", TINY / "eagle3", "--target", TINY_TARGET, "-o", stats, *options)
    (text,) = printed(done)
    words = shell.split(text)
    assert words[words.index("--target") + 1] == str(TINY_TARGET)
    assert words[-2:] == ["--source-semantics", "norm_before_residual=false"]
    outcome = call(*words[1:], "--no-gate", "-o", tmp_path / "out")
    assert outcome.code == 0, outcome


def test_fixtures_that_name_targets_of_nobody_are_read_as_before(cache: Path) -> None:
    named = [case for case in CASES if case.producer == "speculators"]
    for case in named:
        assert eaglectl.inspect(str(case.folder)).drafter.target.origin == ""
    with pytest.raises(UsageError, match=r"name_or_path in config\.json names example/tiny-llama"):
        eaglectl.smoke(str(FIXTURES / "producers/speculators/plain"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A loopback Hub with a target of a config and weights, and an empty cache."""
    pytest.importorskip("huggingface_hub")
    with client_hub(monkeypatch, tmp_path, tries=1) as running:
        monkeypatch.chdir(tmp_path)
        folder = target_folder(tmp_path / "files")
        (folder / "model.safetensors").write_bytes(b"never read")
        running.add_repo("org/target", folder)
        yield running


def paths(hub: LoopbackHub) -> list[str]:
    return [request.path for request in hub.requests]


def test_convert_fetches_a_config_that_it_needs_and_no_weights(hub: LoopbackHub, tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config=UNSTATED)
    in_card(drafter)
    done = call("convert", drafter, "-o", tmp_path / "out")
    assert done.code == 0 and "org/target on the Hub, which base_model in README.md names" in done.out
    assert json.loads((tmp_path / "out/config.json").read_text())["eagle_config"]
    assert any("config.json" in path for path in paths(hub))
    assert not any("safetensors" in path for path in paths(hub))


def test_nothing_is_fetched_offline_nor_where_it_is_not_needed(hub: LoopbackHub, tmp_path: Path) -> None:
    plain, stated = drafter_folder(tmp_path, "plain", config=UNSTATED), drafter_folder(tmp_path, "stated")
    for drafter in (plain, stated):
        in_card(drafter)
    assert call("--offline", "convert", plain, "-o", tmp_path / "offline").code == 0
    assert call("convert", stated, "-o", tmp_path / "stated-out").code == 0
    assert call("inspect", plain).code == 0
    assert call("validate", plain).code in (0, 1)
    assert call("smoke", plain).code == 2
    assert paths(hub) == []


@pytest.mark.parametrize(
    ("stated", "said"), [(30, ["has 30 layers (target_num_layers), and the target has 8"]), (8, [])]
)
def test_a_stated_depth_is_held_to_the_target(stated: int, said: list[str], tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config={"target_num_layers": stated})
    notes = eaglectl.inspect(drafter, target=target_folder(tmp_path / "target")).drafter.notes
    found = [note.text for note in notes if note.topic == "target-depth"]
    assert len(found) == len(said) and all(words in text for words, text in zip(said, found, strict=True))


def test_of_two_stated_depths_none_is_believed(tmp_path: Path) -> None:
    drafter = drafter_folder(tmp_path, config={"target_num_layers": 30, "num_target_layers": 31})
    (note,) = eaglectl.inspect(drafter).drafter.notes_at("warning")
    assert "num_target_layers: 31, target_num_layers: 30; none is believed" in note.text


def test_nested_ids_one_lower_confirm_the_top_level_ones(tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, 6]}
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
    aux = eaglectl.inspect(drafter_folder(tmp_path, config=ids | nested)).drafter.aux
    assert aux.boundaries == (2, 4, 6) and "nested ids one lower confirm" in aux.how
