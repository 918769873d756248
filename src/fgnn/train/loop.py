"""The training loop: trains any `Task`."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fgnn.errors import InputError, need
from fgnn.report.curves import HELD_OUT, metric_label, metric_tag
from fgnn.runtime.devices import device_name
from fgnn.runtime.distributed import World
from fgnn.runtime.environment import command
from fgnn.runtime.progress import ProgressBar
from fgnn.tasks import Loss, Task, TrainingSettings, plain
from fgnn.tasks.settings import MOST_STEPS
from fgnn.train.checkpoint import State, restore, save_state
from fgnn.train.run_folder import RunFolder
from fgnn.train.step import Step
from fgnn.train.stop_signals import stop_signals
from fgnn.train.update import Update, rate_factor
from fgnn.weights import save_weights
from fgnn.weights.cards import read_card


@dataclass(frozen=True)
class RunOptions:
    """How to execute a run; unlike its settings, these may differ when it is resumed.

    Args:
        compile: Compile the repeated blocks of the network.
        resume: Continue from the folder's checkpoint.
        time_budget: Seconds after which to stop with a checkpoint.
        tensorboard: Also log for TensorBoard.
        on_log: Called with each line of metrics.
    """

    compile: bool = False
    resume: bool = False
    time_budget: float | None = None
    tensorboard: bool = False
    on_log: Callable[[dict[str, Any]], None] | None = None


def train(
    settings: TrainingSettings,
    task: Task,
    folder: RunFolder,
    *,
    world: World | None = None,
    device: torch.device | str = "cpu",
    options: RunOptions | None = None,
) -> State:
    """Train ``task.network`` and write to ``folder``, which `RunFolder.begin` must have prepared.

    A checkpoint is written every ``checkpoint_every`` steps, when the time budget is spent, and on SIGINT or SIGTERM.
    A resumed run reaches the same numbers as one that was never stopped.
    """
    world = world or World()
    with folder.locked() if world.first else nullcontext():
        return _Trainer(settings, task, folder, world, torch.device(device), options or RunOptions()).train()


class _Trainer:
    """The state of a run, and the loop over its steps."""

    def __init__(
        self,
        settings: TrainingSettings,
        task: Task,
        folder: RunFolder,
        world: World,
        device: torch.device,
        options: RunOptions,
    ) -> None:
        self.start = time.perf_counter()
        self.settings, self.task, self.folder, self.options = settings, task, folder, options
        self.world, self.device = world, device
        self.progress = ProgressBar(settings.name, quiet=not world.first)
        self.network = task.network.to(device)
        self.average = copy.deepcopy(self.network) if settings.ema is not None else None
        self.update = Update(settings, self.network, self.average, device)
        self.state = State(total=planned_steps(settings, task))
        if options.resume:
            planned = self.state.total
            self.state = restore(folder.checkpoint, self.network, self.average, self.update.optimiser) or self.state
            if planned is not None:
                self.state.total = planned
            if world.first:
                folder.rewind(self.state.step)
        self.first_step, self.seconds_before = self.state.step, self.state.seconds
        if options.compile:
            compile_network(self.network)
        self.parallel = world.wrap(self.network, device)
        self.board = _tensorboard(folder) if options.tensorboard and world.first else None
        self.step = Step(
            self.network,
            autocast_loss(settings, task, self.parallel, device),
            after=self.update,
            capture=device.type == "cuda" and world.size == 1,
            log=self.progress.log,
        )

    @property
    def trained(self) -> nn.Module:
        """The weights to keep: the average if there is one."""
        return self.network if self.average is None else self.average

    def train(self) -> State:
        settings, task, state, world = self.settings, self.task, self.state, self.world
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # loss and correct labels since the last log
        window_start = self.warm = time.perf_counter()
        self.parallel.train()
        with stop_signals() as stopped:
            while not state.finished:
                batch = task.batch(state.step)
                rate = settings.optimiser.rate * rate_factor(
                    settings.schedule, state.step, state.total, task.epoch_steps
                )
                self.update.prepare(state.step, rate)
                result = self.step(batch)
                sums += torch.stack([result.loss.detach(), result.correct.detach()]).double()
                state.step += 1
                if state.step % settings.log_every and not state.finished:
                    self._show_step(window_start)
                    continue

                # once per log_every steps: synchronise host and device, measure, decide, write
                steps = (state.step - 1) % settings.log_every + 1
                loss, correct = (world.mean(sums) / steps).tolist()
                sums.zero_()
                now = time.perf_counter()
                pace = (now - window_start) / steps
                state.seconds = self.seconds_before + now - self.start
                if not math.isfinite(loss):
                    raise InputError(
                        f"the loss is {loss} at step {state.step}; lower optimiser.rate, or set optimiser.clip",
                        file=self.folder.config,
                    )
                self._fit_steps(now, pace)
                budget = self.options.time_budget
                stop = world.agree((budget is not None and now - self.start > budget) or bool(stopped()), self.device)
                line = {
                    "step": state.step,
                    "loss": loss,
                    task.metric: correct,
                    "rate": rate,
                    "per_second": settings.batch / pace,
                    "seconds": state.seconds,
                }
                improved = self._validate(line)
                if world.first:
                    self._write(line, pace, improved, stop)
                if stop and not state.finished:
                    state.signal = stopped()
                    self.progress.log(f"stopped at step {state.step} with a checkpoint; continue with --resume")
                    break
                window_start = time.perf_counter()
        self._close()
        return state

    def _show_step(self, window_start: float) -> None:
        """Count steps before the next line of metrics; nothing waits for the device."""
        state = self.state
        done = (state.step - 1) % self.settings.log_every + 1
        pace = (time.perf_counter() - window_start) / done
        left = None if state.total is None else (state.total - state.step) * pace
        self.progress.update(f"step {state.step}/{state.total or '?'}", state.step, state.total, left)

    def _fit_steps(self, now: float, pace: float) -> None:
        """Turn ``settings.seconds`` into a number of steps, once the pace is known."""
        settings, state = self.settings, self.state
        done = state.step - self.first_step
        if done <= settings.log_every:
            self.warm = now  # the first window compiles and warms up: its time does not count
        if state.total is None and settings.seconds is not None and done >= 3 * settings.log_every:
            left = max(settings.seconds - (now - self.warm), 0.0)
            total = self.world.mean(torch.tensor(state.step + left / pace, device=self.device))
            state.total = max(int(total.item()), state.step)

    def _validate(self, line: dict[str, Any]) -> bool:
        """Validate if it is due, on the first rank; return True if they are the best weights so far."""
        every, state = self.settings.validate_every, self.state
        if not self.state.finished and (every == 0 or state.step % every):
            return False
        state.metrics = {}
        if self.world.first:
            network, training = self.trained, self.trained.training
            network.eval()
            # not inference_mode: structures that the network caches must serve training afterwards;
            # eager: another batch size would recompile the blocks
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                state.metrics = self.task.validate(network)
            network.train(training)
        if self.world.size > 1:
            torch.distributed.barrier()
        line |= {f"validation_{name}": value for name, value in state.metrics.items()}
        if not state.metrics or not state.metrics[self.task.chosen_by] > state.best:
            return False
        state.best = state.metrics[self.task.chosen_by]
        return True

    def _write(self, line: dict[str, Any], pace: float, improved: bool, stop: bool) -> None:
        """Log one line of metrics; save weights and a checkpoint if they are due."""
        state = self.state
        self.folder.log(line)
        metric = self.task.metric
        correct = f"{metric_label(metric)} {100 * line[metric]:.2f} %"
        text = f"loss {line['loss']:.4f}  {correct}  {rate_text(line['per_second'])}"
        for name in dict.fromkeys((metric, self.task.chosen_by)):
            if (value := line.get(f"{HELD_OUT}{name}")) is not None:
                text += f"  held-out {metric_label(name)} {100 * value:.2f} %"
        left = None if state.total is None else (state.total - state.step) * pace
        self.progress.update(f"step {state.step}/{state.total or '?'}  {text}", state.step, state.total, left)
        if self.board:
            for name, value in line.items():
                self.board.add_scalar(metric_tag(name), value, state.step)
        if self.options.on_log:
            self.options.on_log(line)
        if improved:
            self._write_weights("best")
        if self.state.finished or stop or state.step % self.settings.checkpoint_every == 0:
            save_state(self.folder.checkpoint, self.settings, self.network, self.average, self.update.optimiser, state)

    def _write_weights(self, which: str) -> None:
        """Save the trained weights with their card."""
        settings, state = self.settings, self.state
        card = {
            "name": settings.name,
            **self.task.card(),
            "recipe": plain(settings),
            "seed": settings.seed,
            "steps": state.step,
            "instances_seen": state.step * settings.batch,
            "hours": round(state.seconds / 3600, 4),
            "hardware": device_name(self.device),
            "metrics": state.metrics or {},
            "command": command(),
        }
        if settings.start_from is not None:
            card["began_with"] = _origin(settings.start_from)
        save_weights(self.folder.path / f"{which}.safetensors", self.trained.state_dict(), card)

    def _close(self) -> None:
        if self.world.first:
            self._write_weights("last")
            if self.state.finished:
                self.folder.draw()
            if self.board:
                self.board.close()
        self.progress.close()


def rate_text(per_second: float) -> str:
    """Instances per second, with three digits below a hundred, so that a slow run does not show 0."""
    return f"{per_second:,.0f}/s" if per_second >= 100 else f"{per_second:.3g}/s"


def autocast_loss(
    settings: TrainingSettings, task: Task, network: nn.Module, device: torch.device
) -> Callable[[Any], Loss]:
    """Return the task's loss in the precision of the settings; casts are not cached, since weights change."""

    def loss(batch: Any) -> Loss:
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16", cache_enabled=False):
            return task.loss(network, batch)

    return loss


def planned_steps(settings: TrainingSettings, task: Task) -> int | None:
    """Return the number of steps; None if it depends on the measured pace."""
    if settings.epochs is None:
        return settings.steps
    if task.epoch_steps is None:
        raise ValueError("Expected steps or seconds for a task without epochs (got epochs)")
    steps = settings.epochs * task.epoch_steps
    if steps > MOST_STEPS:
        raise ValueError(
            f"Expected at most {MOST_STEPS:,} steps (got {settings.epochs:,} epochs of {task.epoch_steps:,})"
        )
    return steps


def compile_network(network: nn.Module) -> None:
    """Compile the repeated blocks if the network names them (much faster to compile), else the whole network."""
    compile_blocks = getattr(network, "compile_blocks", network.compile)
    compile_blocks()


def _origin(place: str) -> dict[str, Any]:
    """Return what a card says of the weights a run started from."""
    try:
        card = read_card(place)
    except InputError:  # deleted since; the run no longer needs them
        return {"name": place}
    return {key: card[key] for key in ("name", "instances_seen", "hours", "began_with") if key in card}


def _tensorboard(folder: RunFolder) -> Any:
    need("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder.path / "tensorboard"))
