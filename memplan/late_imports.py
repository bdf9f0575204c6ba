"""Work on a module that may be imported later than now.

Standard library only, any Python that runs torch: it is copied beside what observes training scripts.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
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
    finder = work_once_imported(name, work)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def work_once_imported(name: str, work: Callable[[ModuleType], None]) -> LateImport:
    """Do some work on a module at once where it is loaded, else right after its import; return what waits for that.

    Args:
        name: dotted name of the module.
        work: gets the module.
    """
    finder = LateImport(name, work)
    if name in sys.modules:
        work(sys.modules[name])
    else:
        sys.meta_path.insert(0, finder)
    return finder


class LateImport:
    """Finds one module as always, and has it worked on once it is loaded; nothing else is touched.

    It goes first in ``sys.meta_path``, and leaves that when the module is found.

    Args:
        name: dotted name of the module.
        work: gets the module.
    """

    def __init__(self, name: str, work: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._work = work

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the module's own spec, its loader followed by the work; None for any other module."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loading = loader.exec_module

            def load_then_work(module: ModuleType) -> None:
                loading(module)
                self._work(module)

            loader.exec_module = load_then_work
        return spec
