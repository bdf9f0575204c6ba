"""Hold what an ecosystem's own package makes of a patched config against what it makes of the config as it is.

Packages fill in defaults, rewrite some values by themselves, and read numbers out of text. So a package's word counts
for every value that it has as is intended, and against one that it took as it is written in the config as it is.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import SourceFile, read_source
from memplan.configs.evaluation.reader_messages import PackageAnswer, PackageRefusal, PackageRequest
from memplan.configs.keys import leaves, with_value

if TYPE_CHECKING:
    from collections.abc import Callable

_UNREAD = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a config evaluates to.

    Args:
        own: all values, as memplan reads them.
        packages: what the package makes of them, and of what they leave to it.
    """

    own: dict[str, Any]
    packages: dict[str, Any]


def judged_by(
    package: str, read: Callable[[tuple[SourceFile, ...]], Reading]
) -> Callable[[PackageRequest, Callable[[object], None]], None]:
    """Return what answers requests for a package's judgement.

    Args:
        package: name of its distribution.
        read: reads files that are laid over one another, the config last.
    """

    def answer(request: PackageRequest, reply: Callable[[object], None]) -> None:
        """Reply with what the package makes of the patched config, or with a refusal that says which one it refuses."""
        path, over = Path(request.path), [read_source(Path(each)) for each in request.over]
        loader, of_original = f"{package} {importlib.metadata.version(package)}", True
        try:
            before = read((*over, read_source(path)) if path.exists() else tuple(over))
            of_original = False
            after = read((*over, read_source(path, texts={str(path): request.text})))
        except Exception as error:  # noqa: BLE001 - whatever the package raises is its verdict on the file
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            reply(PackageRefusal(loader=loader, problem=problem, of_original=of_original))
        else:
            reply(_judged(before, after, loader))

    return answer


def _judged(before: Reading, after: Reading, loader: str) -> PackageAnswer:
    original, known = leaves(before.own), leaves(before.packages)
    patched, parsed = leaves(after.own), leaves(after.packages)
    own = [key for key in parsed if key in patched]
    confirmed = {key for key in own if parsed[key] == patched[key]}
    denied = [key for key in own if key not in confirmed and known.get(key, _UNREAD) == original.get(key, _UNREAD)]
    values = after.own
    for key in denied:
        values = with_value(values, key, parsed[key])
    changed = (key for key, value in patched.items() if original.get(key, _UNREAD) != value)
    unjudged = (key for key in changed if key not in confirmed and key not in denied)
    return PackageAnswer(values=values, loader=loader, unjudged=tuple(unjudged))
