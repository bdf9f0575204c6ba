"""Train a config: ``python tools/train.py configs/baseline/unet_small_motorcycle_256x256.py``."""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from depthseg.config import load_config, with_options
from depthseg.training import Trainer


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train a depth-layer segmentation config.")
    parser.add_argument("config", type=Path)
    parser.add_argument("--work-dir", type=Path, help="logs and checkpoints; default work_dirs/<config name>")
    parser.add_argument("--max-iters", type=int, help="stop earlier or later than runner.max_iters says")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="e.g. data.samples_per_gpu=8")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    config = with_options(load_config(arguments.config), arguments.options)
    if arguments.max_iters is not None:
        config["runner"]["max_iters"] = arguments.max_iters
    work_dir = arguments.work_dir or Path("work_dirs") / arguments.config.stem
    Trainer(config, work_dir, torch.device(arguments.device)).run()


if __name__ == "__main__":
    main()
