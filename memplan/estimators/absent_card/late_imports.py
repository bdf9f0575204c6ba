"""Work on a module that may be imported later than now."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType


@contextmanager
def when_imported(name: str, work: Callable[[ModuleType], None]) -> Iterator[None]:
    """Do some work on a module at once where it is loaded, else right after its import while the context is open.

    Args:
        name: dotted name of the module.
        work: gets the module.
    """
    if name in sys.modules:
        work(sys.modules[name])
        yield
        return
    finder = _FinderOfOne(name, work)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _FinderOfOne(MetaPathFinder):
    """Finds one module as always, and has it worked on once it is loaded."""

    def __init__(self, name: str, work: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._work = work

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loading = loader.exec_module

            def load_then_work(module: ModuleType) -> None:
                loading(module)
                self._work(module)

            loader.exec_module = load_then_work
        return spec
