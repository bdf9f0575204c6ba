"""How a workload is named: as a function of a module, or of the file of one."""

from __future__ import annotations

from pathlib import PurePosixPath

from memplan.errors import WorkloadError

_SUFFIX = ".py"


def target_of(text: str, *, where: str) -> str:
    """Return the ``package.module:function`` that a user means, who may have written ``package/module.py:function``.

    Args:
        text: what was written.
        where: the config that is planned.

    Raises:
        WorkloadError: it names no function, or a file by more than the folders below one that is looked in.
    """
    module, _, function = text.partition(":")
    if module.endswith(_SUFFIX):
        module = ".".join(PurePosixPath(module.removesuffix(_SUFFIX)).parts)
    if not module.strip(".") or not function or "/" in module or module.startswith("."):
        hint = 'write it as "package.module:function"'
        raise WorkloadError(f"workload {text!r} does not name a function", where=where, hint=hint)
    return f"{module}:{function}"
