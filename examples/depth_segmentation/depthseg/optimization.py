"""Optimizer, learning-rate policy, precision and accumulation, as a config states them."""

from dataclasses import dataclass

import torch

AMP_DTYPES = {"float32": None, "tfloat32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}
FP16_HOOKS = ("Fp16OptimizerHook", "GradientCumulativeFp16OptimizerHook")
HOOKS = ("OptimizerHook", "GradientCumulativeOptimizerHook", *FP16_HOOKS)


@dataclass(frozen=True)
class StepSettings:
    """How an optimizer step is taken; ``amp_dtype`` None is fp32, ``loss_scale`` None is no scaling."""

    amp_dtype: torch.dtype | None
    loss_scale: object
    cumulative_iters: int
    grad_clip: dict | None


def read_step_settings(config):
    """Read precision, accumulation and clipping from ``optimizer_config``, ``fp16`` and ``amp``."""
    hook = dict(config.get("optimizer_config") or {})
    kind = hook.get("type", "OptimizerHook")
    if kind not in HOOKS:
        raise ValueError(f"optimizer_config.type={kind!r} is not known; use one of {', '.join(HOOKS)}")
    if "cumulative_iters" in hook and not kind.startswith("GradientCumulative"):
        raise ValueError(f"optimizer_config.cumulative_iters has no effect with type={kind!r}")
    amp_dtype, loss_scale = _read_precision(config, hook, kind)
    return StepSettings(amp_dtype, loss_scale, int(hook.get("cumulative_iters", 1)), hook.get("grad_clip"))


def _read_precision(config, hook, kind):
    fp16, amp = config.get("fp16"), config.get("amp")
    if amp is not None:
        if kind in FP16_HOOKS or fp16:
            raise ValueError("amp and fp16 both set the precision: keep one of them")
        if amp["dtype"] not in AMP_DTYPES:
            raise ValueError(f"amp.dtype={amp['dtype']!r} is not known; use one of {', '.join(AMP_DTYPES)}")
        dtype = AMP_DTYPES[amp["dtype"]]
        return dtype, amp.get("loss_scale", "dynamic") if dtype == torch.float16 else None
    if kind in FP16_HOOKS:
        return torch.float16, hook.get("loss_scale", 512.0)
    if fp16:  # an empty one is mmsegmentation's placeholder
        if kind != "OptimizerHook":
            raise ValueError(f"fp16 does not reach optimizer_config.type={kind!r}: use a Fp16 hook")
        return torch.float16, fp16.get("loss_scale", 512.0)
    return None, None


def make_scaler(loss_scale, device):
    """Make the gradient scaler for ``'dynamic'``, a fixed number, a dict of its settings, or None."""
    if loss_scale is None:
        return torch.amp.GradScaler(device, enabled=False)
    if loss_scale == "dynamic":
        return torch.amp.GradScaler(device)
    if isinstance(loss_scale, int | float):
        return torch.amp.GradScaler(device, init_scale=float(loss_scale), growth_interval=2**31 - 1)
    return torch.amp.GradScaler(device, **{key: loss_scale[key] for key in loss_scale if key != "mode"})


def build_optimizer(config, parameters):
    """Make the optimizer of a config: any class of ``torch.optim`` by its name."""
    settings = dict(config["optimizer"])
    kind = settings.pop("type")
    return getattr(torch.optim, kind)(parameters, **settings)


def learning_rate_at(iteration, base_lr, max_iters, policy):
    """Learning rate of an iteration under the ``poly`` or ``fixed`` policy with an optional linear warm-up."""
    if policy["policy"] not in ("poly", "fixed"):
        raise ValueError(f"lr_config.policy={policy['policy']!r} is not known; use poly or fixed")
    lr = base_lr
    if policy["policy"] == "poly":
        floor = policy.get("min_lr", 0.0)
        lr = (base_lr - floor) * (1 - iteration / max_iters) ** policy.get("power", 1.0) + floor
    warmup_iters = policy.get("warmup_iters", 0)
    if policy.get("warmup") == "linear" and iteration < warmup_iters:
        lr *= 1 - (1 - iteration / warmup_iters) * (1 - policy.get("warmup_ratio", 0.1))
    return lr
