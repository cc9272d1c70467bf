# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiles a launch for a GPU that need not be there, and measures what came of it.

The launch is one recorded from a launcher, so the compiler is told about every argument exactly what a real launch
would tell it: which pointers and integers are multiples of 16, which integers are 1, what is constant.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from metrale_caps.errors import KernelError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from metrale_caps.kernels.launch import Argument, Launch

TARGETS: Mapping[str, Any] = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
_ALIGNMENT = 16
_INT32 = range(-(2**31), 2**31)

_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_AMDGCN = re.compile(r"^\s+([a-z]\w+)", re.MULTILINE)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a compiled kernel is made of.

    Attributes:
        registers: of a thread; on AMD vector registers, accumulation registers included.
        spill_bytes: of a thread, in local memory (on AMD: in scratch memory).
        local_accesses: instructions that load from or store to that memory.
        shared_bytes: shared memory of a program.
        tensor_memory: columns of tensor memory of a program, on targets that have it.
        instructions: all of them.
        tensor_core: instructions that multiply matrices.
        warpgroup: those of them that a group of four warps executes as one.
        loads: loads from global memory, asynchronous copies included.
        wide_loads: those of them that move 16 bytes a thread.
        stores: stores to global memory.
        wide_stores: those of them that move 16 bytes a thread.
    """

    registers: int
    spill_bytes: int
    local_accesses: int
    shared_bytes: int
    tensor_memory: int
    instructions: int
    tensor_core: int
    warpgroup: int
    loads: int
    wide_loads: int
    stores: int
    wide_stores: int

    @property
    def narrow(self) -> int:
        """Accesses of global memory that move less than 16 bytes a thread."""
        return self.loads - self.wide_loads + self.stores - self.wide_stores


def measure(launch: Launch, target: str) -> Metrics:
    """Compile a recorded launch for a target of `TARGETS` and measure the result.

    Raises:
        LaunchError: an argument is of a kind no kernel takes.
        KernelError: the compiler refuses the kernel, or its output cannot be read.
    """
    name = launch.kernel.fn.__name__
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True}
    source = source_of(launch, target)
    try:
        compiled = triton.compile(source, target=TARGETS[target], options=options)
    except Exception as error:  # each stage of the compiler raises kinds of its own
        raise KernelError(f"{name} does not compile for {target}: {error}") from error
    if "cubin" in compiled.asm:
        return _nvidia(compiled.asm["cubin"], compiled.metadata)
    return _amd(compiled.asm["amdgcn"], compiled.metadata)


def source_of(launch: Launch, target: str) -> ASTSource:
    """Return the kernel with the types, constants and alignments of a launch's arguments."""
    is_amd = TARGETS[target].backend == "hip"
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    attributes: dict[tuple[int, ...], list[list[str | int]]] = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        specialized = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialized and type(value) is int and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        signature[parameter.name] = _type_of(parameter.name, value)
        known = list[list[str | int]]()
        if specialized and _is_aligned(value):
            known.append(["tt.divisibility", _ALIGNMENT])
        if specialized and is_amd and _has_small_offsets(value):
            known.append(["tt.pointer_range", 32])
        if known:
            attributes[index,] = known
    return ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def _type_of(name: str, value: Argument) -> str:
    if isinstance(value, torch.Tensor) and value.dtype in _POINTERS:
        return _POINTERS[value.dtype]
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        return "i32" if value in _INT32 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise LaunchError(f"{name}: no kernel takes {value!r}")


def _is_aligned(value: Argument) -> bool:
    """Whether a launch would find the argument a multiple of 16; of a tensor, that of its offset in an allocation."""
    if isinstance(value, torch.Tensor):
        return value.storage_offset() * value.element_size() % _ALIGNMENT == 0
    return type(value) is int and value % _ALIGNMENT == 0


def _has_small_offsets(value: Argument) -> bool:
    """Whether 32 bits hold every offset in the allocation, for which AMD targets have narrower addressing."""
    return isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() in _INT32


def _nvidia(cubin: bytes, metadata: Any) -> Metrics:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        resources = _RESOURCES.search(_cuobjdump("-res-usage", file))
        listing = _cuobjdump("-sass", file)
    if resources is None:
        raise KernelError("the disassembler says nothing about registers")
    registers, stack, local = (int(number) for number in resources.groups())
    operations = Counter(_SASS.findall(listing))
    # with the dot: LDGDEPBAR waits for copies and moves nothing
    loads, stores = _having(operations, ("LDG.", "LDGSTS.", "UTMALDG")), _having(operations, ("STG.", "UTMASTG"))
    return Metrics(
        registers=registers,
        spill_bytes=stack + local,
        local_accesses=_count(operations, ("LDL", "STL")),
        shared_bytes=metadata.shared,
        tensor_memory=getattr(metadata, "tmem_size", None) or 0,
        instructions=operations.total(),
        tensor_core=_count(operations, ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")),
        warpgroup=_count(operations, ("HGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")),
        loads=loads.total(),
        wide_loads=_having(loads, ("UTMA",)).total() + _containing(loads, ".128"),
        stores=stores.total(),
        wide_stores=_having(stores, ("UTMA",)).total() + _containing(stores, ".128"),
    )


def _cuobjdump(option: str, file: Path) -> str:
    tool = triton.knobs.nvidia.cuobjdump.path
    done = subprocess.run([tool, option, str(file)], capture_output=True, text=True, check=False)  # noqa: S603 Triton's own
    if done.returncode:
        raise KernelError(f"{tool} {option} failed: {done.stderr.strip()}")
    return done.stdout


def _amd(assembly: str, metadata: Any) -> Metrics:
    def noted(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", assembly)
        return int(found.group(1)) if found else 0

    code = assembly.split(".section", maxsplit=1)[0]
    operations = Counter(_AMDGCN.findall(code))
    loads = _having(operations, ("global_load", "buffer_load"))
    stores = _having(operations, ("global_store", "buffer_store"))
    return Metrics(
        registers=noted("vgpr_count"),
        spill_bytes=max(noted("private_segment_fixed_size"), 4 * noted("vgpr_spill_count")),
        local_accesses=_count(operations, ("scratch_load", "scratch_store")),
        shared_bytes=metadata.shared,
        tensor_memory=0,
        instructions=operations.total(),
        tensor_core=_count(operations, ("v_mfma", "v_wmma", "v_swmmac")),
        warpgroup=0,
        loads=loads.total(),
        wide_loads=_containing(loads, "dwordx4") + _containing(loads, "b128"),
        stores=stores.total(),
        wide_stores=_containing(stores, "dwordx4") + _containing(stores, "b128"),
    )


def _having(operations: Counter[str], beginnings: tuple[str, ...]) -> Counter[str]:
    return Counter({name: times for name, times in operations.items() if name.startswith(beginnings)})


def _containing(operations: Counter[str], part: str) -> int:
    return sum(times for name, times in operations.items() if part in name)


def _count(operations: Counter[str], beginnings: Iterable[str]) -> int:
    return _having(operations, tuple(beginnings)).total()
