"""A LightningModule that DeepSpeed's engine trains, as its Trainer's ``DeepSpeedStrategy`` has it.

The strategy hands DeepSpeed its configuration, clips by the Trainer's norm where that has none, and runs each of the
module's steps as the forward pass of the engine. Of a module whose layers are made in ``configure_model`` weights are
sharded as they are made; those made before reach the device whole.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.integrations.parcels import Parcel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.workload import Workload


class LightningDeepSpeed:
    """What a Trainer's ``DeepSpeedStrategy`` does to a module.

    Args:
        strategy: one that no Trainer has used.
        zero_init: whether the module makes its layers in ``configure_model``.
    """

    def __init__(self, strategy: Any, *, zero_init: bool) -> None:
        self._config: Mapping[str, Any] = strategy.config
        self._zero_init = zero_init
        self._packed = Parcel(strategy)

    def added_to(self, workload: Workload) -> Workload:
        """Return the workload as DeepSpeed trains it."""
        return replace(workload, deepspeed=self._config, zero_init=self._zero_init)

    def run(self, engine: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        """Run one of the module's steps within the engine."""
        return self._strategy._forward_redirection(engine, engine.module, name, *arguments)  # noqa: SLF001 - its ``training_step`` needs a Trainer

    @functools.cached_property
    def _strategy(self) -> Any:
        return self._packed.opened()
