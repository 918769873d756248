"""Passes that are replayed: the same results at new operands, and nothing recorded that could differ."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fgnn.nn import build, record, use_backend
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.backends.triton.replay import Programs, replayed
from fgnn.nn.backends.triton.straight_line import RUN
from fgnn.nn.backends.triton.tape import Tape
from fgnn.runtime.kernel_launch import launch
from fgnn.runtime.triton_support import why_unavailable
from tests.nn.graphs import features, uniform_graph

TRITON = torch.cuda.is_available() or why_unavailable(torch.device("cpu")) is None


class _Product:
    """A kernel (x, y, out, scale): out = x y scale, without Triton."""

    def __init__(self) -> None:
        self.calls = 0

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def run(x: Tensor, y: Tensor, out: Tensor, *, scale: float) -> None:
            self.calls += 1
            out.copy_(x * y * scale)

        return run


def product(kernel: Any, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    out = torch.empty_like(x)
    launch(kernel, (1,), [x, y, out], {"scale": scale})
    return out


def run_often(make: Callable[..., list[Tensor | None]], shapes: list[Any], times: int = 5) -> Programs:
    """Compare the results of every call with those of a call that is not replayed."""
    programs: Programs = {}
    for seed in range(times):
        generator = torch.Generator().manual_seed(seed)
        operands = [torch.randn(shape, generator=generator) for shape in shapes]
        found, _ = replayed(programs, "key", operands, lambda: make(*operands))  # noqa: B023
        for one, other in zip(found, make(*operands), strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
    return programs


def recorded(programs: Programs) -> bool:
    (program,) = programs.values()
    return isinstance(program, Program)


def test_launches_operations_and_views_are_repeated_at_new_operands() -> None:
    kernel, table = _Product(), torch.arange(6.0).view(2, 3)  # an index that is the same at every call

    def make(x: Tensor, y: Tensor) -> list[Tensor | None]:
        temporary = product(kernel, x, y)
        total = product(kernel, temporary, table, 2.0).sum(0)
        first, second = torch.cat([total, y.flatten()]).split([3, 6])
        return [first, None, second.view(2, 3), x, temporary.add_(x)[1], x.T.contiguous()]

    assert recorded(run_often(make, [(2, 3), (2, 3)]))


@torch.library.custom_op("fgnn_test::copied", mutates_args=())
def copied(x: Tensor) -> Tensor:
    """Copies of several kinds, replayed below autograd, as in compiled code."""
    ((out,), _) = replayed(PROGRAMS_OF_OPERATOR, "key", [x], lambda: [copies(x)])
    return cast(Tensor, out).clone()


PROGRAMS_OF_OPERATOR: Programs = {}


def copies(x: Tensor) -> Tensor:
    transposed = x.T.contiguous().to(torch.float64)
    return torch.cat([transposed.reshape(-1), x.T.reshape(-1).double(), x.T.flatten().double()]).add_(1.0)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_copies_are_repeated_in_every_mode_of_autograd(mode: Any) -> None:
    """Where `to` and `reshape` copy they are operations, though their schemas call them views."""
    programs: Programs = {}
    for seed in range(5):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        with mode():
            ((found,), _) = replayed(programs, "key", [x], lambda: [copies(x)])  # noqa: B023
            inside = copied(x)
        assert torch.equal(found, copies(x))
        assert torch.equal(inside, copies(x))
    assert recorded(programs)
    assert recorded(PROGRAMS_OF_OPERATOR)


def test_a_pass_with_empty_results_is_not_recorded() -> None:
    assert not recorded(run_often(lambda x: [x + 1.0, x[:0] + 1.0], [(3,)]))


def test_the_oldest_program_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.nn.backends.triton.replay._MOST", 4)
    kernel = _Product()
    programs: Programs = {}
    for size in (1, 1, 2, 3, 4, 5, 5):
        x = torch.ones(size)
        replayed(programs, "key", [x], lambda: [product(kernel, x, x)])  # noqa: B023
    assert len(programs) == 4
    assert [isinstance(program, Program) for program in programs.values()] == [False, False, False, True]


def test_temporary_tensors_share_memory() -> None:
    kernel = _Product()

    def make(x: Tensor) -> list[Tensor | None]:
        for _ in range(4):
            x = product(kernel, x, x, 0.5)
        return [x]

    (program,) = run_often(make, [(1 << 19,)]).values()
    assert program.sizes == [2 * 4 << 19, 0]  # two of three are alive at a time


def test_what_is_only_kept_comes_as_one_tensor() -> None:
    kernel = _Product()
    programs: Programs = {}

    def make(x: Tensor) -> list[Tensor | None]:
        y, kept = product(kernel, x, x), torch.empty(5, dtype=torch.float64)
        launch(kernel, (1,), [x, x, kept], {"scale": 2.0})
        return [y, kept, y.double(), product(kernel, y, x)]

    for seed in range(4):
        x = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        (y, *kept), places = replayed(programs, "key", [x], lambda: make(x), joint_from=1)  # noqa: B023
        assert (places is None) == (seed < 2)
        if places is not None:
            assert len(kept) == 2  # the result of an operation is a tensor of its own
            kept = [place.within(kept[place.buffer]) for place in places]
        for one, other in zip([y, *kept], make(x), strict=True):
            assert other is not None
            assert torch.equal(one, other)


def test_small_results_may_be_views_of_one_tensor() -> None:
    kernel = _Product()
    x = torch.randn(1 << 17)
    with Tape([x]) as tape:
        small = [product(kernel, x[:n], x[:n]) for n in (5, 7)]
        large, other = product(kernel, x, x), x[:3] * 2.0
    (a, b, c, d) = Program(tape, [*small, large, other], joint_small=True)([x]) or []
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert len({y.untyped_storage().data_ptr() for y in (a, c, d)}) == 3  # what an operation makes is its own
    assert b.data_ptr() % 16 == 0
    for one, wanted in ((a, x[:5] ** 2), (b, x[:7] ** 2), (c, x**2), (d, 2 * x[:3])):
        assert torch.equal(one, wanted)


@pytest.mark.parametrize("what", ["reads a value", "overlaps", "transposes"])
def test_what_may_differ_is_not_recorded(what: str) -> None:
    kernel = _Product()
    programs: Programs = {}
    for seed in range(6):
        x = torch.full((4, 4), float(seed))
        y = x if what == "overlaps" else x.T if what == "transposes" else torch.ones(4, 4)

        def make(x: Tensor = x, y: Tensor = y) -> list[Tensor | None]:
            scale = float(x.sum()) if what == "reads a value" else 1.0
            return [product(kernel, x, y, scale)]

        ((found,), _) = replayed(programs, "key", [x, y], make)
        assert torch.equal(found, cast(Tensor, make()[0]))
    assert not recorded(programs)


def test_other_shapes_dtypes_strides_and_keys_are_other_programs() -> None:
    kernel = _Product()
    programs: Programs = {}
    for shape, dtype, stride, key in [
        ((2, 3), torch.float32, (3, 1), 0), ((3, 2), torch.float32, (2, 1), 0), ((2, 3), torch.float64, (3, 1), 0),
        ((2, 3), torch.float32, (1, 2), 0), ((2, 3), torch.float32, (3, 1), 1),
    ]:  # fmt: skip
        for _ in range(4):
            x = torch.randn(6, dtype=dtype).as_strided(shape, stride)
            ((found,), _) = replayed(programs, key, [x], lambda: [product(kernel, x, x)])  # noqa: B023
            assert torch.equal(found, x * x)
    assert len(programs) == 5


class _Binary:
    """A compiled kernel that notes where it is launched."""

    function, packed_metadata = 17, (4, 1, 0)

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args: None

    def run(self, *args: Any) -> None:
        self.notes.append(args)


class _Compiled:
    """A kernel (x, out, n, WIDTH) as Triton compiles it."""

    arg_names = ("x", "out", "n", "WIDTH")
    device_caches: Any = None

    def __init__(self, binary: Any) -> None:
        self.binary = binary

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **options: self.binary


OPTIONS: Mapping[str, Any] = {"WIDTH": 64, "num_warps": 4}


def compiled_pass(kernel: Any, x: Tensor) -> list[Tensor | None]:
    out = torch.empty_like(x)
    launch(kernel, (7, 2), [x, out, 5], OPTIONS)
    return [out]


@pytest.fixture
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99 + device, raising=False)


@pytest.mark.usefixtures("_device")
def test_a_compiled_kernel_is_launched_at_the_new_addresses() -> None:
    notes: list[Any] = []
    kernel = _Compiled(_Binary(notes))
    programs: Programs = {}
    for _ in range(3):
        x = torch.randn(8)
        ((out,), _) = replayed(programs, "key", [x], lambda: compiled_pass(kernel, x))  # noqa: B023
    grid, function = (7, 2, 1), (99, 17, (4, 1, 0), None, None, None)
    assert notes == [(*grid, *function, x.data_ptr(), out.data_ptr(), 5, 64)]


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("other", ["address", "device", "triton"])
def test_a_launch_that_would_fail_runs_as_at_first(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []
    binary = _Binary(notes)
    kernel = _Compiled(binary)
    programs: Programs = {}
    x = torch.randn(12)[:8]
    for _ in range(2):
        replayed(programs, "key", [x], lambda: compiled_pass(kernel, x))
    assert recorded(programs)
    if other == "address":
        x = torch.randn(12)[1:9]
    elif other == "device":
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    else:
        (program,) = programs.values()
        program.steps = [
            (kind, lambda x: x, *rest) if kind == RUN else (kind, step, *rest) for kind, step, *rest in program.steps
        ]
    ((out,), _) = replayed(programs, "key", [x], lambda: compiled_pass(kernel, x))
    assert out.shape == x.shape
    assert not notes


class _Multiplies:
    """A compiled kernel (x, y, out, n, SCALE): out = x y SCALE of n numbers, at the addresses it is given."""

    function, packed_metadata, arg_names = 17, (4, 1, 0), ("x", "y", "out", "n", "SCALE")
    device_caches: Any = None

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def run(*args: Any, SCALE: float | None = None, **_: Any) -> Any:
            x, y, out, n, *scale = [arg.data_ptr() if isinstance(arg, Tensor) else arg for arg in args]
            self.run(*grid, 99, 17, (4, 1, 0), None, None, None, x, y, out, n, *(scale or [SCALE]))
            return self

        return run

    def run(self, *args: Any) -> None:
        *_, x, y, out, n, scale = args
        a, b, c = (np.ctypeslib.as_array((ctypes.c_float * n).from_address(address)) for address in (x, y, out))
        c[:] = a * b * scale


@pytest.mark.usefixtures("_device")
def test_compiled_kernels_and_operations_read_the_same_memory() -> None:
    """Temporary memory that launches fill and operations read, views of it, and results of other shapes than theirs."""
    kernel = _Multiplies()
    programs: Programs = {}
    options: Mapping[str, Any] = {"SCALE": 0.5}

    def multiply(x: Tensor, y: Tensor, *shape: int) -> Tensor:
        out = torch.empty(shape or x.shape)
        launch(kernel, (1, 1, 1), [x, y, out, x.numel()], options)
        return out

    def make(x: Tensor, y: Tensor) -> list[Tensor | None]:
        square = multiply(x, x)
        cube = multiply(square, x, 2, 2, 6)
        half = cube[1].to(torch.bfloat16)
        zeros = square.new_zeros((3,), dtype=torch.float64)
        parts = torch.cat([y.flatten(), cube.sum([0]).flatten()])
        more = multiply(x, y, 1, 4, 6)[0]
        return [more, half, zeros, None, parts[:24].view(4, 6), parts[24:], multiply(square, y, 24), cube[0]]

    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(4, 6, generator=generator) for _ in range(2))
        found, _ = replayed(programs, "key", [x, y], lambda: make(x, y))  # noqa: B023
        for one, other in zip(found, make(x, y), strict=True):
            assert (one is None) == (other is None)
            assert one is None or (torch.equal(one, cast(Tensor, other)) and one.dtype == other.dtype)
    assert recorded(programs)
    (program,) = programs.values()
    assert program.alone == {0, 6}


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "cpu"])
def where(request: pytest.FixtureRequest) -> str:
    """The device that kernels run on: the GPU, or without one the CPU, by Triton's interpreter."""
    if not TRITON:
        pytest.skip("needs a CUDA device or Triton's interpreter")
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("for the other device")
    return str(request.param)


