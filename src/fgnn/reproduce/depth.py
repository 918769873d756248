"""`fgnn reproduce depth`: the answer of a deep network after each of its blocks, on fresh chains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fgnn.errors import InputError
from fgnn.models import MAPNetwork, load_network
from fgnn.nn import ResidualNetwork
from fgnn.report import Page, Table, lines, percent
from fgnn.reproduce.experiment import Cell, Output, Setting, fresh_set, write_outputs
from fgnn.runtime.progress import Log
from fgnn.tasks import Quality
from fgnn.tasks.labelled_models import Examples

WEIGHTS = "deep-map-joint"
KINDS = (1, 2, 3)
_SLICE = 256


def reproduce_depth(
    setting: Setting, out: str | Path, log: Log, weights: str = WEIGHTS, kinds: Sequence[int] = KINDS
) -> Output:
    """Apply the network's read-out after every block."""
    start = time.perf_counter()
    network, card = load_network(weights, setting.device)
    cells: list[Cell] = []
    for kind in kinds:
        examples = fresh_set(setting, kind)
        log(f"kind {kind}: {len(examples)} instances")
        kind_start = time.perf_counter()
        qualities = by_block(network, examples)
        ms = 1e3 * (time.perf_counter() - kind_start) / len(examples)
        cells += [Cell(f"after block {n}", kind, quality, ms) for n, quality in enumerate(qualities, 1)]
    names = list(dict.fromkeys(cell.method for cell in cells))
    at = {(cell.method, cell.kind): cell.quality for cell in cells}
    rows = []
    for name in names:
        row = [name]
        for kind in kinds:
            q = at[name, kind]
            row += [percent(q.agreement, digits=2), percent(q.optimal)]
        rows.append(row)
    heading = ["read-out", *(part for k in kinds for part in (f"Dataset{k}, agreement %", "optimal %"))]
    caption = "The network was trained with one read-out, after its last block; here it is applied after every block"
    table = Table(heading, rows, caption)
    page = Page("The deep network, block by block")
    page.text(
        f"{card['name']}: {len(names)} blocks, {card['instances_seen']:,} instances seen in training; "
        f"{setting.instances:,} fresh chains of each kind."
    )
    page.table(table)
    series = {
        f"Dataset{kind}": [(float(n), 100 * at[name, kind].agreement) for n, name in enumerate(names, 1)]
        for kind in kinds
    }
    picture = lines(series, "blocks", "agreement with the exact MAP, %")
    page.picture(picture, "Agreement by the number of blocks run")
    return write_outputs(Output("depth", setting, cells, [table], page, time.perf_counter() - start), out)


@torch.no_grad()
def by_block(network: MAPNetwork, examples: Examples) -> list[Quality]:
    """Return the quality of the raw answer after each block, by the network's own read-out."""
    body = network.body
    if not isinstance(body, ResidualNetwork):
        raise InputError("Expected a deep network, which has blocks (got another)")
    answers: list[list[Tensor]] = [[] for _ in range(body.repeat * len(body.layers))]
    calls = 0

    def read_out(module: nn.Module, inputs: object, outputs: tuple[Tensor, dict[str, Tensor]]) -> None:
        nonlocal calls
        answers[calls % len(answers)].append(body.read(outputs[0]).argmax(2))
        calls += 1

    hooks = [block.register_forward_hook(read_out) for block in body.layers]
    try:
        for at in range(0, len(examples), _SLICE):  # in sequence: the hooks count the blocks
            network(examples.models.select(slice(at, at + _SLICE)))
    finally:
        for hook in hooks:
            hook.remove()
    return [Quality.of(examples.models, torch.cat(parts), examples.labels) for parts in answers]
