"""The plugin without an engine: hooks, what they must not cost, and updates of a drafter's weights."""

import logging
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from eaglectl.engines.registry import ENGINES
from eaglectl.in_engine import hooks, sglang, vllm
from eaglectl.in_engine.hooks import Hook, RefusedStart, Start, guarded, mode, register
from eaglectl.in_engine.installed import GROUPS, find_plugin
from tests.builders import call, drafter_folder, loaded_after, target_of
from tests.hub import client_hub
from tests.tiny import TARGET, TINY

torch = pytest.importorskip("torch")

START = Start("vllm", "drafter", "target")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class of an engine, in a module that is loaded; nothing is wrapped yet."""

    class Arguments:
        def make(self, value: int) -> int:
            return value + 1

    module = ModuleType("some_engine")
    module.Arguments = Arguments  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_engine", module)
    monkeypatch.setattr(hooks, "WRAPPED", set())
    return Arguments


def doubled(original: Any, arguments: Any, value: int) -> int:
    return 2 * int(original(arguments, value))


HOOK = Hook("some_engine", "Arguments.make", doubled)


def test_a_function_is_wrapped_once_however_often_the_plugin_is_loaded(engine: type) -> None:
    register("vllm", [HOOK])
    register("vllm", [HOOK])
    assert engine().make(1) == 4
    first = engine.make  # type: ignore[attr-defined]
    engine.make = lambda *given: first(*given) + 1  # type: ignore[attr-defined]
    register("vllm", [HOOK])
    assert engine().make(1) == 5


def test_nothing_is_wrapped_if_it_is_off(engine: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLECTL_IN_ENGINE", "off")
    register("vllm", [HOOK])
    assert engine().make(1) == 2


def test_a_function_that_is_gone_is_one_warning(engine: type, caplog: pytest.LogCaptureFixture) -> None:
    register("vllm", [Hook("some_engine", "Arguments.build", doubled)])
    register("vllm", [Hook("no_such_engine", "Arguments.make", doubled)])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "has no attribute 'build'); the engine starts as it does without eaglectl" in caplog.text
    assert engine().make(1) == 2


@pytest.mark.parametrize(
    ("value", "meant"),
    [("warn", "warn"), ("REFUSE", "refuse"), (" off ", "off"), ("", "warn"), ("on", "warn"), ("1", "warn")],
)
def test_a_mode_that_is_none_warns(value: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLECTL_IN_ENGINE", value)
    assert mode() == meant


def test_every_error_is_a_warning_but_a_refused_start(caplog: pytest.LogCaptureFixture) -> None:
    for error in (ValueError("a\nb"), MemoryError(), ImportError("torch"), AttributeError("x")):
        with guarded("sglang"):
            raise error
    assert len(caplog.records) == 4 and {record.name for record in caplog.records} == {"sglang.eaglectl"}
    assert "(ValueError: a b)" in caplog.records[0].getMessage()
    with pytest.raises(RefusedStart), guarded("sglang"):
        raise RefusedStart("no")


def test_the_entry_points_load_the_standard_library_alone() -> None:
    loaded = loaded_after("from eaglectl.in_engine.plugin import register_vllm; register_vllm()")
    own = {name for name in loaded if name.startswith("eaglectl")}
    assert own <= {"eaglectl", *(f"eaglectl.in_engine{part}" for part in OF_PLUGIN)}
    assert not loaded & {"torch", "msgspec", "numpy", "typer", "huggingface_hub"}


OF_PLUGIN = ("", ".plugin", ".hooks", ".calls", ".vllm", ".sglang")


def config(**changes: Any) -> SimpleNamespace:
    speculative = SimpleNamespace(method="eagle3", model="org/drafter", revision="r1")
    model = SimpleNamespace(model="org/target", revision=None)
    return SimpleNamespace(**{"speculative_config": speculative, "model_config": model, **changes})


def test_a_start_is_that_of_an_eagle3_drafter() -> None:
    started = config()
    start = Start("vllm", "org/drafter", "org/target", "r1", arguments=started.model_config)
    assert vllm.start_of(started) == start
    assert vllm.start_of(config(use_v2_model_runner=True)) == start._replace(runner="V2")
    assert vllm.start_of(config(speculative_config=None)) is None
    assert vllm.start_of(config(speculative_config=SimpleNamespace(method="mtp"))) is None
    arguments = SimpleNamespace(
        speculative_config={"method": "eagle3", "model": "d"}, model="t", revision=None
    )
    assert vllm.start_of_arguments(arguments) == Start("vllm", "d", "t")
    assert vllm.start_of_arguments(SimpleNamespace(speculative_config=None)) is None
    served = SimpleNamespace(
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path="d",
        speculative_draft_model_revision=None,
        model_path="t",
        revision="r2",
    )
    assert sglang.start_of(served) == Start("sglang", "d", "t", None, "r2", arguments=served)
    assert sglang.start_of(SimpleNamespace(speculative_algorithm=None)) is None
    assert sglang.start_of(SimpleNamespace(**{**vars(served), "speculative_algorithm": "EAGLE"})) is None


@pytest.mark.parametrize(("variable", "is_named"), [("lora", False), ("", False), ("lora, eaglectl", True)])
def test_the_engines_command_says_whether_the_plugin_is_loaded(
    variable: str, is_named: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, group = ENGINES["vllm"], GROUPS["vllm"]
    assert find_plugin(ENGINES["llama.cpp"]) is None
    (tmp_path / "vllm/plugins").mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").touch()
    (tmp_path / "vllm/plugins/__init__.py").write_text(f'GROUP = "{group.name}"')
    (tmp_path / "vllm-0.32.0.dist-info").mkdir()
    (tmp_path / "vllm-0.32.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = find_plugin(engine)
    assert plugin is not None and plugin.is_loaded and plugin.why == "EAGLECTL_IN_ENGINE is warn"
    monkeypatch.setenv("VLLM_PLUGINS", variable)
    plugin = find_plugin(engine)
    assert plugin is not None and plugin.is_loaded == is_named
    assert is_named or plugin.why == f"VLLM_PLUGINS={variable} leaves eaglectl out"
    monkeypatch.delenv("VLLM_PLUGINS")
    monkeypatch.setenv("EAGLECTL_IN_ENGINE", "off")
    plugin = find_plugin(engine)
    assert plugin is not None and not plugin.is_loaded and plugin.why == "EAGLECTL_IN_ENGINE is off"
    (tmp_path / "vllm/plugins/__init__.py").write_text("")
    plugin = find_plugin(engine)
    assert plugin is not None and plugin.why == "it has no plugin group vllm.general_plugins"


class Model(torch.nn.Module):  # type: ignore[misc]
    """A model whose loader copies the tensors that it has a place for."""

    def __init__(self, head: Any = None) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3, bias=False)
        self.norm = torch.nn.RMSNorm(3)
        self.head = head or torch.nn.Linear(3, 5, bias=False)

    def load_weights(self, weights: Any) -> set[str]:
        mine = dict(self.named_parameters())
        arrived = dict(weights)
        for name in arrived.keys() & mine.keys():
            mine[name].data.copy_(arrived[name])
        return arrived.keys() & mine.keys()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def served(caplog: pytest.LogCaptureFixture) -> Iterator[SimpleNamespace]:
    """A drafter with the target's head, watched, with a clock, and what was logged."""
    from eaglectl.in_engine.updates import watch_updates

    target, clock = Model(), Clock()
    drafter = Model(target.head)
    watch_updates(START, drafter, target, clock)
    caplog.set_level(logging.INFO)
    yield SimpleNamespace(drafter=drafter, target=target, clock=clock, log=caplog)


