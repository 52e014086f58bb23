"""The Python sources of a package in a wheel or a folder, as syntax trees; nothing in them is imported or run."""

import ast
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from eaglectl.errors import Unreadable, printable

PACKAGE = "vllm"
MOST = 16 << 20  # bytes of one source file


class Sources:
    """The sources of vLLM: a wheel, a folder that holds the package `vllm`, or the package's own folder. Raises Unreadable."""

    def __init__(self, where: Path) -> None:
        self.where = where
        if where.is_dir():
            self._folder = where / PACKAGE if (where / PACKAGE).is_dir() else where
            self._wheel = None
        else:
            try:
                self._wheel = zipfile.ZipFile(where)
            except (OSError, zipfile.BadZipFile) as error:
                raise Unreadable(f"{printable(str(where))}: neither a folder nor a wheel: {error}") from None
        if self.module("__init__.py") is None:
            raise Unreadable(f"{printable(str(where))}: no Python package {PACKAGE} is in it")

    @property
    def release(self) -> str:
        """The release: by the wheel's name or the metadata beside the package, "unknown" where neither tells."""
        names = (
            [self.where.name]
            if self._wheel
            else [path.name for path in self._folder.parent.glob(f"{PACKAGE}*.dist-info")]
        )
        found = [match[1] for name in names if (match := re.match(rf"{PACKAGE}[a-z_]*-([0-9][0-9a-z.]*)", name))]
        return found[0].removesuffix(".dist") if found else "unknown"

    def module(self, path: str) -> ast.Module | None:
        """The syntax tree of a file of the package; None where it has no such file. Raises Unreadable."""
        data = self._read(path)
        if data is None:
            return None
        try:
            return ast.parse(data)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise Unreadable(f"{path}: not Python that can be read: {error}") from None

    def _read(self, path: str) -> bytes | None:
        try:
            if self._wheel is None:
                file = self._folder / path
                return file.read_bytes()[:MOST] if file.is_file() else None
            member = self._wheel.getinfo(str(PurePosixPath(PACKAGE, path)))
            if member.file_size > MOST:
                raise Unreadable(f"{path}: {member.file_size} bytes are no source file")
            return self._wheel.read(member)
        except KeyError:
            return None
        except (OSError, zipfile.BadZipFile, RuntimeError) as error:
            raise Unreadable(f"{path}: cannot be read: {error}") from None


def functions(tree: ast.AST, name: str) -> Iterator[ast.FunctionDef]:
    """Every function or method of this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield node


def strings(tree: ast.AST) -> list[str]:
    """Every text constant, each once, in the order of the source, documentation left out."""
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documented]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.value for node in found if isinstance(node.value, str)))


def text_of(node: ast.AST | None) -> str | None:
    """The text of a constant."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def called(node: ast.AST) -> str:
    """The last name of what a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
