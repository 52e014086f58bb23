"""docs/notebook.ipynb runs and shows what its cells print; results, errors and progress in a real kernel."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from docs import notebook
from eaglectl.options import CALLER
from tests.conftest import FIXTURES
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


# ------------------------------------------------------------------------------------------ in a kernel

CELLS = {
    "inspect": "eaglectl.inspect(drafter, target=target)",
    "several": "eaglectl.inspect([drafter, 'absent'], target=target)",
    "validate": "eaglectl.validate(drafter, target=target)",
    "convert": "eaglectl.convert(drafter, 'out', target=target)",
    "unread": "eaglectl.ready(drafter, target=config)",
    "ready": "eaglectl.ready(drafter, target=target, max_tokens=8, device='cpu')",
    "smoke": "eaglectl.smoke(drafter, target=target, run_in='reference', device='cpu')",
    "wrong keyword": "eaglectl.smoke(drafter, target=target, num_speculative_tokens=3)",
    "wrong value": "eaglectl.convert(drafter, 'out', target=target)",
    "printed": "print(eaglectl.validate(drafter, target=target))",
}
ONE = ("inspect", "several", "validate", "convert")
MODELS = ("ready", "smoke")


class Run:
    """A run of CELLS: the outputs that the notebook stores, and the messages of each cell."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Any]] = {}
        self.messages: dict[str, Counter[str]] = {}

    def shown(self, name: str) -> list[dict[str, str]]:
        """What is seen of a cell: its outputs but those that are empty."""
        data = [output.get("data", dict(output)) for output in self.outputs[name]]
        return [content for content in data if any(content.values())]


def run_cells(names: Sequence[str], folder: Path) -> Run:
    """Run cells in a real kernel, whose working folder is `folder`."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    run, places = Run(), {"drafter": TINY / "eagle3", "target": TARGET, "config": FIXTURES / "target"}
    settings = "\n".join(["import eaglectl", *(f"{name} = {str(path)!r}" for name, path in places.items())])
    cells = [nbformat.v4.new_code_cell(source) for source in (settings, *map(CELLS.get, names))]

    class Client(nbclient.NotebookClient):  # type: ignore[misc]
        def process_message(self, message: Any, cell: Any, index: int) -> Any:
            kind = message["header"]["msg_type"]
            run.messages.setdefault(["", *names][index], Counter())[kind] += 1
            return super().process_message(message, cell, index)

    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("HF_HUB_OFFLINE", "1")
        for variable in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(variable, str(folder / variable))
        resources = {"metadata": {"path": str(folder)}}
        document = nbformat.v4.new_notebook(cells=cells)
        Client(document, timeout=300, allow_errors=True, kernel_name="python3", resources=resources).execute()
    run.outputs = {name: cell.outputs for name, cell in zip(names, cells[1:], strict=True)}
    return run


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the cells that run no model."""
    return run_cells([name for name in CELLS if name not in MODELS], tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the cells that run a model."""
    pytest.importorskip("transformers")
    return run_cells(MODELS, tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", ONE)
def test_a_result_is_one_display(name: str, kernel: Run) -> None:
    (output,) = kernel.outputs[name]
    assert output.output_type == "execute_result"


@pytest.mark.parametrize("name", [*ONE, "unread"])
def test_a_result_has_its_text_and_its_page(name: str, kernel: Run) -> None:
    check_result(name, kernel)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_result_of_a_run_has_too_and_no_package_prints(name: str, models: Run) -> None:
    check_result(name, models)


def check_result(name: str, run: Run) -> None:
    """Nothing is seen of a cell but its result."""
    assert not [output for output in run.outputs[name] if output.output_type in ("stream", "error")]
    (data,) = run.shown(name)
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/plain"].startswith(("<", "(<")) and "\n</iframe" not in data["text/plain"]
    assert data["text/html"].startswith("<strong>") and "<iframe srcdoc=" in data["text/html"]


def test_several_results_have_a_first_line_each(kernel: Run) -> None:
    (data,) = kernel.shown("several")
    head = data["text/html"].partition("</strong>")[0]
    assert [line.partition(":")[0] for line in head.removeprefix("<strong>").split("<br>")] == [
        "pass",
        "could not look",
    ]


def test_a_first_line_is_not_cut(kernel: Run) -> None:
    (data,) = kernel.shown("convert")
    assert data["text/plain"].endswith("now differs>")
    assert data["text/plain"].removeprefix("<Conversion: ").removesuffix(">") in data["text/html"]


def test_progress_is_one_line_that_ends_empty(kernel: Run) -> None:
    check_progress("unread", kernel)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_progress_of_a_run_is_one_line_that_is_updated(name: str, models: Run) -> None:
    check_progress(name, models)


def check_progress(name: str, run: Run) -> None:
    line, result = run.outputs[name]
    assert (line.output_type, result.output_type) == ("display_data", "execute_result")
    assert not any(line.data.values())
    assert run.messages[name]["display_data"] == 1
    assert 2 <= run.messages[name]["update_display_data"] <= 100  # five a second


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        (
            "wrong keyword",
            "TypeError",
            "smoke() got an unexpected keyword argument 'num_speculative_tokens'; use k=...",
        ),
        ("wrong value", "UsageError", "out exists already; pass another out, or force to replace it"),
    ],
)
def test_an_error_is_in_pythons_words(name: str, kind: str, words: str, kernel: Run) -> None:
    error = kernel.outputs[name][-1]
    assert (error.output_type, error.ename, error.evalue) == ("error", kind, words)
    assert "--" not in error.evalue


def test_a_result_is_printed_as_in_the_terminal(kernel: Run) -> None:
    (stream,) = kernel.outputs["printed"]
    assert (stream.output_type, stream.name) == ("stream", "stdout")
    assert stream.text.startswith("pass: ") and "<iframe" not in stream.text
