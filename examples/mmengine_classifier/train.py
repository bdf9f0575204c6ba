"""Plan and train a config: ``python train.py configs/shapenet.py``."""

import argparse

from mmengine.config import Config, DictAction
from mmengine.runner import Runner

from memplan.integrations.mmengine import MemplanHook, tune


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--budget", default="1.5GiB")
    parser.add_argument("--cfg-options", nargs="+", action=DictAction, default={})
    options = parser.parse_args()
    cfg = Config.fromfile(options.config)
    cfg.merge_from_dict(options.cfg_options)

    cfg, plan = tune(cfg, budget=options.budget)
    print(*plan.reasons, sep="\n")

    runner = Runner.from_cfg(cfg)
    runner.register_hook(MemplanHook(plan), priority="VERY_LOW")
    runner.train()
    loss = runner.message_hub.get_scalar("train/loss").current()
    print(f"batch {cfg.train_dataloader.batch_size}, rate {cfg.optim_wrapper.optimizer.lr:g}: ", end="")
    print(f"loss {loss:.3f} after {runner.iter} iterations")


if __name__ == "__main__":
    main()
