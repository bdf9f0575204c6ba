"""Running operators as the recorder does where it presumes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import run_with_known_values
from memplan.estimators.fake_tensors.presumed_choices import PresumedChoices

if TYPE_CHECKING:
    from collections.abc import Iterator


class Presuming(TorchDispatchMode):
    """Runs every operator as the recorder does where it presumes."""

    def __init__(self, fakes: TraceFakeMode) -> None:
        super().__init__()
        self._fakes = fakes
        self.choices = PresumedChoices()

    @classmethod
    @contextmanager
    def on_fakes(cls) -> Iterator[PresumedChoices]:
        fakes = TraceFakeMode()
        mode = cls(fakes)
        with fakes, mode:
            yield mode.choices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.choices.write_most(func, args)
        try:
            result = self._run(func, args, kwargs or {})
        except DynamicOutputShapeException:
            result = self.choices.most(func, args, kwargs or {}, run=self._run)
            if result is None:
                raise
        self.choices.choose(func, args, kwargs or {}, result)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return run_with_known_values(func, args, kwargs, fakes=self._fakes)