def tensors(model: Any, *left_out: str) -> list[tuple[str, Any]]:
    """New values for the parameters of a drafter, without its shared head and those named."""
    names = [name for name, _ in model.named_parameters() if not name.startswith(("head", *left_out))]
    return [(name, torch.ones_like(model.get_parameter(name))) for name in names]


def test_an_update_that_fills_all_is_silent_and_changes_nothing_of_the_engine(
    served: SimpleNamespace,
) -> None:
    head = served.target.head.weight.detach().clone()
    for now in (0.0, 100.0, 200.0):
        served.clock.now = now
        assert served.drafter.load_weights(iter(tensors(served.drafter))) == {"fc.weight", "norm.weight"}
        served.target.load_weights(tensors(served.target))
    assert served.log.records == []
    assert served.drafter.fc.weight.eq(1).all() and served.target.head.weight.equal(head)


def test_parameters_that_an_update_leaves_are_named_once_it_is_over(served: SimpleNamespace) -> None:
    before = served.drafter.norm.weight.detach().clone()
    served.drafter.load_weights(tensors(served.drafter, "norm"))
    assert served.drafter.norm.weight.equal(before) and served.log.records == []
    served.clock.now = 100.0
    served.drafter.load_weights(tensors(served.drafter))
    assert [record.getMessage() for record in served.log.records] == [
        "eaglectl: no tensor of the last update of the drafter filled norm.weight"
    ]


