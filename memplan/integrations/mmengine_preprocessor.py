"""The data preprocessor of a model of mmengine's, made without making the model.

Models may complete its settings themselves: mmpretrain's add its type and the augmentations of whole batches.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.registry import MODELS
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator


def preprocessor_of(settings: dict[str, Any]) -> nn.Module:
    """Return the preprocessor that a model would have.

    Args:
        settings: the model's, which are used up.
    """
    wanted = settings.get("data_preprocessor")
    if _is_of_mmengines_base(settings):
        try:
            with _stopped_at_the_preprocessor():
                MODELS.build(settings)
        except _PreprocessorReachedError as reached:
            wanted = reached.wanted
    if isinstance(wanted, nn.Module):
        return wanted
    return BaseDataPreprocessor() if wanted is None else MODELS.build(wanted)  # type: ignore[no-any-return]


class _PreprocessorReachedError(BaseException):
    """Ends the making of a model where it hands its preprocessor over; no handler of errors holds it up."""

    def __init__(self, wanted: Any) -> None:
        super().__init__()
        self.wanted = wanted


def _is_of_mmengines_base(settings: dict[str, Any]) -> bool:
    with MODELS.switch_scope_and_registry(settings.get("_scope_")) as registry:
        kind = settings["type"]
        found = registry.get(kind) if isinstance(kind, str) else kind
    return isinstance(found, type) and issubclass(found, BaseModel)


@contextmanager
def _stopped_at_the_preprocessor() -> Iterator[None]:
    def reached(_model: BaseModel, data_preprocessor: Any = None, _init_cfg: Any = None, **_others: Any) -> None:
        raise _PreprocessorReachedError(data_preprocessor)

    with mock.patch.object(BaseModel, "__init__", reached):
        yield
