"""Half-layers and linear layers in compiled code: one operator for as many of them in a row as a network has.

``torch.compile`` spends milliseconds on every result of every operator, several times over. A :class:`Recording`
therefore collects the steps while the network is traced, and hands on :class:`Pending` for their results. The
operator (``step_operator``) then takes all steps at once, as text and integers, and differentiates them itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fgnn.graph import Incidence
from fgnn.nn.backends import step_operator
from fgnn.nn.backends.half_step import Held


class Step(NamedTuple):
    """A step to take: its kind, and the call in words, by handle, by γ and by its operands."""

    kind: str
    words: str
    held: Sequence[Held | None]
    gamma: float
    features: Sequence[Tensor]
    parameters: Sequence[Tensor]


class Pending:
    """Stands for a result of recorded steps: what layers ask of the tensor, and its number.

    It is no tensor, so that neither a graph nor anything that is traced later has a node for it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, place: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.place = place

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


class Recording:
    """Steps recorded so far.

    Operands and results are numbered: k is the k-th tensor from outside, -1 - k the k-th result of the steps. Whatever
    is written here is traced, instruction by instruction: parameters are therefore not looked for but listed.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.features: list[tuple[Tensor, int]] = []  # those from outside that are no parameters, with their numbers
        self.results = 0
        self.lines: list[str] = []
        self.numbers: list[int] = []
        self.held: list[tuple[Held, int]] = []  # where the numbers of an object begin
        self.gammas: list[float] = []

    def place(self, x: Tensor | Pending) -> int:
        """The number of a feature."""
        if isinstance(x, Pending):
            return x.place
        for one, k in self.features:
            if one is x:
                return k
        self.tensors.append(x)
        self.features.append((x, len(self.tensors) - 1))
        return len(self.tensors) - 1

    def hold(self, x: Held | None) -> int:
        """Where the numbers of an object begin: its handle, and what tells the shapes of results; -1 for None."""
        if x is None:
            return -1
        for one, k in self.held:
            if one is x:
                return k
        self.held.append((x, len(self.numbers)))
        self.numbers += [x.handle, x.num_factors, x.num_variables] if isinstance(x, Incidence) else [x.handle]
        return self.held[-1][1]

    def add(self, step: Step, results: int) -> None:
        """Record a step with so many results."""
        held = " ".join([str(self.hold(x)) for x in step.held])
        places = " ".join([str(self.place(x)) for x in step.features])
        span = f"{len(self.tensors)} {len(step.parameters)}"
        self.tensors += step.parameters
        self.lines.append(f"{step.kind} {step.words}:{results}:{held}:{places}:{span}")
        self.gammas.append(step.gamma)
        self.results += results

    def run(self, places: Sequence[int]) -> list[Tensor]:
        """Take all steps; the tensors with these numbers."""
        wanted = [p for p in places if p < 0]
        if not wanted:
            return [self.tensors[p] for p in places]
        keep = torch.is_grad_enabled()
        head = f"{int(keep)} {' '.join([str(p) for p in wanted])}"
        out: list[Tensor] = step_operator.operator(
            self.tensors, self.numbers or [0], self.gammas, ";".join([head, *self.lines])
        )
        found = iter([out[-1 - p] for p in wanted] if keep else out)
        return [next(found) if p < 0 else self.tensors[p] for p in places]


_open: list[Recording] = []


def recording() -> bool:
    """Whether steps are being recorded."""
    return len(_open) > 0


def within_operator() -> bool:
    """Whether the body of an operator, such as that of ``torch.utils.checkpoint``, is traced: it records no steps.

    What is outside of such a body, as the list of recordings is, must not be changed in it.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    with suppress(AttributeError):  # an inner part of torch; without it, checkpoints need a graph break
        tracer: Any = InstructionTranslator.current_tx().output.current_tracer
        return tracer.parent is not None
    return False


within_operator._dynamo_marked_constant = True  # type: ignore[attr-defined]


def start() -> None:
    """Record the steps from here on, up to :func:`finish`; only they may read the features between."""
    _open.append(Recording())


def under_way() -> bool:
    """Whether steps have been recorded."""
    return recording() and len(_open[-1].lines) > 0


def finish(features: Sequence[Tensor]) -> list[Tensor]:
    """Take the recorded steps; the real tensors for ``features``."""
    steps = _open.pop()
    return steps.run([steps.place(x) for x in features])


def take(step: Step, sizes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    """The results of a step, of these shapes and dtypes; if steps are recorded, what stands for them."""
    steps = _open[-1] if recording() else Recording()
    last, device = -steps.results, step.parameters[0].device
    steps.add(step, len(sizes))
    if not recording():
        return steps.run([-1 - k for k in range(len(sizes))])
    pending = [Pending(*sizes[k], device, last - 1 - k) for k in range(len(sizes))]
    return cast(list[Tensor], pending)
