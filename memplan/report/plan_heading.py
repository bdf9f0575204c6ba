"""The lines above a plan that has started: config, device, band and current recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from memplan.report.wording import RECIPE_SIZES, bytes_text, share_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs import UserConfig
    from memplan.devices.cards import DeviceSpec
    from memplan.progress import PlanStarted
    from memplan.recipe import Recipe
    from memplan.recommend.band import Band

NAME_COLUMNS = 9


def plan_heading(started: PlanStarted) -> list[Text]:
    """Show what is planned, for which device and band, and the notes on the config."""
    device = ("device", _device_text(started.device, started.band))
    if started.command is not None:
        first = ("first", f"{started.current} ({RECIPE_SIZES})")
        return _named_lines((("command", started.command), device, first), started.notes)
    named = () if started.config is None else (("config", _config_text(started.config)),)
    return _named_lines((*named, device, ("current", _current_text(started.current))), started.notes)


def _config_text(config: UserConfig) -> str:
    return f"{' + '.join(config.file_names)} ({config.format_name})"


def _current_text(current: Recipe) -> str:
    rate = "" if current.learning_rate is None else f", learning rate {current.learning_rate:g}"
    batch = f", global batch {current.global_batch_size}" if current.world_size > 1 else ""
    return f"{current} ({RECIPE_SIZES}){batch}{rate}"


def _device_text(device: DeviceSpec, band: Band) -> str:
    edges = f"{share_text(band.min_utilisation)} to {share_text(band.max_utilisation)}"
    sizes = f"{bytes_text(band.lower_bytes)} to {bytes_text(band.upper_bytes)}"
    return f"{device.name}, {bytes_text(band.total_bytes)}; band {edges}, {sizes}"


def _named_lines(lines: Sequence[tuple[str, str]], notes: Sequence[str]) -> list[Text]:
    named = [Text.assemble((f"{name:<{NAME_COLUMNS}}", "bold"), value) for name, value in lines]
    return [*named, *(Text(f"{'note':<{NAME_COLUMNS}}{note}", style="yellow") for note in notes)]