def test_an_update_in_parts_is_one_update(served: SimpleNamespace) -> None:
    served.drafter.load_weights(tensors(served.drafter, "norm"))
    served.clock.now = 5.0
    served.drafter.load_weights(tensors(served.drafter, "fc"))
    served.clock.now = 100.0
    served.drafter.load_weights(tensors(served.drafter))
    assert served.log.records == []


def test_tensors_without_a_place_and_no_tensor_are_named(served: SimpleNamespace) -> None:
    served.drafter.load_weights([(f"draft.{name}", tensor) for name, tensor in tensors(served.drafter)])
    served.clock.now = 30.0
    served.drafter.load_weights([])  # within a minute of the first
    served.clock.now = 90.0
    served.drafter.load_weights([])
    assert [record.getMessage() for record in served.log.records] == [
        "eaglectl: no tensor of an update of the drafter has a place in it: draft.fc.weight,"
        " draft.norm.weight",
        "eaglectl: an update of the drafter brought no tensor",
    ]


def test_a_target_that_is_updated_alone_is_named(served: SimpleNamespace) -> None:
    for now in (0.0, 3.0, 100.0, 200.0):
        served.clock.now = now
        served.target.load_weights(tensors(served.target))
    assert len(served.log.records) == 1
    assert "the target was updated 3 times, and no tensor of the drafter has arrived" in served.log.text


@pytest.mark.parametrize("prefix", ["draft.", None])
def test_an_update_without_a_tensor_for_the_drafter_is_none(
    prefix: str | None, served: SimpleNamespace
) -> None:
    """Tensors without a place in it, or no tensor at all."""
    found = [] if prefix is None else [(f"{prefix}{name}", t) for name, t in tensors(served.drafter)]
    served.drafter.load_weights(found)
    for now in (100.0, 200.0, 300.0):
        served.clock.now = now
        served.target.load_weights(tensors(served.target))
    assert "the target was updated 3 times, and no tensor of the drafter has arrived" in served.log.text


def test_a_loader_that_fails_leaves_the_drafter_as_it_was(served: SimpleNamespace) -> None:
    before = served.drafter.fc.weight.detach().clone()

    def failing() -> Iterator[Any]:
        yield from ()
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        served.drafter.load_weights(failing())
    assert served.drafter.fc.weight.equal(before)


