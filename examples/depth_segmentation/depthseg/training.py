"""The training loop: counted in iterations, each one forward and backward pass of a batch."""

import json
import math
import time
from itertools import count

import torch
from torch.nn.utils import clip_grad_norm_

from depthseg.dataset import build_loader
from depthseg.evaluation import evaluate
from depthseg.memory import describe, peak_memory
from depthseg.models import build_model
from depthseg.optimization import build_optimizer, learning_rate_at, make_scaler, read_step_settings

UNTIMED_ITERS = 2  # the first iterations also pay for allocation and kernel choice


class Trainer:
    """Model, optimizer and loader of a config, and the loop over them."""

    def __init__(self, config, work_dir, device):
        torch.manual_seed(config.get("seed", 0))
        torch.backends.cudnn.benchmark = config.get("cudnn_benchmark", False)
        self.config, self.work_dir, self.device = config, work_dir, device
        self.max_iters = config["runner"]["max_iters"]
        if (config.get("amp") or {}).get("dtype") == "tfloat32":
            torch.set_float32_matmul_precision("high")
        self.step = read_step_settings(config)
        self.model = build_model(config).to(device)
        if config.get("load_from"):
            self.model.load_state_dict(torch.load(config["load_from"], map_location=device)["state_dict"])
        self.optimizer = build_optimizer(config, self.model.parameters())
        self.scaler = make_scaler(self.step.loss_scale, device.type)
        self.loader = build_loader(config)

    def run(self):
        """Train for ``runner.max_iters`` iterations and return the summary that is also written to the work folder."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.model.train()
        loss, miou, seconds = math.nan, None, []
        for iteration, batch in zip(range(self.max_iters), self._batches(), strict=False):
            started = time.perf_counter()
            loss = self._iterate(iteration, batch)
            seconds.append(time.perf_counter() - started)
            self._log(iteration + 1, loss, seconds)
            if self._is_due("evaluation", iteration):
                miou = evaluate(self.model, self.config, self.device)
                self._record({"mode": "val", "iter": iteration + 1, "mIoU": miou})
            if self._is_due("checkpoint_config", iteration):
                self._save(iteration + 1)
        return self._summary(loss, miou, seconds)

    def _batches(self):
        for _epoch in count():
            yield from self.loader

    def _iterate(self, iteration, batch):
        lr = learning_rate_at(iteration, self.config["optimizer"]["lr"], self.max_iters, self.config["lr_config"])
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        images, labels = (each.to(self.device, non_blocking=True) for each in batch)
        with torch.autocast(self.device.type, dtype=self.step.amp_dtype, enabled=self.step.amp_dtype is not None):
            loss = self.model.loss(images, labels)
        self.scaler.scale(loss / self._window(iteration)).backward()
        if (iteration + 1) % self.step.cumulative_iters == 0 or iteration + 1 == self.max_iters:
            self._step()
        return loss.item()

    def _window(self, iteration):
        """Iterations that share this one's optimizer step; the last window may be shorter."""
        window = self.step.cumulative_iters
        full = self.max_iters // window * window
        return window if iteration < full else self.max_iters - full

    def _step(self):
        if self.step.grad_clip:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), **self.step.grad_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def _is_due(self, section, iteration):
        interval = self.config.get(section, {}).get("interval", 0)
        return interval > 0 and (iteration + 1) % interval == 0

    def _log(self, iterations, loss, seconds):
        interval = self.config["log_config"]["interval"]
        if iterations % interval and iterations != self.max_iters:
            return
        recent = seconds[-interval:]
        lr = self.optimizer.param_groups[0]["lr"]
        self._record({"mode": "train", "iter": iterations, "lr": lr, "loss": loss, "time": sum(recent) / len(recent)})

    def _record(self, entry):
        shown = {key: f"{each:.4g}" if isinstance(each, float) else each for key, each in entry.items()}
        print("  ".join(f"{key} {each}" for key, each in shown.items()))
        with (self.work_dir / "train.log.json").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    def _save(self, iterations):
        partial = self.work_dir / "checkpoint.partial"
        state = {"state_dict": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "iter": iterations}
        torch.save(state, partial)
        partial.replace(self.work_dir / f"iter_{iterations}.pth")

    def _summary(self, loss, miou, seconds):
        timed = seconds[UNTIMED_ITERS:]
        batch_size = self.config["data"]["samples_per_gpu"]
        peaks = peak_memory(self.device)
        summary = {
            "device": str(self.device),
            "samples_per_gpu": batch_size,
            "cumulative_iters": self.step.cumulative_iters,
            "amp_dtype": None if self.step.amp_dtype is None else str(self.step.amp_dtype).removeprefix("torch."),
            "iterations": self.max_iters,
            "samples_per_s": batch_size * len(timed) / sum(timed) if timed else None,
            "final_loss": loss,
            "mIoU": miou,
            **peaks,
        }
        (self.work_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        print(describe(peaks))
        return summary
