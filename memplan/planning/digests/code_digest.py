"""A digest of the code that a workload is made of, found by following its imports without running any of it.

Code of the user's own is counted file by file: the modules that are named, what they import, the whole of a package,
and the neighbours of a named module, with the environment variables that they name. Installed packages are counted by
their version. Not counted: what is imported under a name that no source spells out, files other than Python and
compiled modules, and what an installed package imports in turn.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.planning.digests.named_variables import named_variables, steady_variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([A-Za-z_]\w*)[\w.]*[ \t]+import\b|import[ \t]+([^\n#;]+))", re.MULTILINE)
_NAME = re.compile(rb"[A-Za-z_]\w*")
_INSTALLED = ("site-packages", "dist-packages")
_COMPILED = ("*.so", "*.pyd")
# Counted by their versions elsewhere, and by far the largest packages there are.
_KNOWN = frozenset({"torch", "memplan"})


def code_digest(modules: Iterable[str], search_path: Sequence[str]) -> str:
    """Digest the code behind top-level modules and all that they import.

    Args:
        modules: dotted names of where to begin; their neighbours count too.
        search_path: folders tried before ``sys.path``, in order.
    """
    digest = hashlib.sha256()
    for line in sorted(_Imports(search_path).lines(modules)):
        digest.update(os.fsencode(line))
    return digest.hexdigest()


class _Imports:
    """Follows imports from module to module, each once."""

    def __init__(self, search_path: Sequence[str]) -> None:
        self._search_path = tuple(map(Path, search_path))
        self._variables = steady_variables(os.environ)
        self._seen: set[str] = set()
        self._files: set[Path] = set()

    def lines(self, modules: Iterable[str]) -> Iterator[str]:
        """Yield one line for each file and each installed package."""
        named = {each.partition(".")[0] for each in modules}
        pending = sorted(named)
        while pending:
            top = pending.pop()
            if top in self._seen or top in sys.stdlib_module_names or top in _KNOWN:
                continue
            self._seen.add(top)
            place = self._place(top)
            if place is None:
                yield f"{top}: not found"
            elif any(part in _INSTALLED for part in place.parts):
                yield f"{top}: {_version(top, place)}"
            else:
                for path in self._sources(place, with_neighbours=top in named):
                    content = path.read_bytes()
                    yield f"{path}: {hashlib.sha256(content).hexdigest()}"
                    yield from named_variables(content, self._variables)
                    pending.extend(_imported(content))
                yield from _compiled(place)

    def _place(self, top: str) -> Path | None:
        """Return a package's folder or a module's file; None where it is neither, or not found."""
        for folder in self._search_path:
            if (folder / f"{top}.py").is_file():
                return folder / f"{top}.py"
            if (folder / top).is_dir() and (_is_package(folder / top)):
                return folder / top
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            return None
        if spec is None:
            return None
        if spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
        return Path(spec.origin) if spec.has_location and spec.origin else None

    def _sources(self, place: Path, *, with_neighbours: bool) -> list[Path]:
        found = [place]
        if place.is_dir():
            found = list(place.rglob("*.py"))
        elif with_neighbours:
            found = list(place.parent.glob("*.py"))
        new = sorted(set(found) - self._files)
        self._files.update(new)
        return [path for path in new if path.is_file()]


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file() or next(folder.glob("*.py"), None) is not None


def _imported(content: bytes) -> Iterator[str]:
    """Yield the top-level names that a module's source imports absolutely; a name too many does no harm."""
    for origin, listed in _IMPORT.findall(content):
        for clause in [origin] if origin else listed.split(b","):
            if name := _NAME.match(clause.strip()):
                yield name[0].decode()


def _compiled(place: Path) -> Iterator[str]:
    """Yield the compiled modules of a package by size and time; they are not read."""
    if place.is_dir():
        for pattern in _COMPILED:
            for path in sorted(place.rglob(pattern)):
                status = path.stat()
                yield f"{path}: {status.st_size} {status.st_mtime_ns}"


def _version(top: str, place: Path) -> str:
    """Return an installed package's version; its size and time of installation where its name has none."""
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        status = (place / "__init__.py" if (place / "__init__.py").is_file() else place).stat()
        return f"{status.st_size} {status.st_mtime_ns}"
