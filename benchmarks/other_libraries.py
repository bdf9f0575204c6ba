"""Workloads of models that neither timm nor transformers has, as a user of each library would write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

Made = tuple["Callable[[], nn.Module]", "Callable[[int], Any]", "Callable[[nn.Module, Any], torch.Tensor]"]


def workload(name: str) -> Workload:
    """Return a workload by its name, with AdamW.

    Raises:
        ModuleNotFoundError: its library is not installed.
    """
    model, batch, loss = MODELS[name]()
    return Workload(model=model, batch=batch, loss=loss, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4), name=name)


def _masks(architecture: str, encoder: str) -> Made:
    import segmentation_models_pytorch as library

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(size, 3, 256, 256), torch.zeros(size, 1, 256, 256)

    dice = library.losses.DiceLoss(library.losses.BINARY_MODE)
    model = getattr(library, architecture)
    return lambda: model(encoder, encoder_weights=None, classes=1), batch, lambda net, b: dice(net(b[0]), b[1])


def _volumes(name: str, **settings: Any) -> Made:
    from monai.losses import DiceCELoss
    from monai.networks import nets

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(size, 1, 64, 64, 64), torch.zeros(size, 1, 64, 64, 64)

    criterion = DiceCELoss(to_onehot_y=True, softmax=True)
    make = getattr(nets, name)
    return lambda: make(in_channels=1, out_channels=2, **settings), batch, lambda net, b: criterion(net(b[0]), b[1])


def _noise() -> Made:
    from diffusers import DDPMScheduler, UNet2DModel

    scheduler = DDPMScheduler()

    def loss(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        noise, steps = torch.randn_like(images), torch.randint(0, 1000, (len(images),))
        return functional.mse_loss(model(scheduler.add_noise(images, noise, steps), steps).sample, noise)

    channels = (64, 128, 128, 256)
    return (
        lambda: UNet2DModel(sample_size=64, block_out_channels=channels),
        lambda size: torch.zeros(size, 3, 64, 64),
        loss,
    )


def _latents(name: str, **settings: Any) -> Made:
    import diffusers

    def batch(size: int) -> dict[str, torch.Tensor]:
        inputs = {"timestep": torch.zeros(size, dtype=torch.long)}
        if name == "UNet2DConditionModel":
            return {
                **inputs,
                "sample": torch.zeros(size, 4, 32, 32),
                "encoder_hidden_states": torch.zeros(size, 77, 256),
            }
        return {
            **inputs,
            "hidden_states": torch.zeros(size, 4, 32, 32),
            "class_labels": torch.zeros(size, dtype=torch.long),
        }

    model = getattr(diffusers, name)
    return lambda: model(sample_size=32, **settings), batch, lambda net, b: net(**b).sample.square().mean()


def _graphs(name: str) -> Made:
    from torch_geometric import nn as layers
    from torch_geometric.data import Batch, Data

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph, self.head = getattr(layers, name)(16, 64, 3), nn.Linear(64, 2)

        def forward(self, data: Any) -> torch.Tensor:
            return self.head(layers.global_mean_pool(self.graph(data.x, data.edge_index), data.batch))

    def batch(size: int) -> Any:
        edges, label = torch.randint(0, 50, (2, 200)), torch.zeros(1, dtype=torch.long)
        return Batch.from_data_list([Data(x=torch.zeros(50, 16), edge_index=edges, y=label) for _ in range(size)])

    return Classifier, batch, lambda net, data: functional.cross_entropy(net(data), data.y)


def _labelled(make: Callable[[], nn.Module], *shape: int) -> Made:
    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(size, *shape), torch.zeros(size, dtype=torch.long)

    return make, batch, lambda net, b: functional.cross_entropy(net(b[0]), b[1])


def _vit_pytorch() -> Made:
    from vit_pytorch import ViT

    sizes = {"image_size": 224, "patch_size": 16, "num_classes": 1000, "dim": 384, "depth": 6, "heads": 6}
    return _labelled(lambda: ViT(**sizes, mlp_dim=1536, dropout=0.1), 3, 224, 224)


def _max_vit() -> Made:
    from vit_pytorch.max_vit import MaxViT

    return _labelled(
        lambda: MaxViT(num_classes=1000, dim=64, depth=(2, 2, 2, 2), dim_head=32, window_size=7), 3, 224, 224
    )


def _video() -> Made:
    from torchvision.models.video import r3d_18

    return _labelled(lambda: r3d_18(num_classes=10), 3, 8, 112, 112)


def _x_transformers() -> Made:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    def model() -> nn.Module:
        decoder = Decoder(dim=256, depth=4, heads=4, attn_flash=True, rotary_pos_emb=True)
        return AutoregressiveWrapper(TransformerWrapper(num_tokens=5000, max_seq_len=512, attn_layers=decoder))

    return model, lambda size: torch.zeros(size, 512, dtype=torch.long), lambda net, b: net(b)


def _open_clip() -> Made:
    import open_clip

    criterion = open_clip.ClipLoss()

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(size, 3, 224, 224), torch.zeros(size, 77, dtype=torch.long)

    return lambda: open_clip.create_model("ViT-B-32", pretrained=None), batch, lambda net, b: criterion(*net(*b))


def _contrast() -> Made:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from torchvision.models import resnet18

    criterion = NTXentLoss()

    def model() -> nn.Module:
        return nn.Sequential(*list(resnet18().children())[:-1], nn.Flatten(), SimCLRProjectionHead(512, 512, 128))

    return model, lambda size: torch.zeros(2, size, 3, 96, 96), lambda net, b: criterion(net(b[0]), net(b[1]))


def _speech() -> Made:
    from conformer import Conformer

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(80, 144), Conformer(144, depth=4, heads=4, dim_head=36), nn.Linear(144, 50))

    def batch(size: int) -> tuple[torch.Tensor, ...]:
        texts, lengths = torch.ones(size, 30, dtype=torch.long), torch.full((size,), 30)
        return torch.zeros(size, 200, 80), texts, torch.full((size,), 200), lengths

    def loss(net: nn.Module, b: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return functional.ctc_loss(net(b[0]).log_softmax(-1).transpose(0, 1), *b[1:])

    return model, batch, loss


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20000, 128, padding_idx=0)
        self.cells = nn.GRU(128, 256, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(512, 20)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True)
        return self.tags(nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0])


def _packed() -> Made:
    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(size, 128, dtype=torch.long), torch.full((size,), 128)

    return _Tagger, batch, lambda net, b: net(*b).logsumexp(-1).mean()


def _boxes() -> Made:
    from types import SimpleNamespace

    from ultralytics.nn.tasks import DetectionModel

    def model() -> nn.Module:
        made = DetectionModel("yolov8n.yaml", nc=5, verbose=False)
        made.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
        return made

    def batch(size: int) -> dict[str, torch.Tensor]:
        boxes = torch.tensor([[0.3, 0.3, 0.2, 0.2]]).repeat(3 * size, 1)
        which = torch.arange(size).repeat_interleave(3).float()
        return {
            "img": torch.zeros(size, 3, 320, 320),
            "batch_idx": which,
            "cls": torch.zeros(3 * size, 1),
            "bboxes": boxes,
        }

    return model, batch, lambda net, b: net(b)[0].sum()


def _detection(name: str) -> Made:
    from torchvision.models import detection

    def batch(size: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
        target = {
            "boxes": torch.tensor([[10.0, 10.0, 100.0, 120.0]]),
            "labels": torch.tensor([1]),
            "masks": torch.zeros(1, 320, 320, dtype=torch.uint8),
        }
        return [torch.zeros(3, 320, 320) for _ in range(size)], [dict(target) for _ in range(size)]

    def model() -> nn.Module:
        return getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5, min_size=320, max_size=320)

    return model, batch, lambda net, b: sum(net(*b).values())


MODELS: dict[str, Callable[[], Made]] = {
    **{f"segmentation_models_pytorch {architecture} {encoder}": lambda a=architecture, e=encoder: _masks(a, e)
       for architecture, encoder in (("Unet", "resnet34"), ("DeepLabV3Plus", "resnet50"), ("FPN", "efficientnet-b0"),
                                     ("Segformer", "mit_b0"))},
    "monai UNETR": lambda: _volumes("UNETR", img_size=(64, 64, 64)),
    "monai SwinUNETR": lambda: _volumes("SwinUNETR", feature_size=24),
    "monai SegResNet": lambda: _volumes("SegResNet", spatial_dims=3),
    "monai UNet": lambda: _volumes("UNet", spatial_dims=3, channels=(16, 32, 64), strides=(2, 2), num_res_units=2),
    "diffusers UNet2DModel": _noise,
    "diffusers UNet2DConditionModel": lambda: _latents(
        "UNet2DConditionModel", block_out_channels=(64, 128, 256, 256), cross_attention_dim=256, attention_head_dim=8
    ),
    "diffusers DiTTransformer2DModel": lambda: _latents(
        "DiTTransformer2DModel", num_attention_heads=6, attention_head_dim=64, num_layers=4
    ),
    **{f"torch_geometric {name}": lambda n=name: _graphs(n) for name in ("GCN", "GIN", "GAT", "GraphSAGE")},
    "vit_pytorch ViT": _vit_pytorch,
    "vit_pytorch MaxViT": _max_vit,
    "x_transformers Decoder": _x_transformers,
    "open_clip ViT-B-32": _open_clip,
    "lightly SimCLR": _contrast,
    "conformer CTC": _speech,
    "torch GRU packed": _packed,
    "torchvision r3d_18": _video,
    "torchvision retinanet_resnet50_fpn": lambda: _detection("retinanet_resnet50_fpn"),
    "torchvision fcos_resnet50_fpn": lambda: _detection("fcos_resnet50_fpn"),
    "torchvision fasterrcnn_resnet50_fpn": lambda: _detection("fasterrcnn_resnet50_fpn"),
    "torchvision maskrcnn_resnet50_fpn": lambda: _detection("maskrcnn_resnet50_fpn"),
    "ultralytics YOLOv8n": _boxes,
}  # fmt: skip
