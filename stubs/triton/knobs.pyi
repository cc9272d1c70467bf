# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton's settings; each group's `scope()` restores on exit what was set inside."""

from contextlib import AbstractContextManager

class NvidiaTool:
    path: str
    version: str

class base_knobs:
    def scope(self) -> AbstractContextManager[None]: ...
    def reset(self) -> object: ...

class cache_knobs(base_knobs):
    home_dir: str
    dump_dir: str
    override_dir: str
    dir: str

class compilation_knobs(base_knobs):
    always_compile: bool
    disable_line_info: bool
    dump_ir: bool
    front_end_debugging: bool
    allow_non_constexpr_globals: bool

class runtime_knobs(base_knobs):
    interpret: bool
    debug: bool
    override_arch: str | None

class language_knobs(base_knobs):
    default_fp_fusion: bool
    fp32_default: str | None

class nvidia_knobs(base_knobs):
    cuobjdump: NvidiaTool
    nvdisasm: NvidiaTool
    ptxas: NvidiaTool
    ptxas_blackwell: NvidiaTool

class amd_knobs(base_knobs):
    use_buffer_ops: bool
    dump_amdgcn: bool

cache: cache_knobs
compilation: compilation_knobs
runtime: runtime_knobs
language: language_knobs
nvidia: nvidia_knobs
amd: amd_knobs
