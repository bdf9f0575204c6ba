"""The models whose training steps are recorded on real cards: timm, transformers, torchvision and plain PyTorch.

Every builder returns a model, a batch function and a loss function; nothing is downloaded. Imports of the model
libraries happen in the builders, so that listing the cases needs none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from detection_operators import define_detection_operators
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGE_CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainable:
    """What a step needs beside an optimizer, and whether a mask in its batches hides anything."""

    model: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    hides_tokens: bool = False


def timm_classifier(name: str, side: int = 224, **settings: Any) -> Trainable:
    """Classify square images with a timm model."""

    def model() -> nn.Module:
        define_detection_operators()
        import timm

        return timm.create_model(name, num_classes=IMAGE_CLASSES, **settings)

    return Trainable(model=model, batch=_images(side), loss=_classification_loss)


def torchvision_segmenter(name: str, side: int = 256, classes: int = 21) -> Trainable:
    """Label every pixel with a torchvision segmentation model and its auxiliary head."""

    def model() -> nn.Module:
        define_detection_operators()
        import torchvision

        return torchvision.models.get_model(
            name, weights=None, weights_backbone=None, num_classes=classes, aux_loss=True
        )

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(batch[0])
        return F.cross_entropy(outputs["out"], batch[1]) + 0.4 * F.cross_entropy(outputs["aux"], batch[1])

    return Trainable(model=model, batch=_labelled_pixels(side, classes), loss=loss)


def causal_language_model(family: str, tokens: int, attention: str | None = None, **settings: Any) -> Trainable:
    """Predict the next token with a transformers model made from its configuration."""
    model = _transformer(family, "AutoModelForCausalLM", attention, settings)

    def batch(size: int) -> dict[str, torch.Tensor]:
        drawn = torch.randint(0, 1000, (size, tokens))
        return {"input_ids": drawn, "labels": drawn.clone()}

    return Trainable(model=model, batch=batch, loss=_own_loss)


def padded_language_model(family: str, tokens: int, attention: str | None = None, **settings: Any) -> Trainable:
    """Predict masked tokens in batches whose second half is padding, so that an attention mask is needed."""
    model = _transformer(family, "AutoModelForMaskedLM", attention, settings)

    def batch(size: int) -> dict[str, torch.Tensor]:
        drawn = torch.randint(5, 1000, (size, tokens))
        mask = torch.ones_like(drawn)
        mask[: size // 2, tokens // 2 :] = 0
        return {"input_ids": drawn, "attention_mask": mask, "labels": drawn.clone()}

    return Trainable(model=model, batch=batch, loss=_own_loss, hides_tokens=True)


def translation_model(family: str, tokens: int, attention: str | None = None, **settings: Any) -> Trainable:
    """Translate a sequence with an encoder and a decoder."""
    model = _transformer(family, "AutoModelForSeq2SeqLM", attention, {"decoder_start_token_id": 0, **settings})

    def batch(size: int) -> dict[str, torch.Tensor]:
        drawn = torch.randint(5, 1000, (size, tokens))
        return {"input_ids": drawn, "attention_mask": torch.ones_like(drawn), "labels": drawn.clone()}

    return Trainable(model=model, batch=batch, loss=_own_loss)


def speech_model(frames: int = 3000, **settings: Any) -> Trainable:
    """Transcribe spectrograms with Whisper's architecture."""
    model = _transformer("Whisper", "AutoModelForSpeechSeq2Seq", None, settings)

    def batch(size: int) -> dict[str, torch.Tensor]:
        return {"input_features": torch.randn(size, 80, frames), "labels": torch.randint(5, 1000, (size, 64))}

    return Trainable(model=model, batch=batch, loss=_own_loss)


def recurrent_language_model(kind: str, tokens: int, width: int = 1024, layers: int = 2) -> Trainable:
    """Predict the next word with an LSTM or a GRU."""
    words = 20_000

    class WordModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, width)
            self.recurrence = getattr(nn, kind)(width, width, layers, batch_first=True, dropout=0.2)
            self.head = nn.Linear(width, words)

        def forward(self, drawn: torch.Tensor) -> torch.Tensor:
            return self.head(self.recurrence(self.embedding(drawn))[0])

    def loss(model: nn.Module, drawn: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(drawn[:, :-1]).flatten(0, 1), drawn[:, 1:].flatten())

    return Trainable(model=WordModel, batch=lambda size: torch.randint(0, words, (size, tokens + 1)), loss=loss)


