"""Stand-ins for packages that SGLang imports at module level and that need a GPU; install them before SGLang.

Every name of a stub is a class that does nothing: enough to be imported, subclassed and used as a decorator.
A call in earnest raises, so that no stub confirms anything.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Collection
from typing import Any

STUBBED = (
    "torchvision", "sgl_kernel", "flashinfer", "deep_gemm", "decord", "torchcodec", "torchaudio", "tilelang",
    "cutlass", "quack", "cuda",
)  # fmt: skip
# transformers remembers which of these there are; it is asked before the stubs are
ASKED = (
    "is_torchvision_available",
    "is_torchaudio_available",
    "is_torchcodec_available",
    "is_decord_available",
)


class StubCalledError(RuntimeError):
    """A stub was called as if it were the package that it stands for."""


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Nothing(metaclass=_Meta):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and callable(arguments[0]):
            return arguments[0]  # a decorator
        raise StubCalledError("a stub was called")

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class _Stub(types.ModuleType):
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(names: Collection[str] = STUBBED) -> None:
    """Put the stubs of these where imports look last, so that an installed package goes before them."""
    import transformers.utils.import_utils as known

    for name in ASKED:
        if ask := getattr(known, name, None):
            ask()
    sys.meta_path.append(_Finder(names))


def without_processors() -> None:
    """Let SGLang register image processors that transformers up to 5.12 lacks without torchvision."""
    import sglang  # noqa: F401  (it loads transformers anew)
    import transformers

    if hasattr(transformers.AutoImageProcessor, "_backends"):
        transformers.AutoImageProcessor = _Nothing
