"""Child process that has a package load a patched config, or compares its readings of that and of the original.

Packages fill in defaults, rewrite some values by themselves, and read numbers out of text. So a package's reading
counts for every value that it reads as intended, and against one that it reads as written in the original.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

from memplan import children
from memplan.configs.documents import read_source
from memplan.configs.keys import leaves, with_value
from memplan.configs.packages.loaders import LOADERS, loaded_by_package
from memplan.configs.packages.messages import PackageAnswer, PackageRefusal
from memplan.configs.packages.readers import (
    Reading,
    read_with_accelerate,
    read_with_jsonargparse,
    read_with_pyyaml,
    read_with_transformers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs.documents import SourceFile
    from memplan.configs.packages.messages import PackageRequest

# Package as it is imported -> its distribution, and what has it read files.
_READERS: dict[str, tuple[str, Callable[[tuple[SourceFile, ...]], Reading]]] = {
    "accelerate": ("accelerate", read_with_accelerate),
    "jsonargparse": ("jsonargparse", read_with_jsonargparse),
    "transformers": ("transformers", read_with_transformers),
    "yaml": ("PyYAML", read_with_pyyaml),
}
_UNREAD = object()


def answer(request: PackageRequest, reply: Callable[[object], None]) -> None:
    """Reply with what the package that a request names makes of the config."""
    if request.package in LOADERS:
        reply(loaded_by_package(request))
        return
    distribution, read = _READERS[request.package]
    loader = f"{distribution} {importlib.metadata.version(distribution)}"
    reply(judgement_on(request, read=read, loader=loader))


def judgement_on(
    request: PackageRequest, *, read: Callable[[tuple[SourceFile, ...]], Reading], loader: str
) -> PackageAnswer | PackageRefusal:
    """Return a package's reading of the patched config, or a refusal that says which of the two it refuses.

    Args:
        request: the patched config, and where it belongs.
        read: has the package read files that are laid over one another, the config last.
        loader: name and version of the package.
    """
    path, over = Path(request.path), [read_source(Path(each)) for each in request.over]
    of_original = True
    try:
        before = read((*over, read_source(path)) if path.exists() else tuple(over))
        of_original = False
        after = read((*over, read_source(path, texts={str(path): request.text})))
    except Exception as error:  # noqa: BLE001 - whatever the package raises is its verdict on the file
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        return PackageRefusal(loader=loader, problem=problem, of_original=of_original)
    return _judged(before, after, loader)


def _judged(before: Reading, after: Reading, loader: str) -> PackageAnswer:
    original, known = leaves(before.own), leaves(before.package)
    patched, parsed = leaves(after.own), leaves(after.package)
    own = [key for key in parsed if key in patched]
    confirmed = {key for key in own if parsed[key] == patched[key]}
    denied = [key for key in own if key not in confirmed and known.get(key, _UNREAD) == original.get(key, _UNREAD)]
    values = after.own
    for key in denied:
        values = with_value(values, key, parsed[key])
    changed = (key for key, value in patched.items() if original.get(key, _UNREAD) != value)
    unjudged = (key for key in changed if key not in confirmed and key not in denied)
    return PackageAnswer(values=values, loader=loader, unjudged=tuple(unjudged))


if __name__ == "__main__":
    children.serve(answer)