def unet_segmenter(side: int = 256, width: int = 32, classes: int = 2) -> Trainable:
    """Label every pixel with a plain U-Net."""
    return Trainable(
        model=lambda: UNet(width, classes),
        batch=_labelled_pixels(side, classes),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    )


def denoiser(side: int = 32, width: int = 128) -> Trainable:
    """Predict the noise in an image with a diffusion U-Net: residual blocks, group norm, attention in the middle."""

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.randn(size, 3, side, side), torch.rand(size), torch.randn(size, 3, side, side)

    return Trainable(
        model=lambda: DiffusionUNet(width),
        batch=batch,
        loss=lambda model, batch: F.mse_loss(model(batch[0], batch[1]), batch[2]),
    )


class UNet(nn.Module):
    """Four scales of double convolutions with skip connections."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(_double_convolution(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_double_convolution(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return class scores of every pixel."""
        skips = []
        for level, block in enumerate(self.down):
            image = block(image if level == 0 else F.max_pool2d(image, 2))
            skips.append(image)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips[:-1]), strict=True):
            image = merge(torch.cat([skip, up(image)], dim=1))
        return self.head(image)


class DiffusionUNet(nn.Module):
    """Three scales of residual blocks with time embedding and self-attention in the middle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([_Residual(width, width, 4 * width), _Residual(width, 2 * width, 4 * width)])
        self.middle = nn.ModuleList(
            [_Residual(2 * width, 2 * width, 4 * width), _Residual(2 * width, 2 * width, 4 * width)]
        )
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.ModuleList([_Residual(4 * width, width, 4 * width), _Residual(2 * width, width, 4 * width)])
        self.head = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, noisy: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the predicted noise."""
        rates = torch.exp(torch.linspace(0, -8, self.width // 2, device=noisy.device))
        angles = time[:, None] * rates
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], dim=1).to(noisy.dtype))
        image, skips = self.stem(noisy), []
        for block in self.down:
            image = block(image, embedded)
            skips.append(image)
            image = F.avg_pool2d(image, 2)
        image = self.middle[0](image, embedded)
        flat = image.flatten(2).transpose(1, 2)
        image = image + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(image.shape)
        image = self.middle[1](image, embedded)
        for block, skip in zip(self.up, reversed(skips), strict=True):
            image = block(torch.cat([F.interpolate(image, scale_factor=2.0), skip], dim=1), embedded)
        return self.head(image)


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, embedded: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Linear(embedded, outputs)
        self.after = nn.Sequential(
            nn.GroupNorm(32, outputs), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, image: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.skip(image) + self.after(self.before(image) + self.time(embedded)[:, :, None, None])


class LowRank(nn.Module):
    """A frozen linear layer with a trainable low-rank update beside it (LoRA, Hu et al. 2021)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the frozen layer's output plus the update."""
        return self.frozen(inputs) + self.up(self.down(inputs))


def with_low_rank_updates(model: nn.Module, rank: int = 8) -> nn.Module:
    """Freeze a model and put a low-rank update beside each of its linear layers but the head."""
    model.requires_grad_(requires_grad=False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name not in ("lm_head", "head"):
                setattr(parent, name, LowRank(child, rank))
    return model


def with_frozen_backbone(model: nn.Module) -> nn.Module:
    """Freeze all but the classifier of a timm model."""
    model.requires_grad_(requires_grad=False)
    model.get_classifier().requires_grad_(requires_grad=True)
    return model


def _double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


def _images(side: int) -> Callable[[int], Any]:
    return lambda size: (torch.randn(size, 3, side, side), torch.randint(0, IMAGE_CLASSES, (size,)))


def _labelled_pixels(side: int, classes: int) -> Callable[[int], Any]:
    return lambda size: (torch.randn(size, 3, side, side), torch.randint(0, classes, (size, side, side)))


def _classification_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _own_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss


def _transformer(family: str, auto: str, attention: str | None, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        define_detection_operators()
        import transformers

        config = getattr(transformers, f"{family}Config")(**settings)
        return getattr(transformers, auto).from_config(config, attn_implementation=attention)

    return model


def shard(model: nn.Module, precision: str) -> None:
    """Shard a model by FSDP, each layer of its stacks for itself; in half precision parameters are gathered so."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if precision == "bf16" else None)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ModuleList) or name.endswith("blocks"):
            for layer in module:
                fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
