"""The Python sources of a package in a wheel or a folder, as syntax trees.

Nothing in them is imported or run.
"""

import ast
import re
import warnings
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from eaglectl.checkpoint.files import open_regular, read_small_file
from eaglectl.errors import UnreadableError
from eaglectl.text import printable

PACKAGE = "vllm"
MOST = 16 << 20  # bytes of one source file
# what zipfile and the decompressors raise for a wheel that is broken or of a kind that they do not know
UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
# others take memory that the member itself chooses
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Sources:
    """The sources of vLLM: a wheel, a folder that holds the package `vllm`, or the package's own folder.

    Raises UnreadableError.
    """

    def __init__(self, where: Path) -> None:
        self.where = where
        if where.is_dir():
            self._folder = where / PACKAGE if (where / PACKAGE).is_dir() else where
            self._wheel = None
        else:
            file = open_regular(where)
            weakref.finalize(self, file.close)
            try:
                self._wheel = zipfile.ZipFile(file)
            except UNREADABLE as error:
                raise UnreadableError(
                    f"{printable(str(where))}: neither a folder nor a wheel: {error}"
                ) from None
        if self.module("__init__.py") is None:
            raise UnreadableError(
                f"{printable(str(where))}: no Python package {PACKAGE} is in it{self._reason}"
            )

    @property
    def _reason(self) -> str:
        if "sglang" not in self.where.name.lower():
            return ""
        return "; SGLang's releases cannot be scanned yet: read its sources, and write their entry by hand"

    @property
    def release(self) -> str:
        """The release by the wheel's name or the metadata beside the package.

        "unknown" where neither states it.
        """
        names = [self.where.name]
        if self._wheel is None:
            names = [path.name for path in self._folder.parent.glob(f"{PACKAGE}*.dist-info")]
        matches = [re.match(rf"{PACKAGE}[a-z_]*-([0-9][0-9a-z.]*)", name) for name in names]
        releases = [match[1].removesuffix(".dist") for match in matches if match]
        return releases[0] if releases else "unknown"

    def module(self, path: str) -> ast.Module | None:
        """The syntax tree of a file of the package; None where it has no such file.

        Raises UnreadableError.
        """
        data = self._read(path)
        if data is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes that Python will refuse
                return ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableError(f"{path}: not Python that can be read: {error}") from None

    def _read(self, path: str) -> bytes | None:
        try:
            if self._wheel is None:
                file = self._folder / path
                return read_small_file(file, MOST) if file.exists() else None
            member = self._wheel.getinfo(str(PurePosixPath(PACKAGE, path)))
            if max(member.file_size, member.compress_size) > MOST:
                raise UnreadableError(f"{path}: {member.file_size} bytes are no source file")
            if member.compress_type not in METHODS:
                raise UnreadableError(f"{path}: it is compressed as no wheel is; take the wheel of the index")
            return self._wheel.read(member)
        except KeyError:
            return None
        except UNREADABLE as error:
            raise UnreadableError(f"{path}: cannot be read: {error}") from None


def functions(tree: ast.AST, name: str) -> Iterator[ast.FunctionDef]:
    """Every function or method of this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield node


def strings(tree: ast.AST) -> list[str]:
    """Every text constant, each once, in the order of the source, documentation left out."""
    documented = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    constants = [
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documented
    ]
    constants.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.value for node in constants if isinstance(node.value, str)))


def text_of(node: ast.AST | None) -> str | None:
    """The text of a constant."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def called(node: ast.AST) -> str:
    """The last name of what a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