class _Trained:
    """A network whose weights change from step to step, and new features for each."""

    def __init__(self, where: str, notation: str = "FGNN(4) - FGNN(4)") -> None:
        self.where, self.graph = where, uniform_graph().to(where)
        self.widths = dict.fromkeys(self.graph.groups, 3)
        torch.manual_seed(0)
        self.net = build(notation, variable_in=2, factor_in=self.widths, edge_in=self.widths).to(where)

    def inputs(self, seed: int, batch: int | None = 3) -> tuple[Any, ...]:
        f, *rest = features(self.graph, 2, self.widths, self.widths, batch=batch, seed=seed, dtype=torch.float32)
        return f.to(self.where), *({name: x.to(self.where) for name, x in some.items()} for some in rest)

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.net.parameters() if p.grad is not None]

    @torch.no_grad()
    def change(self) -> None:
        for p in self.net.parameters():
            p.add_(0.1 * torch.randn_like(p))


RESIDUAL = "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)]"


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize(("half", "batch"), [(True, 17), (False, None)])
def test_replayed_steps_equal_others(half: bool, batch: int | None, by_position: bool, whole: bool, where: str) -> None:
    """Four steps at new features and new parameters: halves are recorded in the second, whole networks in the third."""
    trained = _Trained(where, RESIDUAL)
    net, graph = trained.net, trained.graph
    arity = {name: graph.incidence(name).arity or 1 for name in graph.groups}
    real, replays = Program.__call__, []

    def step(net: Any, f: Tensor, gs: Any, edges: Any, program: Any) -> list[Tensor]:
        net.zero_grad()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Program, "__call__", program)
            with use_backend("triton"), torch.autocast(where, torch.float16, enabled=half):
                y = net(graph, f, gs, edges).float()
            y.square().sum().backward()
        return [y.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]

    for seed in range(4):
        f, gs, t = trained.inputs(seed, batch)
        edges = {name: x[: arity[name]] if by_position else x for name, x in t.items()}
        plain = record(copy.deepcopy(net), False)
        wanted = step(plain, f, gs, edges, lambda self, *operands: None)
        if not whole:
            record(net, False)
        found = step(net, f, gs, edges, lambda self, *operands: replays.append(seed) or real(self, *operands))  # noqa: B023
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        trained.change()
    # halves and, in half precision, linear layers, or all in one; forward and backward
    assert replays.count(3) == (2 if whole else 2 * (4 + 2 * half))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_inference_follows_new_features_and_weights(mode: Any, where: str) -> None:
    trained = _Trained(where, RESIDUAL)
    for seed in range(5):
        found = []
        for backend in ("triton", "torch"):
            with mode(), use_backend(backend), torch.autocast(where, torch.float16):
                found.append(trained.net(trained.graph, *trained.inputs(seed)).float())
        torch.testing.assert_close(*found, rtol=0.02, atol=0.02)
        trained.change()


