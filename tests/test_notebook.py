"""docs/notebook.ipynb runs, and shows what its cells print."""

import builtins
import json
import sys
from types import ModuleType
from typing import Any

import pytest

import eaglectl
from docs import notebook
from eaglectl.options import CALLER
from tests.tiny import TARGET, TINY

STORED = json.loads(notebook.PAGE.read_text())


@pytest.fixture(autouse=True)
def from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CALLER, "is_command_line", False)


def outputs(document: dict[str, Any], *, of_models: bool) -> list[Any]:
    """The outputs of the cells that run a model, or of the others."""
    return [
        cell["outputs"]
        for cell in document["cells"]
        if cell["cell_type"] == "code" and (notebook.MODEL in cell["metadata"].get("tags", ())) == of_models
    ]


def texts(document: dict[str, Any]) -> list[Any]:
    """What the cells that run no model print, as text."""
    return [
        [output.get("text") or output["data"]["text/plain"] for output in cell]
        for cell in outputs(document, of_models=False)
    ]


def test_its_cells_print_what_it_shows_and_it_stores_the_page_of_a_result() -> None:
    now = notebook.with_outputs(STORED, has_models=False)
    assert texts(now) == texts(STORED)
    assert sum(map(bool, texts(now))) == 7
    # of the last `make docs`: what a page looks like is held by the tests of pages
    shown = [output.get("data", {}) for cell in outputs(STORED, of_models=False) for output in cell]
    (page,) = ["".join(data["text/html"]) for data in shown if "text/html" in data]
    assert page.startswith("<strong>") and "&lt;pre" in page


@pytest.mark.slow
def test_its_models_run_too() -> None:
    pytest.importorskip("transformers")
    (((stored,),), ((now,),)) = (
        outputs(document, of_models=True) for document in (STORED, notebook.with_outputs(STORED))
    )
    assert [line.split()[0] for line in now["text"]] == ["run-1", "run-2", "run-3"]
    assert [line.split()[1] for line in now["text"]] == [line.split()[1] for line in stored["text"]]


def test_a_result_in_a_kernel_is_one_display(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = type("ZMQInteractiveShell", (), {})()  # by its name rich knows a notebook
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    display, shown = ModuleType("IPython.display"), list[Any]()
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    result = eaglectl.inspect(TINY / "eagle3", target=TARGET)
    assert "<iframe" in str(result._repr_html_())
    assert str(result).startswith("pass: vLLM ")
    assert shown == [] and capsys.readouterr() == ("", "")
