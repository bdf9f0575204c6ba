"""What memplan needs to know about this project: model, batch, loss and optimizer of a config."""

import torch
from torch.utils.data import default_collate

import memplan
from depthseg.dataset import build_dataset, build_loader
from depthseg.models import build_model
from depthseg.optimization import build_optimizer, read_step_settings


def make_workload(config):
    """Describe a training step of ``config``; every crop has the same size, so any batch is the worst case."""
    crops = build_dataset(config["data"]["train"])

    def batch(size):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.get("seed", 0))
            return default_collate([crops[index] for index in range(size)])

    def loss(model, batch):
        return model.loss(*batch)

    grad_clip = read_step_settings(config).grad_clip
    return memplan.Workload(
        name="small U-Net on depth layers",
        model=lambda: build_model(config),
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: build_optimizer(config, parameters),
        grad_clip_norm=grad_clip["max_norm"] if grad_clip else None,
        loader=lambda size: build_loader(config, size),
    )