def test_a_checkpoint_recomputes_what_it_saved(where: str) -> None:
    trained, gradients = _Trained(where), []
    net, graph = trained.net, trained.graph
    for recompute in (True, True, False):
        inputs = trained.inputs(0)
        net.zero_grad()
        for _ in range(3):
            with use_backend("triton"):
                y = checkpoint(net, graph, *inputs, use_reentrant=False) if recompute else net(graph, *inputs)
                y.square().sum().backward()
        gradients.append(trained.gradients())
    for one, again, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(one, plain)
        torch.testing.assert_close(again, plain)


def test_compiled_steps_follow_the_weights(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training through ``torch.compile`` under autocast, where the operator runs below autograd."""
    trained = _Trained(where)
    net = record(trained.net, False)
    fast, real, replays = torch.compile(net, fullgraph=True), Program.__call__, 0
    for seed in range(5):
        found, inputs = [], trained.inputs(seed)
        for form in (fast, net):

            def program(self: Program, operands: Any, form: Any = form) -> Any:
                nonlocal replays
                replays += form is fast
                return real(self, operands) if form is fast else None

            monkeypatch.setattr(Program, "__call__", program)
            net.zero_grad()
            with torch.autocast(where, torch.bfloat16), use_backend("triton"):
                y = form(trained.graph, *inputs).float()
            y.square().sum().backward()
            found.append([y.detach(), *(grad.clone() for grad in trained.gradients())])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0.01, atol=0.01 * float(other.abs().max()))
        trained.change()
    assert replays == 2 * 3  # from the third step on, one program each way for both layers
