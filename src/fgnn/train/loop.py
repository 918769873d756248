"""The training loop."""

from __future__ import annotations

import copy
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.errors import InputError, need
from fgnn.runtime.devices import device_name
from fgnn.runtime.distributed import World
from fgnn.runtime.environment import command, environment
from fgnn.runtime.progress import ProgressBar
from fgnn.tasks.dataclass_io import plain
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.task import Loss, Task
from fgnn.train.checkpoint import (
    Checkpoint,
    generator_tensors,
    load_checkpoint,
    load_generators,
    load_optimiser,
    optimiser_tensors,
    save_checkpoint,
)
from fgnn.train.run_folder import RunFolder
from fgnn.train.schedule import rate_factor
from fgnn.train.step import Step
from fgnn.train.update import Update
from fgnn.weights import load_weights, save_weights


@dataclass
class State:
    """Where a run stands, besides its tensors."""

    step: int = 0
    total: int | None = None
    seconds: float = 0.0
    best: float = -math.inf
    metrics: dict[str, float] | None = None


def train(
    recipe: Recipe,
    task: Task,
    folder: RunFolder,
    *,
    world: World | None = None,
    device: torch.device | str = "cpu",
    compile: bool = False,
    resume: bool = False,
    time_budget: float | None = None,
    tensorboard: bool = False,
    on_log: Callable[[dict[str, Any]], None] | None = None,
) -> State:
    """Train ``task.network`` as the recipe says; the folder must have been begun.

    A checkpoint is written every ``checkpoint_every`` steps, when ``time_budget`` seconds are over and on SIGINT or
    SIGTERM; ``resume`` goes on from it, to the same numbers as a run that was never stopped.
    """
    start = time.perf_counter()
    world, device = world or World(), torch.device(device)
    progress = ProgressBar(recipe.name, quiet=not world.first)
    network = task.network.to(device)
    average = copy.deepcopy(network) if recipe.ema is not None else None
    update = Update(recipe, network, average, device)
    optimiser = update.optimiser
    state = State(total=planned_steps(recipe, task))
    if resume:
        state = restore(folder, network, average, optimiser) or state
        if world.first:
            folder.rewind(state.step)
    done_before, first_step = state.seconds, state.step
    if compile:
        compile_network(network)
    parallel = world.wrap(network, device)
    board = _board(folder) if tensorboard and world.first else None
    one_step = Step(
        network,
        autocast_loss(recipe, task, parallel, device),
        after=update,
        capture=device.type == "cuda" and world.size == 1,
        say=progress.log,
    )
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, agreement since the last log
    clock = warm = time.perf_counter()
    parallel.train()

    with _stop_signals() as stopped:
        while state.total is None or state.step < state.total:
            batch = task.batch(state.step)
            factor = rate_factor(recipe.schedule, state.step, state.total, task.epoch_steps)
            update.prepare(state.step, recipe.optimiser.rate * factor)
            result = one_step(batch)
            sums += torch.stack([result.loss.detach(), result.agreement.detach()]).double()
            state.step += 1
            if state.step % recipe.log_every and state.step != state.total:
                continue

            # every log_every steps the host waits for the device: metrics, decisions, files
            steps = (state.step - 1) % recipe.log_every + 1
            loss, agreement = (world.mean(sums) / steps).tolist()
            sums.zero_()
            now = time.perf_counter()
            pace = (now - clock) / steps
            state.seconds = done_before + now - start
            line: dict[str, Any] = {
                "step": state.step,
                "loss": loss,
                "agreement": agreement,
                "rate": recipe.optimiser.rate * factor,
                "per_second": recipe.batch / pace,
                "seconds": state.seconds,
            }
            if not math.isfinite(loss):
                raise InputError(
                    f"the loss is {loss} at step {state.step}; lower optimiser.rate, or set optimiser.clip",
                    file=folder.config,
                )
            # the first window holds compilation and warm-up: it does not count, and the pace is taken later still
            warm = now if state.step - first_step <= recipe.log_every else warm
            if state.total is None and recipe.seconds is not None and state.step - first_step >= 3 * recipe.log_every:
                left = recipe.seconds - (now - warm)
                state.total = int(world.mean(torch.tensor(state.step + max(left, 0.0) / pace)).item())
                state.total = max(state.total, state.step)
            over = time_budget is not None and now - start > time_budget
            over = world.agree(over or stopped(), device)
            finished = state.total is not None and state.step >= state.total
            validate = recipe.validate_every > 0 and state.step % recipe.validate_every == 0
            if finished or validate:
                state.metrics = _validate(task, average or network, world, device)
                line |= {f"validation_{k}": v for k, v in state.metrics.items()}
            if world.first:
                folder.log(line)
                left_now = None if state.total is None else (state.total - state.step) * pace
                told = f"loss {loss:.4f}  agreement {100 * agreement:.2f} %  {line['per_second']:,.0f}/s"
                progress.update(f"step {state.step}/{state.total or '?'}  {told}", state.step, state.total, left_now)
                if board:
                    for name, value in line.items():
                        board.add_scalar(name, value, state.step)
                if on_log:
                    on_log(line)
                if (finished or validate) and state.metrics and state.metrics["agreement"] > state.best:
                    state.best = state.metrics["agreement"]
                    write_weights(folder, "best", recipe, task, average or network, state, device)
                if finished or over or state.step % recipe.checkpoint_every == 0:
                    save_checkpoint(folder.checkpoint, checkpoint_of(recipe, network, average, optimiser, state))
            if over and not finished:
                progress.log(f"stopped at step {state.step} with a checkpoint; go on with --resume")
                break
            clock = time.perf_counter()
    if world.first:
        write_weights(folder, "last", recipe, task, average or network, state, device)
        if state.total is not None and state.step >= state.total:
            folder.draw()
        if board:
            board.close()
    progress.close()
    return state


