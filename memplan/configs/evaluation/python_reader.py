"""Child process that evaluates one Python config and answers with plain data."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from memplan import children
from memplan.configs.documents import read_source
from memplan.configs.evaluation.base_list import BaseListReading
from memplan.configs.evaluation.later_clock import set_clock_ahead
from memplan.configs.evaluation.lazy_config import LazyConfigReading
from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.evaluation.pure_python import PurePythonReading
from memplan.configs.evaluation.reader_messages import ReadAnswer, ReadRequest
from memplan.configs.languages.python_style import PythonStyle, style_of
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs.documents import SourceFile


_SHOWN_FRAMES = 30
_READINGS: dict[PythonStyle, type[BaseListReading | PurePythonReading | LazyConfigReading]] = {
    PythonStyle.BASE_LIST: BaseListReading,
    PythonStyle.PURE_PYTHON: PurePythonReading,
    PythonStyle.LAZY_CONFIG: LazyConfigReading,
}


def answer(request: ReadRequest, reply: Callable[[object], None]) -> None:
    """Evaluate the config and reply with a :class:`ReadAnswer`, or with the ``ConfigError`` that says why not."""
    sys.path.extend(request.import_path)
    if request.clock_is_ahead:
        set_clock_ahead()
    path = Path(request.path)
    files: list[SourceFile] = []
    notes: list[str] = []
    try:
        style = style_of(read_source(path, texts=request.texts).text)
        values = _READINGS[style](request.texts, files).evaluate(path)
        plain = as_plain(values, notes, where=request.path)
    except ConfigError as error:
        reply(error)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit included
        reply(_raised(error, files))
    else:
        reply(ReadAnswer(values=plain, files=tuple(files), notes=tuple(notes)))


def _raised(error: BaseException, files: list[SourceFile]) -> ConfigError:
    known = {str(each.path) for each in files}
    visited = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    places = [f"{file}:{line}" for file, line in visited if file in known]
    place = places[-1] if places else str(files[-1].path if files else None)
    message = str(error).splitlines()[0] if str(error) else ""
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    hint = (
        "run it where its imports are found" if isinstance(error, ImportError) else "a config must load without failing"
    )
    trace = "".join(traceback.format_exception(error, limit=-_SHOWN_FRAMES))
    return ConfigError(f"the config raises {what}", where=place, hint=hint, detail=trace)


if __name__ == "__main__":
    children.serve(answer)
