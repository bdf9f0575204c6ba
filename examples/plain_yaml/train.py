"""Train a config: ``python train.py config.yaml``."""

import argparse
from itertools import count, islice
from pathlib import Path

import torch
import yaml
from textures import TextureNet, loss_of, make_loader, make_optimizer

AMP_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def train(config, device):
    """Take ``training.max_steps`` optimizer steps and return the loss of each."""
    torch.manual_seed(0)
    settings = config["training"]
    dtype = AMP_DTYPES[settings["amp_dtype"]]
    model = TextureNet(config["model"]["width"]).to(device)
    optimizer = make_optimizer(config, model.parameters())
    warmup_steps = settings["warmup_steps"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup_steps))
    scaler = torch.amp.GradScaler(device, enabled=settings["use_amp"] and dtype == torch.float16)
    batches = endless(make_loader(config))
    losses = []
    for step in range(1, settings["max_steps"] + 1):
        losses.append(0.0)
        for batch in islice(batches, settings["accumulation_steps"]):
            with torch.autocast(device, dtype=dtype, enabled=settings["use_amp"]):
                loss = loss_of(model, [each.to(device) for each in batch]) / settings["accumulation_steps"]
            scaler.scale(loss).backward()
            losses[-1] += loss.item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        if step % settings["log_every"] == 0 or step == settings["max_steps"]:
            print(f"step {step}  loss {losses[-1]:.4f}")
    return losses


def endless(loader):
    for _epoch in count():
        yield from loader


def main():
    parser = argparse.ArgumentParser(description="Train the texture classifier of a config.")
    parser.add_argument("config", type=Path)
    config = yaml.safe_load(parser.parse_args().config.read_text(encoding="utf-8"))
    train(config, "cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
