"""The Python API: estimate, probe and plan, as functions of values."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs import MemplanOptions, deliver_patch
from memplan.launchers import is_first_process, read_launch
from memplan.planner import Planning
from memplan.planning.commands import card_count
from memplan.planning.estimating import estimate_subject
from memplan.planning.options import parse_budget, parse_device, parse_duration, request_from
from memplan.planning.question import question_of
from memplan.planning.subject import require_workload, subject_of_workload
from memplan.planning.target import read_target
from memplan.planning.trials.waiting import wait_for_memory
from memplan.plans import PlanRequest
from memplan.progress import PlanStarted
from memplan.recipe import Recipe
from memplan.report.log import log
from memplan.run_names import DEFAULT_STORE
from memplan.textfiles import require_place_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from memplan.planning.question import Question
    from memplan.planning.target import Target
    from memplan.plans import Plan
    from memplan.progress import Observer
    from memplan.results import Estimate, ProbeResult
    from memplan.workload import Workload


def estimate(
    workload: Workload,
    recipe: Recipe | None = None,
    device: str | torch.device = "auto",
    *,
    budget: str | int | None = None,
    trace_limit: str | float | None = None,
) -> Estimate:
    """Predict what one training step of a workload needs on a device, without one.

    Args:
        workload: what is trained; it is handed to a child process and nothing of it runs here.
        recipe: the setting to predict; None for micro-batch 1 in fp32.
        device: card name, size such as ``24GiB``, live device such as ``cuda:0``, ``cpu`` or ``auto``.
        budget: what the step may use, in bytes or as text; None for the whole device.
        trace_limit: longest time of the trace, imports included, in seconds or as ``30min``; None for ten minutes.

    Returns:
        Allocated, reserved and process peaks in bytes, and the components of the process peak.

    Raises:
        UsageError: an argument is not understood.
        DeviceError: the device is not known or not reachable.
        WorkloadError: the workload raises or breaks its contract.
        TraceError: the model cannot be traced.
    """
    subject = subject_of_workload(workload, recipe or Recipe(micro_batch_size=1), tuple(sys.path))
    return estimate_subject(
        subject,
        parse_device(device),
        parse_budget(budget),
        log,
        trace_limit_s=parse_duration(trace_limit, option="trace-limit"),
    )


def probe(
    workload: Workload,
    recipe: Recipe,
    device: str | torch.device = "auto",
    max_util: float = 0.8,
    *,
    min_util: float = 0.6,
    budget: str | int | None = None,
    global_batch: int | None = None,
    max_batch: int | None = None,
    world_size: int | None = None,
    wait: bool = False,
    wait_limit: str | float | None = None,
    trace_limit: str | float | None = None,
    trial_limit: str | float | None = None,
    store: str | Path = DEFAULT_STORE,
    observer: Observer = log,
) -> ProbeResult:
    """Find, by live trials in child processes, the micro-batch of one recipe that lands in the utilisation band.

    A clearly smaller micro-batch in the band is tried too; the faster of the two is returned, or the smaller one where
    it comes within 3 % of the faster.

    Args:
        workload: what is trained; its callables may be anything cloudpickle can carry.
        recipe: the setting; its micro-batch is tried first.
        device: ``cuda:0``, ``cpu`` or ``auto``.
        max_util: upper edge of the band, as a share of the device or budget.
        min_util: lower edge of the band.
        budget: what the step may use, in bytes or as text; None for the whole device.
        global_batch: samples per optimizer step to hold by accumulation; None leaves it free.
        max_batch: largest micro-batch to consider; None for 4096, or eight times the original one.
        world_size: data-parallel replicas; None for as many as the recipe says.
        wait: wait until as much memory is free as the step may use.
        wait_limit: longest time to wait, in seconds or as ``30min``; None for as long as it takes. It alone has memplan
            wait, too.
        trace_limit: longest time one trace may take, in the same form; None for ten minutes.
        trial_limit: longest time to a trial's first step, and for its steps, in the same form; None for 30 and 15
            minutes.
        store: folder of the trial journal.
        observer: called with every event; by default they go to the logger ``memplan``, progress at level INFO.

    Raises:
        NothingFitsError: not even a micro-batch of 1 fits.
        UsageError, DeviceError, WorkloadError, TraceError: as for :func:`estimate`.
    """
    require_workload(workload, recipe)
    request = PlanRequest(
        device=parse_device(device),
        budget_bytes=parse_budget(budget),
        max_utilisation=max_util,
        min_utilisation=min_util,
        precisions=(recipe.precision,),
        global_batch_size=global_batch,
        micro_batch_cap=max_batch,
        world_size=world_size,
        store=Path(store),
        trace_limit_s=parse_duration(trace_limit, option="trace-limit"),
        trial_limit_s=parse_duration(trial_limit, option="trial-limit"),
    )
    request = _waited(request, observer, wait=wait, limit=wait_limit)
    subject = subject_of_workload(workload, recipe, tuple(sys.path), world_size=world_size)
    return Planning(question_of(subject, request, read_launch(os.environ)), observer).probe()


def plan(
    config_or_workload: str | Path | Sequence[str | Path] | Workload = (),
    device: str | torch.device | None = None,
    max_util: float | None = None,
    min_util: float | None = None,
    *,
    recipe: Recipe | None = None,
    command: str | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    budget: str | int | None = None,
    precision: str | Sequence[str] | None = None,
    global_batch: int | None = None,
    max_batch: int | None = None,
    lr_rule: str | None = None,
    world_size: int | None = None,
    workload: str | None = None,
    knobs: Mapping[str, str] | None = None,
    format_name: str | None = None,
    in_place: bool = False,
    loader: bool | None = None,
    wait: bool = False,
    wait_limit: str | float | None = None,
    trace_limit: str | float | None = None,
    trial_limit: str | float | None = None,
    fresh: bool = False,
    apply: bool = False,
    output: str | Path | None = None,
    store: str | Path = DEFAULT_STORE,
    observer: Observer = log,
) -> Plan:
    """Recommend the recipe that puts a device into the utilisation band, with the evidence and the patch.

    A plan made before for the same code, config, options, versions and device is returned from the cache; its
    ``cached_from`` says when it was made.

    Under a launcher of several processes (torchrun, srun) rank 0 plans, before any process group exists; the others
    wait and return the same plan, or raise the same error.

    An argument that is None falls back to the config's own ``memplan`` section, then to the defaults of the command
    line: the first live card or else the CPU, a band of 0.6 to 0.8, the linear rule or, where the global batch is held,
    none.

    Args:
        config_or_workload: a config file, several in the order of the training command, or a workload; with
            ``command``, the config that it names, if any.
        device: card name, size, ``cuda:0``, ``cpu`` or ``auto``; a card that is not present is planned for by estimate.
        max_util: upper edge of the band, as a share of the device or budget.
        min_util: lower edge of the band.
        recipe: the current recipe of a workload; None for micro-batch 1 in fp32. A config has its own.
        command: your own training command, such as ``python train.py {config} --bs {micro_batch_size}``, run as it is.
        steps: with a command, optimizer steps of one trial; None for ten.
        batch_size: with a command, the micro-batch of the first trial.
        budget: what the step may use, in bytes or as text; None for the whole device.
        precision: number formats to compare, such as ``["fp32", "bf16"]``; None for those of the device that the config
            can express.
        global_batch: samples per optimizer step to hold by accumulation; None leaves it free.
        max_batch: largest micro-batch to consider; None for 4096, or eight times the original one.
        lr_rule: ``linear``, ``sqrt`` or ``none``.
        world_size: data-parallel replicas; None for as many as the launcher started, else as the config is written for.
        workload: ``package.module:function`` of a config that does not name it.
        knobs: knob name -> dotted key of the config, as ``--map`` takes them.
        format_name: ecosystem of the config, if it is not recognised correctly.
        in_place: patch the config itself, where the ecosystem's default is a child config.
        loader: let the patch change settings of the data loader too, by the rules of
            :mod:`memplan.recommend.data_loader`; None for what the config says.
        wait: wait until as much memory is free as the plan may use.
        wait_limit: longest time to wait, in seconds or as ``30min``; None for as long as it takes. It alone has memplan
            wait, too.
        trace_limit: longest time one trace may take, in the same form; None for ten minutes.
        trial_limit: longest time to a trial's first step, and for its steps, in the same form; None for 30 and 15
            minutes.
        fresh: plan anew instead of using a cached plan.
        apply: apply the patch at once, if it changes files rather than only the training command.
        output: file to write the patch to, as a diff, under the same condition.
        store: folder of the trial journal.
        observer: called with every event; by default they go to the logger ``memplan``, progress at level INFO.

    Raises:
        NothingFitsError: no recipe fits.
        UsageError, ConfigError, DeviceError, WorkloadError, TraceError, StoreError: see their descriptions.
        OutputError: the patch cannot be written.
    """
    options = MemplanOptions(
        workload=workload,
        knobs=knobs or {},
        device=None if device is None else parse_device(device),
        budget=budget,
        max_util=max_util,
        min_util=min_util,
        precision=precision,
        global_batch=global_batch,
        max_batch=max_batch,
        lr_rule=lr_rule,
        loader=loader,
    )
    target = read_target(
        config_or_workload, recipe, command, options, steps=steps, batch_size=batch_size, format_name=format_name
    )
    request = request_from(
        options.over(target.config_options),
        world_size=world_size,
        in_place=in_place,
        store=Path(store),
        trace_limit=trace_limit,
        trial_limit=trial_limit,
        command=command,
        replicas=target.config.replicas if target.config else None,
    )
    if output is not None:
        require_place_for(Path(output))
    is_first = is_first_process(os.environ)
    if is_first:
        request = _waited(request, observer, wait=wait, limit=wait_limit, cards=card_count(target.command, request))
    question = question_of(*target.subject(request), read_launch(os.environ))
    observer(_started(question, target))
    made = Planning(question, observer).plan(fresh=fresh)
    if is_first:
        deliver_patch(made.config_patch, output=output, apply=apply)
    return made


def _waited(
    request: PlanRequest, observer: Observer, *, wait: bool, limit: str | float | None, cards: int = 1
) -> PlanRequest:
    if not wait and limit is None:
        return request
    return wait_for_memory(request, observer, card_count=cards, limit_s=parse_duration(limit, option="wait-limit"))


def _started(question: Question, target: Target) -> PlanStarted:
    config = question.subject.config
    return PlanStarted(
        command=target.command.template if target.command else None,
        config=config,
        current=question.subject.current,
        device=question.device,
        band=question.band,
        notes=config.notes if config and not target.command else target.notes,
    )
