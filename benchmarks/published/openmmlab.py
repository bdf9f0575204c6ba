"""Model zoos of mmaction2 0.x and mmsegmentation 0.19: allocated peaks on V100 of 32 GB, torch 1.3 to 1.10.

The nets, heads and losses are these libraries' own, built from the configs that the rows name. The loop is mmcv's: SGD
with momentum or AdamW, gradients filled with zeros and so never freed, data parallel with flat buckets for the
gradients, gradients clipped where mmaction2's configs say so. Single precision is single precision on a V100, which has
no TF32. mmaction2 tells whole MiB. mmsegmentation tells one or two decimals of GB, whose unit its documents leave open:
taken as GiB, the convolutional nets whose peak lies in the loss, which needs no workspace, agree with the rebuilt steps
in every digit told but for COCO-Stuff, and BiSeNet's rows, of the same release as those, have two decimals. Its
documents say that cuDNN's benchmark mode was off, its configs that it is on: what the search of algorithms would try on
the widest convolutions, many GiB, is not in these figures.

Needs mmaction2 0.24.1, mmsegmentation 0.30.0 and mmcv 1.7.0, which need no compiled operators here.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from published.earlier_torch import keep_inputs_of_softmax
from published.rows import Peak, Row, table

from memplan.recipe import Recipe
from memplan.units import GIB, MIB
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

_DEVICE = "v100-32gb"


def action_rows() -> Iterator[Row]:
    """Yield mmaction2's recognizers of videos, trained on eight cards and more."""
    for number, cells in enumerate(table("mmaction")):
        yield Row(
            key=f"mmaction-{number}-{cells['config']}",
            family="mmaction",
            model=cells["config"],
            workload=functools.partial(recognizer, cells["config"]),
            trace_key=f"mmaction {cells['config']}",
            recipe=Recipe(micro_batch_size=int(cells["videos"]), world_size=8),
            device=_DEVICE,
            peak=Peak.ALLOCATED,
            counts_blas_workspaces=False,
            measured_mib=float(cells["mib"]),
        )


def segmentation_rows() -> Iterator[Row]:
    """Yield mmsegmentation's nets: convolutional ones trained on four cards, transformers on eight."""
    for cells in table("mmsegmentation"):
        yield Row(
            key=f"mmseg-{cells['config']}",
            family=cells["family"],
            model=cells["config"],
            workload=functools.partial(segmenter, cells["config"]),
            trace_key=f"mmseg {cells['config']}",
            recipe=Recipe(
                micro_batch_size=int(cells["images"]), precision=cells["precision"], world_size=int(cells["cards"])
            ),
            device=_DEVICE,
            peak=Peak.ALLOCATED,
            counts_blas_workspaces=False,
            measured_mib=GIB // MIB * float(cells["gb"]),
        )


def recognizer(name: str) -> Workload:
    """Classify videos as one of mmaction2's configs says."""
    config = _config("mmaction", name)
    shape = _video_shape(config)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return model._parse_losses(model(*batch, return_loss=True))[0]

    return Workload(
        model=functools.partial(_built, "mmaction", "build_model", config),
        batch=lambda size: (torch.zeros(size, *shape), torch.zeros(size, 1, dtype=torch.long)),
        loss=loss,
        optimizer=_optimizer(config.optimizer),
        grad_clip_norm=config.optimizer_config.grad_clip.max_norm,
        zero_grad_set_to_none=False,
    )


def segmenter(name: str) -> Workload:
    """Label every pixel of a crop as one of mmsegmentation's configs says."""
    config = _config("mmseg", name)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        return model._parse_losses(model.forward_train(images, [{}] * len(images), labels))[0]

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = config.crop_size
        return torch.zeros(size, 3, height, width), torch.zeros(size, 1, height, width, dtype=torch.long)

    return Workload(
        model=functools.partial(_built, "mmseg", "build_segmentor", config),
        batch=batch,
        loss=loss,
        optimizer=_optimizer(config.optimizer),
        zero_grad_set_to_none=False,
    )


def _config(package: str, name: str) -> Any:
    """Read a config that a package of OpenMMLab's brings along."""
    from mmcv import Config

    folder = Path(importlib.import_module(package).__file__ or "").parent / ".mim" / "configs"
    (path,) = folder.rglob(f"{name}.py")
    return Config.fromfile(str(path))


def _built(package: str, builder: str, config: Any) -> nn.Module:
    """Build the net of a config without the weights that it would start from."""
    keep_inputs_of_softmax()
    sys.modules.setdefault("mmcv._ext", _UncompiledOperators("mmcv._ext"))
    models = importlib.import_module(f"{package}.models")
    net = config.model.copy()
    for part in (net, net.backbone):
        part.update({name: None for name in ("pretrained", "init_cfg") if name in part})
    return getattr(models, builder)(net)


class _UncompiledOperators(types.ModuleType):
    """Stands in for mmcv's compiled operators, which mmsegmentation imports and these nets do not call."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _video_shape(config: Any) -> tuple[int, ...]:
    """Return the shape of one sample: clips with their frames for 3-D nets, frames of all clips for 2-D ones."""
    pipeline = config.data.train.get("dataset", config.data.train).pipeline
    frames = next(step for step in pipeline if step["type"].endswith("SampleFrames"))
    cut = [step for step in pipeline if step["type"] == "RandomCrop" or step.get("keep_ratio") is False][-1]
    width, height = cut.scale if "scale" in cut else (cut["size"], cut["size"])
    clips, length = frames.get("num_clips", 1), frames.clip_len
    is_flat = config.model.type == "Recognizer2D"
    return (clips * length, 3, height, width) if is_flat else (clips, 3, length, height, width)


def _optimizer(settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    momentum = functools.partial(
        torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=settings.get("nesterov", False)
    )
    chosen = {"SGD": momentum, "AdamW": functools.partial(torch.optim.AdamW, lr=6e-5)}[settings.type]
    return functools.partial(chosen, foreach=False)