# ---- parts ------------------------------------------------------------------------------------------------------


def autocast_loss(recipe: Recipe, task: Task, network: nn.Module, device: torch.device) -> Callable[[Any], Loss]:
    """The loss of a batch in the recipe's precision; no casts are kept from step to step, since weights change."""

    def loss(batch: Any) -> Loss:
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16", cache_enabled=False):
            return task.loss(network, batch)

    return loss


def planned_steps(recipe: Recipe, task: Task) -> int | None:
    """The number of steps, None where it is measured from the seconds given."""
    if recipe.steps is not None:
        return recipe.steps
    if recipe.epochs is not None:
        assert task.epoch_steps is not None
        return recipe.epochs * task.epoch_steps
    return None


def compile_network(network: nn.Module) -> None:
    """Compile the repeated blocks where the network names them (far quicker than the whole), else the whole."""
    blocks = getattr(network, "compile_blocks", None)
    if blocks is not None:
        blocks()
    else:
        network.compile()


def checkpoint_of(
    recipe: Recipe, network: nn.Module, average: nn.Module | None, optimiser: torch.optim.Optimizer, state: State
) -> Checkpoint:
    """Everything needed to go on."""
    parts: dict[str, dict[str, Tensor]] = {
        "network": network.state_dict(),
        "average": average.state_dict() if average is not None else {},
        "optimiser": optimiser_tensors(optimiser, network),
        "generator": generator_tensors(),
    }
    tensors = {f"{part}/{name}": t for part, named in parts.items() for name, t in named.items()}
    values = {
        "state": vars(state),
        "recipe": plain(recipe),
        "environment": environment(next(network.parameters()).device),
    }
    return Checkpoint(tensors, values)


def restore(
    folder: RunFolder, network: nn.Module, average: nn.Module | None, optimiser: torch.optim.Optimizer
) -> State | None:
    """Put a run's tensors and generators back, and say where it stands; None for a run killed before its first
    checkpoint, which starts over."""
    if not folder.checkpoint.exists():
        return None
    checkpoint = load_checkpoint(folder.checkpoint)
    try:
        network.load_state_dict(checkpoint.part("network"))
        if average is not None:
            average.load_state_dict(checkpoint.part("average"))
        state = State(**checkpoint.values["state"])
    except (RuntimeError, KeyError, TypeError) as error:
        raise InputError(
            "Expected a checkpoint of this run (got one of another network)", file=folder.checkpoint
        ) from error
    load_optimiser(optimiser, network, checkpoint.part("optimiser"))
    load_generators(checkpoint.part("generator"))
    return state


def write_weights(
    folder: RunFolder, which: str, recipe: Recipe, task: Task, network: nn.Module, state: State, device: torch.device
) -> None:
    """The network's tensors with their card."""
    card = {
        "name": recipe.name,
        **task.card(),
        "recipe": plain(recipe),
        "seed": recipe.seed,
        "steps": state.step,
        "instances_seen": state.step * recipe.batch,
        "hours": round(state.seconds / 3600, 4),
        "hardware": device_name(device),
        "metrics": state.metrics or {},
        "command": command(),
    }
    if recipe.start_from is not None:
        card["began_with"] = began_with(recipe.start_from)
    save_weights(folder.path / f"{which}.safetensors", network.state_dict(), card)


def began_with(place: str) -> dict[str, Any]:
    """What a card says of the weights a run started from: their name, and what was spent on them."""
    try:
        card = load_weights(place).card
    except InputError:  # gone since; the run itself does not need them any more
        return {"name": place}
    return {key: card[key] for key in ("name", "instances_seen", "hours", "began_with") if key in card}


def _validate(task: Task, network: nn.Module, world: World, device: torch.device) -> dict[str, float]:
    """Validate on the first rank, eagerly: another batch size would compile the blocks anew."""
    metrics: dict[str, float] = {}
    if world.first:
        training = network.training
        network.eval()
        # not inference_mode: what a network keeps of a structure must serve training afterwards
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            metrics = task.validate(network)
        network.train(training)
    if world.size > 1:
        torch.distributed.barrier()
    return metrics


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one acts as usual."""
    seen: list[int] = []
    old: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        signal.signal(number, old[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            old[number] = signal.signal(number, note)
        except ValueError:  # not the main thread: signals are somebody else's
            break
    try:
        yield lambda: bool(seen)
    finally:
        for noted, handler in old.items():
            signal.signal(noted, handler)


def _board(folder: RunFolder) -> Any:
    need("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder.path / "tensorboard"))
