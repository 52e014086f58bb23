"""`upload --eval-results`: acceptance as measured, in the front matter as the Hub's client reads it back;
nothing measured, nothing written.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from eaglectl.acceptance.prompts import builtin_prompts, digest_prompts
from tests.builders import call, drafter_folder, write_safetensors
from tests.builders import drafter_tensors as tensors
from tests.test_card import ANSWERS, card, matter, record, smoke_file

FIRST, LAST = "# eaglectl: begin", "# eaglectl: end"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path)


def results(text: str) -> list[Any]:
    """The results that the Hub's client finds in a card."""
    from huggingface_hub import ModelCard

    return list(ModelCard(text).data.eval_results)


def refused(*arguments: str | Path) -> str:
    done = call("upload", *arguments, "--dry-run", *ANSWERS)
    assert done.code == 1 and "Traceback" not in done.err, done
    return done.err.splitlines()[-1]


def test_the_hubs_client_reads_what_was_measured(folder: Path, tmp_path: Path) -> None:
    text = card(folder, smoke=smoke_file(tmp_path), has_results=True)
    length, first, second = results(text)
    assert (length.task_type, length.metric_type, length.metric_value) == (
        "text-generation",
        "acceptance_length",
        2.31,
    )
    assert (length.dataset_type, length.dataset_name) == ("custom", f"prompts of digest {'0' * 12}")
    assert length.dataset_args == {"prompts": 20, "digest": "0" * 64, "max_tokens": 64}
    assert length.metric_args["interval_95"] == [2.2, 2.4]
    assert length.metric_args["definition"].startswith(
        "Acceptance length: tokens that one step of the target gives"
    )
    assert length.metric_args["engine"] == "vllm 0.32.0 on cuda in bfloat16"
    assert (length.metric_args["num_speculative_tokens"], length.metric_args["temperature"]) == (3, 0.0)
    assert [(one.metric_type, one.metric_value) for one in (first, second)] == [
        ("acceptance_rate_1", 0.7),
        ("acceptance_rate_2", 0.4),
    ]
    assert length.verified is None


def test_it_is_what_the_hubs_client_would_write(folder: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard
    from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

    text = card(folder, smoke=smoke_file(tmp_path), has_results=True)
    index = matter(text)["model-index"]
    name, found = model_index_to_eval_results(index)
    assert name == "drafter" and eval_results_to_model_index(name, found) == index
    assert ModelCard(text).data.model_name == "drafter"


def test_the_built_in_prompts_are_named(folder: Path, tmp_path: Path) -> None:
    path = smoke_file(tmp_path)
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "prompts_digest": digest_prompts(builtin_prompts())})
    )
    assert (
        results(card(folder, smoke=path, has_results=True))[0].dataset_name == "eaglectl's built-in prompts"
    )


def test_nothing_is_in_the_front_matter_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    assert "model-index" not in matter(card(folder, smoke=smoke_file(tmp_path)))


@pytest.mark.parametrize("has_record", [False, True])
def test_nothing_measured_is_refused_with_what_to_run(folder: Path, has_record: bool) -> None:
    if has_record:
        (folder / "eaglectl.json").write_text(json.dumps(record(folder)))
    message = refused(folder, "org/drafter", "--eval-results")
    assert "nothing is measured" in message and f"eaglectl smoke {folder} --json > smoke.json`" in message


def test_a_drafter_that_failed_its_smoke_is_refused(folder: Path, tmp_path: Path) -> None:
    path = smoke_file(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "verdict": "fail"}))
    done = call("upload", folder, "org/drafter", *ANSWERS, "--dry-run", "--eval-results", "--smoke", path)
    assert done.code == 2 and "the verdict is fail" in done.err


def kept(folder: Path, tmp_path: Path) -> str:
    """Publish once with results: the folder now is what a download of it holds."""
    text = card(folder, smoke=smoke_file(tmp_path), has_results=True)
    (folder / "README.md").write_text(text)
    (folder / "eaglectl.json").write_text(json.dumps(record(folder, smoke=smoke_file(tmp_path))))
    return text


def test_what_eaglectl_json_keeps_is_used_again(folder: Path, tmp_path: Path) -> None:
    text = kept(folder, tmp_path)
    assert card(folder) == card(folder, has_results=True) == text
    (folder / "README.md").unlink()
    assert [one.metric_value for one in results(card(folder, has_results=True))] == [2.31, 0.7, 0.4]


