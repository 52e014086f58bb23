"""docs/notebook.ipynb: its cells are run, and what they print is stored in it, without Jupyter."""

import ast
import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import eaglectl

PAGE = Path(__file__).with_name("notebook.ipynb")
FIXTURES = PAGE.parent.parent / "fixtures"
# a cell that runs a model has it: its figures differ in the last digits from machine to machine
MODEL = "runs-a-model"


def prepare(folder: Path) -> None:
    """Write the three checkpoints and the target of the notebook into a folder."""
    for name, source in (("run-1", "eagle3"), ("run-2", "eagle3.1"), ("my-target", "target")):
        shutil.copytree(FIXTURES / "tiny" / source, folder / name)
    shutil.copy(FIXTURES / "tiny/prompts.jsonl", folder / "traffic.jsonl")
    eaglectl.convert(folder / "run-1", folder / "run-3", layout="speculators", target_name="org/my-target")
    for name in ("eaglectl.json", "README.md"):  # it is a trainer's here
        (folder / "run-3" / name).unlink()


def with_outputs(notebook: dict[str, Any], *, has_models: bool = True) -> dict[str, Any]:
    """The notebook with what its cells print, run in a folder that `prepare` wrote.

    Without `has_models` cells that run a model are left out, and have the outputs of before.
    """
    names: dict[str, Any] = {}
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        with contextlib.chdir(folder):
            cells = []
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    count += 1
                    is_left_out = MODEL in cell["metadata"].get("tags", ()) and not has_models
                    outputs = (
                        cell["outputs"] if is_left_out else _outputs("".join(cell["source"]), names, count)
                    )
                    cell = {**cell, "execution_count": count, "outputs": outputs}
                cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line if that is an expression, as Jupyter stores them."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if page := getattr(value, "_repr_html_", lambda: None)():
            data["text/html"] = page.splitlines(keepends=True)
        result = {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result)
    return outputs


def text(notebook: dict[str, Any]) -> str:
    """The file of a notebook, as Jupyter writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def write() -> None:
    """Run all its cells and store what they print."""
    PAGE.write_text(text(with_outputs(json.loads(PAGE.read_text()))))


if __name__ == "__main__":
    write()
