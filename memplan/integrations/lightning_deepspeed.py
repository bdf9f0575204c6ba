"""A LightningModule that DeepSpeed's engine trains, as its Trainer's ``DeepSpeedStrategy`` has it.

The strategy hands DeepSpeed its configuration, clips by the Trainer's norm where that has none, and runs each of the
module's steps as the forward pass of the engine. Of a module whose layers are made in ``configure_model`` weights are
sharded as they are made; those made before reach the device whole.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.errors import MissingExtraError, UsageError
from memplan.integrations.lightning_stand_in import is_standalone
from memplan.integrations.parcels import Parcel

if is_standalone():
    from pytorch_lightning.strategies import DeepSpeedStrategy, StrategyRegistry
else:
    from lightning.pytorch.strategies import DeepSpeedStrategy, StrategyRegistry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.workload import Workload

_NAME = "deepspeed"  # of Lightning's registered strategies, with the stage behind it
_OPTIMIZER = "optimizer"


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


def deepspeed_strategy(given: Any) -> Any:
    """Return the ``DeepSpeedStrategy`` among a Trainer's arguments, by its name or itself; None for any other.

    Raises:
        MissingExtraError: it is named, and DeepSpeed is not installed.
        UsageError: its configuration has an optimizer, which takes the place of the module's.
    """
    if isinstance(given, str) and given.startswith(_NAME):
        if importlib.util.find_spec(_NAME) is None:
            raise MissingExtraError(
                f"strategy={given!r} needs deepspeed, which is not installed",
                hint="install it with: pip install 'memplan[deepspeed]'",
            )
        given = StrategyRegistry.get(given)
    if not isinstance(given, DeepSpeedStrategy):
        return None
    if _OPTIMIZER in given.config:
        raise UsageError(
            f"DeepSpeed's configuration has an {_OPTIMIZER}, in the place of the module's",
            hint="leave it to configure_optimizers, as Lightning recommends",
        )
    return given
