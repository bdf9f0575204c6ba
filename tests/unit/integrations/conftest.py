"""What the tests of the frameworks' integrations share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from memplan.workload import Workload


class _PlannedError(Exception):
    """Ends a ``tune`` where it would plan."""


@pytest.fixture
def planned_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType, Callable[[], object]], Workload]:
    """Return a function that calls a framework's ``tune`` and returns the workload that it would plan."""

    def call(integration: ModuleType, tuned: Callable[[], object]) -> Workload:
        asked: list[Workload] = []

        def planned(workload: Workload, *_: Any, **__: Any) -> None:
            asked.append(workload)
            raise _PlannedError

        monkeypatch.setattr(integration, "planned", planned)
        with pytest.raises(_PlannedError):
            tuned()
        return asked[0]

    return call
