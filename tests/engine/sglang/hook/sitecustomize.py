"""Python runs this at its start where the folder is on PYTHONPATH: SGLang then finds the stand-ins, in every
process that it starts. eaglectl itself knows nothing of them.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import Any


class StandIns(importlib.abc.MetaPathFinder):
    """Installs the stubs before SGLang is imported, and the functions before its scheduler is."""

    is_stubbed = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == "sglang" and not self.is_stubbed:
            self.is_stubbed = True
            from tests.engine.sglang import stubs

            stubs.install()
        if name == "sglang.srt.managers.scheduler":
            sys.meta_path.remove(self)
            from tests.engine.sglang import kernels

            kernels.stand_in()
            return watched(importlib.util.find_spec(name))
        return None


def watched(spec: Any) -> importlib.machinery.ModuleSpec:
    """The scheduler's module, whose streams have nothing to wait for on a CPU."""
    execute = spec.loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        initialise = module.Scheduler.__init__

        def started(self: Any, *arguments: Any, **named: Any) -> None:
            initialise(self, *arguments, **named)
            self.schedule_stream.synchronize = lambda: None

        module.Scheduler.__init__ = started

    spec.loader.exec_module = exec_module
    return spec


sys.meta_path.insert(0, StandIns())
