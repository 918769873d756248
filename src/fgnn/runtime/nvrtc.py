"""Compile CUDA kernels at run time: NVRTC comes with torch's CUDA builds, so that no toolkit is needed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

import torch

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent
# CUDA_ERROR_INVALID_IMAGE, _NO_BINARY_FOR_GPU and _UNSUPPORTED_PTX_VERSION: what NVRTC made is not for this driver
_UNKNOWN_CODE = (200, 209, 222)


class CompileError(RuntimeError):
    """The compiler does not take a kernel, or the driver does not take what it made of it."""


# Launches a kernel: blocks, threads of a block, bytes of dynamic shared memory, arguments as ctypes values.
Launch = Callable[[int, int, int, Sequence[Any]], None]
# Compiles a source with these macros for a device.
Compile = Callable[[Mapping[str, str | int], torch.device], Launch]


@dataclass(frozen=True)
class CudaSource:
    """A file of the package with one kernel, compiled when called: once for the same macros and device.

    Attributes:
        package: Where the file is.
        file: CUDA C++ with an ``extern "C"`` kernel.
        kernel: Its name.
        options: Of NVRTC.
        before: Files of the package that come before it.
        own: Whether it uses instructions that only its very kind of GPU has, such as Hopper's matrix units.
    """

    package: str
    file: str
    kernel: str
    options: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    own: bool = False

    def text(self) -> str:
        """The source."""
        return "\n".join(files(self.package).joinpath(file).read_text("utf-8") for file in (*self.before, self.file))

    def compiled(self, defines: Mapping[str, str | int], device: torch.device) -> CudaKernel:
        """The kernel itself."""
        return _kernel(self, tuple(defines.items()), device)

    def __call__(self, defines: Mapping[str, str | int], device: torch.device) -> Launch:
        """Compile it."""
        return self.compiled(defines, device)


@cache
def _kernel(source: CudaSource, defines: tuple[tuple[str, str | int], ...], device: torch.device) -> CudaKernel:
    options = [*source.options, *(f"-D{name}={value}" for name, value in defines)]
    return CudaKernel(source.text(), source.kernel, options, device, source.own)


class CudaKernel:
    """A kernel of a CUDA source, compiled for one device.

    Args:
        source: CUDA C++ with an ``extern "C"`` kernel.
        name: The kernel.
        options: Of NVRTC, such as ``-DSIZE=4``.
        device: A GPU.
        own: See :class:`CudaSource`.
    """

    def __init__(self, source: str, name: str, options: Sequence[str], device: torch.device, own: bool = False) -> None:
        self.device = device
        major, minor = torch.cuda.get_device_capability(device)
        chip = f"sm_{major}{minor}{'a' if own else ''}"
        binary = _compile(source, [f"--gpu-architecture={chip}", *options])
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._allowed, self._lock = -1, Lock()
        self._load(binary, name)

    def _load(self, binary: bytes, name: str) -> None:
        with torch.cuda.device(self.device):
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()  # makes the context of this device current
            self._call(self._driver.cuModuleLoadData, ctypes.byref(self._module), binary)
            self._call(self._driver.cuModuleGetFunction, ctypes.byref(self._function), self._module, name.encode())

    def __call__(self, blocks: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
        """Launch on the current stream; arguments are ctypes values, ``shared`` counts bytes of dynamic memory."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        with torch.cuda.device(self.device):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            self.allow_shared(shared)
            args = (self._function, blocks, 1, 1, threads, 1, 1, shared, stream, pointers, None)
            self._call(self._driver.cuLaunchKernel, *args)

    def allow_shared(self, shared: int) -> None:
        """Let blocks have this many bytes of dynamic shared memory, at least."""
        with self._lock, torch.cuda.device(self.device):
            if shared <= self._allowed:
                return
            self._call(self._driver.cuFuncSetAttribute, self._function, _MAX_DYNAMIC_SHARED, shared)
            if shared:  # as many blocks beside each other as fit
                self._call(self._driver.cuFuncSetAttribute, self._function, _CARVEOUT, 100)
            self._allowed = shared

    def launch(self, x: int, y: int, z: int, threads: int, shared: int, stream: int, packed: Any) -> None:
        """Launch a grid with arguments that are packed as the driver reads them (its parameter ``extra``)."""
        args = (self._function, x, y, z, threads, 1, 1, shared, ctypes.c_void_p(stream), None, packed)
        self._call(self._driver.cuLaunchKernel, *args)

    def _call(self, function: Callable[..., int], *args: Any) -> None:
        """Call a function of the driver."""
        code = function(*args)
        if code == _NO_CONTEXT:  # a new thread, which has not called anything of CUDA
            self._enter()
            code = function(*args)
        self._check(code)

    def _enter(self) -> None:
        """Make the context that torch uses on this device the current one of this thread."""
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._driver.cuDeviceGet(ctypes.byref(number), self.device.index))
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
        self._check(self._driver.cuCtxSetCurrent(context))

    def _check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            kind = CompileError if code in _UNKNOWN_CODE else RuntimeError
            raise kind(f"CUDA: {(text.value or b'unknown error').decode()}")


def can_compile() -> bool:
    """Whether there is a GPU and a compiler for it."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return False
    try:
        _library()
    except RuntimeError:
        return False
    return True


@cache
def _library() -> ctypes.CDLL:
    """NVRTC, from the system or beside torch."""
    major = str(torch.version.cuda).split(".")[0]
    beside = [
        str(file)
        for folder in [Path(torch.__file__).parent, *(Path(entry) / "nvidia" for entry in sys.path if entry)]
        for file in sorted(folder.glob(f"**/libnvrtc.so.{major}"))
    ]
    for name in [*beside, f"libnvrtc.so.{major}", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError(f"no NVRTC for CUDA {torch.version.cuda} was found beside torch or on the library path")


def _compile(source: str, options: Sequence[str]) -> bytes:
    """Compile to machine code."""
    library, program = _library(), ctypes.c_void_p()

    def check(code: int) -> None:
        if code:
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise CompileError(f"NVRTC error {code}: {log.value.decode()}")

    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        check(library.nvrtcCompileProgram(program, len(options), words))
        size = ctypes.c_size_t()
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, binary))
        return binary.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
