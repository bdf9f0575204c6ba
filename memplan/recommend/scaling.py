"""What changes with the batch: learning rate, lengths and intervals.

With micro-batch b, accumulation A, replicas W: S = b * W samples per forward/backward pass, G = S * A samples per
optimizer step, q = S_old / S_new, r = G_new / G_old.

==========================  ======================================================================  =================
counted in                  examples                                                                factor
==========================  ======================================================================  =================
forward/backward passes     mmcv and mmengine with ``by_epoch=False``: max_iters, warm-up,          q
                            milestones, checkpoint and evaluation intervals; detectron2 MAX_ITER,
                            STEPS; Lightning val_check_interval, limit_train_batches
optimizer steps             Hugging Face max_steps, warmup_steps, save, eval and logging steps;     1 / r
                            Lightning max_steps and step-interval schedulers; DeepSpeed and
                            torchtitan steps
epochs or ratios            max_epochs, warmup_epochs, warmup_ratio, fractions of the length        1
learning rates              the peak rate, absolute floors and peaks (min_lr, eta_min, max_lr)      r, sqrt(r) or 1
relative learning rates     lr_mult, start_factor, warmup_ratio, lrf                                1
logging                     OpenMMLab's log intervals, which count passes but only show progress    1
==========================  ======================================================================  =================

Where G is held by accumulation, r = 1 and q = A_new / A_old: rates and optimizer steps stay, passes follow A.

Sources: linear rule: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1, which warns beyond a batch of 8k
and relies on warm-up; square-root rule for adaptive optimizers: Malladi et al. 2022, "On the SDEs and Scaling Rules
for Adaptive Gradient Algorithms", and timm's own default for Adam and LAMB; what each framework counts in: their
runners (mmcv ``IterBasedRunner``, transformers ``Trainer``, Lightning ``Trainer``).

Not scaled, only worth a thought: per-step decays (an exponential moving average's momentum d would become d ** r),
batch-norm momentum, the growth interval of a loss scaler.
"""

from __future__ import annotations

import math
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from memplan.errors import UsageError
from memplan.units import without_noise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan.recipe import Recipe

TRUSTED_RATIO = 8  # Goyal et al. scale by at most 32 with care; beyond 8 a rule alone is a guess
_PLAIN = ("sgd", "lars")
_ADAPTIVE = ("adam", "lamb", "adagrad", "adadelta", "rmsprop", "adafactor", "lion", "shampoo", "sophia", "adan")


class LearningRateRule(StrEnum):
    """How the learning rate follows the global batch."""

    LINEAR = "linear"
    SQRT = "sqrt"
    NONE = "none"


def scale_learning_rate(learning_rate: float, *, ratio: float | Fraction, rule: LearningRateRule) -> float:
    """Return the learning rate that goes with a global batch ``ratio`` times as large, without float noise.

    Raises:
        UsageError: the ratio is not above 0.
    """
    if not ratio > 0:
        raise UsageError(f"batch ratio {ratio} must be above 0")
    factors = {
        LearningRateRule.LINEAR: float(ratio),
        LearningRateRule.SQRT: math.sqrt(ratio),
        LearningRateRule.NONE: 1.0,
    }
    return without_noise(learning_rate * factors[rule])


def rule_remark(
    optimizer_name: str, rule: LearningRateRule, ratio: float | Fraction, *, learning_rate: float | None = None
) -> str:
    """Say which rule fits the optimizer, and what rate that would make of the original one where another was used."""
    is_adaptive = any(each in optimizer_name.lower() for each in _ADAPTIVE)
    fitting = LearningRateRule.SQRT if is_adaptive else LearningRateRule.LINEAR
    if rule is fitting:
        is_known = is_adaptive or any(each in optimizer_name.lower() for each in _PLAIN)
        fits = "fits" if is_known else "is the usual one, but may not fit"
        return f"the {rule} rule {fits} {optimizer_name}"
    would_be = ""
    if learning_rate is not None:
        would_be = f", and would make it {scale_learning_rate(learning_rate, ratio=ratio, rule=fitting):.4g}"
    if rule is LearningRateRule.NONE:
        return (
            f"the learning rate is kept while the global batch changes by a factor of {float(ratio):.4g}; "
            f"--lr-rule {fitting} is the usual rule for {optimizer_name}{would_be}"
        )
    if is_adaptive:
        return (
            f"the linear rule is common practice, but for {optimizer_name} --lr-rule sqrt is better founded{would_be}"
        )
    usual = f"for {optimizer_name} --lr-rule linear is the usual one{would_be}"
    return f"the sqrt rule is meant for adaptive optimizers; {usual}"


def trust_warning(original: Recipe, new: Recipe) -> str | None:
    """Warn where the global batch changes by more than any rule for the rate can be trusted with; None elsewhere."""
    ratio = new.global_batch_size / original.global_batch_size
    said = (
        f"the global batch is {ratio:.4g} times the original, and rules for the learning rate hold from 1/8 to 8 times"
    )
    if ratio > TRUSTED_RATIO:
        bound = TRUSTED_RATIO * original.global_batch_size // (new.world_size * new.accumulation_steps)
        return f"{said}: check the rate by hand, or bound the batch with --max-batch {max(bound, 1)}"
    if ratio < 1 / TRUSTED_RATIO:
        return f"{said}: check the rate by hand, or hold the batch with --global-batch {original.global_batch_size}"
    return None


def iteration_factor(current: Recipe, new: Recipe) -> Fraction:
    """Return q, the factor for everything counted in forward/backward passes."""
    return Fraction(current.micro_batch_size * current.world_size, new.micro_batch_size * new.world_size)


def optimizer_step_factor(current: Recipe, new: Recipe) -> Fraction:
    """Return 1 / r, the factor for everything counted in optimizer steps."""
    return Fraction(current.global_batch_size, new.global_batch_size)


def split_global_batch(
    global_batch_size: int, world_size: int, micro_batch_sizes: Iterable[int]
) -> tuple[tuple[int, int], ...]:
    """Return the (micro-batch, accumulation) pairs that hold a global batch exactly, in the order given.

    Raises:
        UsageError: the global batch is not a multiple of the number of replicas.
    """
    per_replica, rest = divmod(global_batch_size, world_size)
    if rest or per_replica < 1:
        raise UsageError(f"global batch {global_batch_size} cannot be shared evenly by {world_size} replicas")
    return tuple((size, per_replica // size) for size in micro_batch_sizes if size > 0 and per_replica % size == 0)