def test_new_measurements_replace_the_old_ones(folder: Path, tmp_path: Path) -> None:
    kept(folder, tmp_path)
    path = smoke_file(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "acceptance_length": 2.5}))
    text = card(folder, smoke=path)
    assert results(text)[0].metric_value == 2.5 and text.count(FIRST) == 1


def test_measurements_of_other_weights_are_not_kept(folder: Path, tmp_path: Path) -> None:
    kept(folder, tmp_path)
    write_safetensors(folder / "model.safetensors", tensors(), {"format": "pt", "run": "2"})
    assert "not of these weights" in refused(folder, "org/drafter")
    assert "nothing is measured" in refused(folder, "org/drafter", "--eval-results")
    (folder / "README.md").unlink()
    done = call("upload", folder, "org/drafter", *ANSWERS, "--dry-run")
    assert done.code == 0 and "is of other weights, and is left out" in done.err
    assert "2.310" not in card(folder)
    assert "smoke" not in record(folder)["published"]


@pytest.mark.parametrize("key", ["model-index", '"model-index"', "model-index "])
def test_a_model_index_of_the_users_own_is_not_touched(folder: Path, tmp_path: Path, key: str) -> None:
    mine = f"---\nlicense: apache-2.0\n{key}:\n- name: x\n  results: []\n---\ntext\n"
    (folder / "README.md").write_text(mine)
    assert "a model-index of its own" in refused(
        folder, "org/drafter", "--eval-results", "--smoke", smoke_file(tmp_path)
    )
    assert f"{key}:\n- name: x\n" in card(folder, smoke=smoke_file(tmp_path))


@pytest.mark.parametrize(
    "marks", [f"{FIRST}\n", f"{LAST}\n", f"{FIRST}\n{LAST}\n{FIRST}\n{LAST}\n", f"{LAST}\n{FIRST}\n"]
)
def test_marks_that_do_not_pair_are_told(folder: Path, tmp_path: Path, marks: str) -> None:
    (folder / "README.md").write_text(f"---\nlicense: apache-2.0\n{marks}---\ntext\n")
    assert "do not come in one pair" in refused(
        folder, "org/drafter", "--eval-results", "--smoke", smoke_file(tmp_path)
    )


def test_what_the_user_wrote_beside_it_stays(folder: Path, tmp_path: Path) -> None:
    mine = "---\r\nlicense: apache-2.0  # ours\r\ntags: [a]\r\n---\r\ntext\r\n"
    text = card(folder, mine.encode(), smoke=smoke_file(tmp_path), has_results=True)
    assert text.count("\n") == text.count("\r\n") and "license: apache-2.0  # ours\r\n" in text
    assert results(text)[0].metric_value == 2.31
    assert card(folder, text.encode(), smoke=smoke_file(tmp_path)) == text


def test_a_licence_is_read_as_before_with_results_below_it(folder: Path, tmp_path: Path) -> None:
    policy = tmp_path / "release.toml"
    policy.write_text('[allow]\nlicences = ["apache-2.0"]\n')
    (folder / "README.md").write_text(
        "---\ntags: [a]\nlicense: apache-2.0\nmodel-index:\n- name: x\n---\ntext\n"
    )
    assert call("upload", folder, "org/drafter", *ANSWERS, "--dry-run", "--policy", policy).code == 0


@pytest.mark.parametrize(
    "change", [{"acceptance_length": "much"}, {"per_position": 3}, {"engine": {}}, {"k": 2.5}]
)
def test_a_record_of_a_measurement_that_is_none_is_told(
    folder: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    kept(folder, tmp_path)
    found = json.loads((folder / "eaglectl.json").read_text())
    found["published"]["smoke"] |= change
    (folder / "eaglectl.json").write_text(json.dumps(found))
    done = call("upload", folder, "org/drafter", *ANSWERS, "--dry-run")
    assert done.code == 3 and "what eaglectl.json says was measured" in done.err


def test_the_front_matter_stays_yaml_whatever_the_engine_is_called(folder: Path, tmp_path: Path) -> None:
    path = smoke_file(tmp_path)
    document = json.loads(path.read_text())
    document["engine"]["name"] = "x\": - '#\n---\n"
    path.write_text(json.dumps(document))
    text = card(folder, smoke=path, has_results=True)
    assert yaml.safe_load(text.split("\n---\n")[0])["model-index"][0]["name"] == "drafter"
