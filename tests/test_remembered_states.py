"""The second pass of calibration takes the states of the first, as far as they are remembered."""

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Sequence  # noqa: E402

from eaglectl.reference import states  # noqa: E402
from eaglectl.reference.states import AuxStates, RememberedStates  # noqa: E402

FIRST, SECOND = [[5, 6, 7]], [[8, 9]]


class Engine:
    """An engine that counts what it is asked for."""

    embedding = torch.zeros(4, 2)

    def __init__(self, device: str = "cpu") -> None:
        self.device, self.calls = device, 0

    def states(self, batch: Sequence[Sequence[int]]) -> AuxStates:
        self.calls += 1
        tokens = torch.tensor(batch)
        aux = torch.full((*tokens.shape, 2), float(self.calls), device=self.device)
        return AuxStates(tokens, tokens, tokens > 0, aux)


def test_states_on_the_cpu_are_computed_once() -> None:
    engine = Engine()
    remembered = RememberedStates(engine)
    passes = [[remembered.states(batch).aux for batch in (FIRST, SECOND)] for _ in range(2)]
    assert engine.calls == 2
    assert all(torch.equal(first, second) for first, second in zip(*passes, strict=True))


def test_states_beyond_the_room_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MAX_REMEMBERED", 3 * 2 * 4)  # those of FIRST
    engine = Engine()
    remembered = RememberedStates(engine)
    for batch in (FIRST, SECOND, FIRST, SECOND):
        remembered.states(batch)
    assert engine.calls == 3


def test_states_of_another_device_are_not_held() -> None:
    engine = Engine("meta")
    remembered = RememberedStates(engine)
    for _ in range(2):
        remembered.states(FIRST)
    assert engine.calls == 2
