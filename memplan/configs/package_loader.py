"""Child process that loads a config with the ecosystem's own package, to hold memplan's reading against it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan import children
from memplan.configs.plain_data import as_plain
from memplan.configs.reader_messages import PackageAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs.reader_messages import PackageRequest


def answer(request: PackageRequest, reply: Callable[[object], None]) -> None:
    """Load a text as if it lay at a path, and reply with a :class:`PackageAnswer`; nothing is left beside it."""
    path = Path(request.path)
    handle, temporary = tempfile.mkstemp(prefix=f"{path.stem}_", suffix=path.suffix, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(request.text.encode())
        notes: list[str] = []
        values = as_plain(_LOADERS[request.package](temporary), notes)
    finally:
        Path(temporary).unlink()
    version = importlib.metadata.version(request.package)
    reply(PackageAnswer(values=values, loader=f"{request.package} {version}"))


def _load_with_mmengine(path: str) -> Any:
    config = importlib.import_module("mmengine.config").Config
    return config.fromfile(path, import_custom_modules=False).to_dict()


_LOADERS: dict[str, Callable[[str], Any]] = {"mmengine": _load_with_mmengine}


if __name__ == "__main__":
    children.serve(answer)