@pytest.fixture
def vllm_032(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which vLLM 0.32.0 is loaded."""
    module = ModuleType("vllm")
    module.__version__ = "0.32.0+cpu"  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.delenv("EAGLECTL_IN_ENGINE_SPOKEN", raising=False)


def test_a_repository_is_read_out_of_the_cache_and_without_the_hub(
    vllm_032: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("huggingface_hub")
    from eaglectl.in_engine.look import before

    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    start = Start("vllm", "org/drafter", str(TARGET), runner="V1")
    with client_hub(monkeypatch, tmp_path) as hub:
        hub.add_repo("org/drafter", TINY / "eagle3")
        assert call("convert", "org/drafter", "--target", TARGET, "-o", "out").code == 0
        asked = len(hub.requests)
        before(start)
        before(start._replace(drafter="org/other"))
        assert len(hub.requests) == asked
    first, other = (record.getMessage() for record in caplog.records if record.name == "vllm.eaglectl")
    assert first == "eaglectl: vLLM 0.32.0 runs it as trained, weights not read"
    assert other.startswith(
        "eaglectl: it is not known whether the drafter runs as it was trained: org/other: "
    )


def test_a_child_of_the_process_that_has_spoken_is_silent(
    vllm_032: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from eaglectl.in_engine.look import before

    caplog.set_level(logging.INFO)
    start = Start("vllm", str(TINY / "eagle3"), str(TARGET), runner="V1")
    before(start)
    before(start)
    assert len(caplog.records) == 2
    monkeypatch.setenv("EAGLECTL_IN_ENGINE_SPOKEN", f"1 {start.drafter} {start.target}")
    before(start)
    assert len(caplog.records) == 2
    before(start._replace(drafter=str(TINY / "eagle3.1")))
    assert len(caplog.records) == 3


def test_no_file_in_or_beside_the_checkpoint_answers_for_it(
    vllm_032: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglectl.in_engine.look import judge

    drafter, server = tmp_path / "drafter", tmp_path / "server"
    shutil.copytree(TINY / "eagle3", drafter)
    server.mkdir()
    text = "[defaults]\nassume = true\n"
    (drafter / "eaglectl.toml").write_text(text)
    monkeypatch.chdir(drafter)
    start = Start("vllm", str(drafter), str(TARGET), runner="V1")
    assert judge(start)[1] == ""
    (server / "eaglectl.toml").write_text(text)
    monkeypatch.chdir(server)
    assert judge(start)[1] == " (answers from eaglectl.toml)"


@pytest.mark.parametrize(("meaning", "is_compared"), [("offset", True), ("absolute", False)])
def test_the_answers_hold_for_the_draft_tokens_too(
    meaning: str, is_compared: bool, vllm_032: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglectl.in_engine.look import _draft_tokens, judge

    # the table holds offsets: the other answer contradicts it
    (tmp_path / "policy.toml").write_text(f'[defaults]\nsource-semantics = {{ d2t = "{meaning}" }}\n')
    monkeypatch.setenv("EAGLECTL_POLICY", str(tmp_path / "policy.toml"))
    inspection, _, answers = judge(Start("vllm", str(TINY / "eagle3"), str(TARGET), runner="V1"))
    assert (_draft_tokens(inspection, answers) is not None) == is_compared


@pytest.mark.parametrize(
    ("window", "level", "words"),
    [
        (511, logging.INFO, "runs it as trained, started with --speculative-draft-window-size 511"),
        (512, logging.WARNING, "this start does not have --speculative-draft-window-size 511"),
        (None, logging.WARNING, "this start does not have --speculative-draft-window-size 511"),
    ],
)
def test_a_start_without_the_option_that_the_drafter_needs_is_a_warning(
    window: int | None,
    level: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from eaglectl.in_engine.look import before

    module = ModuleType("sglang")
    module.__version__ = "0.5.23"  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("sglang", None)
    monkeypatch.setitem(sys.modules, "sglang", module)
    monkeypatch.delenv("EAGLECTL_IN_ENGINE_SPOKEN", raising=False)
    caplog.set_level(logging.INFO)
    sliding = {"layer_types": ["sliding_attention"], "sliding_window": 512}
    drafter, target = drafter_folder(tmp_path, config=sliding), target_of(tmp_path / "target")
    arguments = SimpleNamespace(speculative_draft_window_size=window)
    before(Start("sglang", str(drafter), str(target), arguments=arguments))
    assert caplog.records[0].levelno == level
    assert words in " ".join(record.getMessage() for record in caplog.records)
