"""Where in the user's code something happened: the innermost frame that is not PyTorch's, memplan's or Python's own."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.errors import WorkloadError, raised_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import CodeType, FrameType

_MEMPLAN = Path(__file__).parent
_DUMPED_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in ', re.MULTILINE)  # as faulthandler writes it
_NAMED_PLACES = 3
_DUMP_STARTS = "(most recent call first):"


def error_of_user(what: str, error: BaseException, *, hint: str | None = None) -> WorkloadError:
    """Return the error that tells of what the user's code raised: what, where, and the traceback as detail.

    Args:
        what: what was done with the user's code; the text of the error follows it.
        error: what was raised.
        hint: what the user can do about it; None when nothing sensible can be said.
    """
    trace = "".join(traceback.format_exception(error))
    return WorkloadError(f"{what}: {raised_text(error)}", where=place_of_error(error), hint=hint, detail=trace)


def place_of_error(error: BaseException) -> str | None:
    """Return ``file:line`` of the user's frame an error passed last; None where it passed none."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return _innermost(reversed(frames))


def place_of_call() -> str | None:
    """Return ``file:line`` of the user's innermost frame that is running now; None where there is none."""
    return _innermost((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(None))


def running_code() -> Iterator[CodeType]:
    """Yield the code that is running now, innermost first, but for PyTorch's, memplan's and Python's own."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    return (frame.f_code for frame in frames if not _is_machinery(frame.f_code.co_filename))


def users_place_of_caller() -> str | None:
    """Return ``file:line`` of the call of the calling function if it is in the user's own file; None elsewhere."""
    frame = sys._getframe(2)  # noqa: SLF001 - the frame itself, without the cost of a whole stack
    name = frame.f_code.co_filename
    return _written(name, frame.f_lineno) if _is_users(name) else None


def is_called_by_user() -> bool:
    """Whether the calling function was called in one of the user's own files."""
    return _is_users(sys._getframe(2).f_code.co_filename)  # noqa: SLF001 - as above


def calling_module() -> str:
    """Return the module of the code that called the calling function; empty where it has none."""
    return _module_of(sys._getframe(2))  # noqa: SLF001 - as above


def _module_of(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


def named_places(places: Collection[str]) -> str:
    """Name the first few of some places, and how many more there are."""
    named = list(places)[:_NAMED_PLACES]
    more = len(places) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def place_in_dump(text: str) -> str | None:
    """Return ``file:line`` of the user's innermost frame in the last stack dump of a text; None where there is none."""
    dump = text.rpartition(_DUMP_STARTS)[2]
    return _innermost((name, int(line)) for name, line in _DUMPED_FRAME.findall(dump))


def _innermost(frames: Iterable[tuple[str, int]]) -> str | None:
    """Take the first frame of the user's own files; without one, the first of an installed package."""
    foreign = None
    for name, line in frames:
        if _is_machinery(name):
            continue
        if _is_users(name):
            return _written(name, line)
        foreign = foreign or _written(name, line)
    return foreign


@functools.cache
def _is_machinery(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() or any(path.is_relative_to(folder) for folder in _machinery())


@functools.cache
def _is_users(name: str) -> bool:
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(name).parts)
    return not is_installed and not _is_machinery(name)


def _written(name: str, line: int) -> str:
    return f"{seen_from_here(Path(name))}:{line}"


def seen_from_here(path: Path) -> Path:
    """Return a path relative to the current folder where it lies in there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


@functools.cache
def _machinery() -> tuple[Path, ...]:
    torch = importlib.util.find_spec("torch")
    folders = () if torch is None else tuple(torch.submodule_search_locations or ())
    own = (_MEMPLAN, *map(Path, folders))
    return (*own, *_standard_library())


def _standard_library() -> tuple[Path, ...]:
    """Folders of Python's own modules; installed packages lie inside one of them and are not meant."""
    folder = Path(sysconfig.get_path("stdlib"))
    inside = [each for each in folder.iterdir() if each.name not in ("site-packages", "dist-packages")]
    return tuple(inside)
