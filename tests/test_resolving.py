"""The layers that eaglectl says each runner of vLLM captures are those that vLLM's own functions return."""

import pytest

from eaglectl.drafter.drafter import Target
from eaglectl.engines import vllm
from eaglectl.engines.layers import capture
from eaglectl.engines.vllm import flat_as_read
from eaglectl.formats.catalogue import by_name
from tests.resolving.configs import CONFIGS, DEPTH, NATIVE, SPECULATORS
from tests.resolving.record import read

RECORDED = read()
FIRST = "0.22.0"
TARGET = Target(depth=DEPTH, model_type="llama")


def captured(release: str, runner: str, name: str) -> list[int]:
    config = CONFIGS[name]
    if name in SPECULATORS:
        config = flat_as_read(config, by_name("speculators").flat(config))
    boundaries = capture(vllm.ENGINE.behaviour(release).runners[runner], config, TARGET).boundaries
    assert boundaries is not None
    return list(boundaries)


def test_every_release_from_0_22_on_is_recorded() -> None:
    known = vllm.ENGINE.releases
    assert list(RECORDED) == list(known[known.index(FIRST) :])
    assert list(RECORDED) == [release for release in known if vllm.ENGINE.ids_evidence(release) == "run"]


@pytest.mark.parametrize("runner", ["V1", "V2"])
@pytest.mark.parametrize("release", RECORDED)
def test_each_runner_captures_what_its_own_function_returns(release: str, runner: str) -> None:
    answers = RECORDED[release][runner]
    assert set(answers) == set(CONFIGS)
    names = [*NATIVE, *(name for name in SPECULATORS if answers[name] is not None)]
    differing = {name: answers[name] for name in names if captured(release, runner, name) != answers[name]}
    assert not differing


def test_the_answers_tell_runners_and_releases_apart() -> None:
    nested = "eagle_config {'eagle_aux_hidden_state_layer_ids': [2, 3, 7]}"
    layer_ids = "eagle_config {'layer_ids': [2, 4, 7]}"
    default = [2, 4, 5]
    assert RECORDED["0.33.0"]["V1"][nested] == [2, 3, 7] and RECORDED["0.33.0"]["V2"][nested] == default
    assert RECORDED["0.26.0"]["V2"][layer_ids] == default and RECORDED["0.27.0"]["V2"][layer_ids] == [2, 4, 7]
    outputs = "target_layer_ids [0, 3, 5]"
    assert RECORDED["0.24.0"]["V2"][outputs] == default and RECORDED["0.25.0"]["V2"][outputs] == [1, 4, 6]
    assert len(NATIVE) + len(SPECULATORS) > 60
