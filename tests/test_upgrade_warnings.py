"""What an upgrade says of the target's states, and what tells one target from another."""

from pathlib import Path

import pytest

from eaglectl.conversion.upgrade import Statistics, sigma_warnings, state_warnings, target_digest
from eaglectl.files.source import FolderSource


def statistics(
    rms: tuple[float, ...] = (0.5, 1.0, 4.0),
    spread: tuple[float, ...] = (0.1, 0.1, 0.1),
    sigmas: dict[str, float] | None = None,
) -> Statistics:
    return Statistics({}, (), (2, 4, 5), 1e-6, 10**6, rms, spread, 2.0, sigmas or {}, False, None)


def texts(found: Statistics) -> list[str]:
    return [note.text for note in state_warnings(found)]


def test_usual_states_are_not_warned_of() -> None:
    assert texts(statistics()) == []


def test_states_in_whose_norm_eps_shows_are_named_by_their_boundaries() -> None:
    (text,) = texts(statistics(rms=(0.5, 1e-3, 4.0)))
    assert "boundaries [4] are so small that rms_norm_eps 1e-06 shows" in text


def test_layers_that_vary_against_each_other_are_named_with_their_spread() -> None:
    (text,) = texts(statistics(spread=(0.1, 0.9, 0.1)))
    assert "sd of log-ratios 0.90" in text


def test_sets_of_prompts_of_another_size_are_named_and_the_others_are_not() -> None:
    assert sigma_warnings(statistics(sigmas={"code": 2.01, "chat": 1.99})) == ()
    (note,) = sigma_warnings(statistics(sigmas={"code": 2.01, "chat": 6.0}))
    assert "chat 6; all 2" in note.text
    assert "code" not in note.text


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    (tmp_path / "model.safetensors").write_bytes(bytes(200_000))
    (tmp_path / "README.md").write_text("about")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "at"), [("config.json", 3), ("model.safetensors", 3), ("model.safetensors", 199_990)]
)
def test_other_weights_or_another_config_are_another_target(file: str, at: int, target: Path) -> None:
    before = target_digest(FolderSource(target))
    data = bytearray((target / file).read_bytes())
    data[at] ^= 1
    (target / file).write_bytes(bytes(data))
    assert target_digest(FolderSource(target)) != before


def test_another_readme_is_the_same_target(target: Path) -> None:
    before = target_digest(FolderSource(target))
    (target / "README.md").write_text("about something else")
    assert target_digest(FolderSource(target)) == before
