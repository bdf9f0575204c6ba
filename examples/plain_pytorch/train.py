"""Train the denoiser: ``python train.py --batch-size 4 --lr 1e-3``."""

import argparse
from itertools import count, islice

import torch
from denoising import Denoiser, NoisyPatches, loss_of
from torch.utils.data import DataLoader, default_collate

import memplan


def parse(words=None):
    parser = argparse.ArgumentParser(description="Train a network that takes the noise off photographs.")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulation-steps", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    parser.add_argument("--patch-size", type=int, default=128)
    parser.add_argument(
        "--plan", action="store_true", help="let memplan choose batch, accumulation, precision and rate"
    )
    parser.add_argument("--budget", help="memory to plan for, such as 1GiB; by default all that is free")
    return parser.parse_args(words)


def make_workload(patch_size, lr):
    """Describe the training step to memplan: what `train` below does with one batch."""

    def batch(size):
        patches = NoisyPatches(patch_size, length=size)
        return default_collate([patches[index] for index in range(size)])

    return memplan.Workload(
        model=Denoiser,
        batch=batch,
        loss=loss_of,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=lr),
    )


def train(args, device):
    """Take ``args.steps`` optimizer steps and return the loss of each."""
    model = Denoiser().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    batches = endless(DataLoader(NoisyPatches(args.patch_size, length=4000), args.batch_size, drop_last=True))
    losses = []
    for step in range(1, args.steps + 1):
        losses.append(0.0)
        for batch in islice(batches, args.accumulation_steps):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=args.precision == "bf16"):
                loss = loss_of(model, [each.to(device) for each in batch]) / args.accumulation_steps
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == args.steps:
            print(f"step {step}  loss {losses[-1]:.4f}")
    return losses


def endless(loader):
    for _epoch in count():
        yield from loader


def main(words=None):
    args, device = parse(words), "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    if not args.plan:
        return train(args, device)
    now = memplan.Recipe(
        micro_batch_size=args.batch_size,
        accumulation_steps=args.accumulation_steps,
        precision=args.precision,
        learning_rate=args.lr,
    )
    workload = make_workload(args.patch_size, args.lr)
    plan = memplan.plan(workload, recipe=now, precision=["fp32", "bf16"], lr_rule="sqrt", budget=args.budget)
    when = "planned now" if plan.cached_from is None else f"planned at {plan.cached_from}"
    args = plan.apply(args)
    print(f"{when}: {plan.overrides('flags', knobs={'micro_batch_size': 'batch-size'})}; {plan.evidence}")
    with memplan.watch(plan):
        return train(args, device)


if __name__ == "__main__":
    main()
