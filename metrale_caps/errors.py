# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every error this package raises on purpose, as one tree.

```text
MetraleError
├── CapabilityError
│   ├── UnknownCapabilityError (also KeyError)
│   └── CapabilityAnswerError (also TypeError)
├── LayerContractError
├── ConfigurationError (also ValueError)
│   ├── UnsupportedArchitectureError
│   └── CheckpointError
├── StalledError
├── RequestError (also ValueError)
│   ├── PromptTooLongError
│   └── CapacityError
└── KernelError
    ├── LaunchError
    ├── MemoryFaultError
    ├── RaceError
    └── UnsupportedOperationError (also NotImplementedError)
```

Messages say what was asked, what came, what was expected and what to do; the same facts are attributes, so that
a host can act on them without parsing text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence


class MetraleError(Exception):
    """Base of every error this package raises on purpose."""


class CapabilityError(MetraleError):
    """A capability query could not be answered."""


class UnknownCapabilityError(CapabilityError, KeyError):
    """A name that is not one of the capability queries was asked.

    Attributes:
        query: the name that was asked.
        suggestion: the nearest known name, or None.
    """

    def __init__(self, query: str, known: Sequence[str], suggestion: str | None = None) -> None:
        hint = f"; did you mean {suggestion!r}?" if suggestion else "."
        super().__init__(f"there is no capability query {query!r}{hint} The queries are: {', '.join(known)}")
        self.query = query
        self.suggestion = suggestion

    @override
    def __str__(self) -> str:
        return str(self.args[0])


class CapabilityAnswerError(CapabilityError, TypeError):
    """A layer's answer, or the way it is declared, is not what the query's protocol promises.

    Attributes:
        layer_type: qualified name of the layer's class.
        query: the query that was asked.
    """

    def __init__(self, layer_type: str, query: str, came: str, expected: str, advice: str) -> None:
        super().__init__(f"{layer_type}.{query}: {came}; expected {expected}. {advice}")
        self.layer_type = layer_type
        self.query = query


class LayerContractError(MetraleError):
    """Layers of a stack lack forward methods that their answers, or the engine, oblige them to have.

    Attributes:
        violations: one sentence for each fault found; all are reported at once.
    """

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("; ".join(violations))
        self.violations: tuple[str, ...] = tuple(violations)


class ConfigurationError(MetraleError, ValueError):
    """An option, or a combination of options, has no meaning here."""


class UnsupportedArchitectureError(ConfigurationError):
    """A model's architecture has no layers in this package.

    Attributes:
        architecture: the `model_type` that came.
        supported: the ones that can be built.
    """

    def __init__(self, architecture: str, supported: Sequence[str], detail: str = "") -> None:
        because = f" ({detail})" if detail else ""
        super().__init__(
            f"the architecture {architecture!r} has no layers here{because}; supported are: {', '.join(supported)}"
        )
        self.architecture = architecture
        self.supported: tuple[str, ...] = tuple(supported)


class CheckpointError(ConfigurationError):
    """A checkpoint is missing, damaged, or of a kind that is never loaded (pickles execute code)."""


class StalledError(MetraleError):
    """Sequences are waiting and none can run: blocks were lost, which is a fault of the engine.

    Attributes:
        free_blocks: blocks nobody holds.
        pool_blocks: blocks of the pool.
    """

    def __init__(self, free_blocks: int, pool_blocks: int) -> None:
        super().__init__(
            f"no sequence can run: {free_blocks} of {pool_blocks} cache blocks are free; please report this as a bug"
        )
        self.free_blocks = free_blocks
        self.pool_blocks = pool_blocks


class RequestError(MetraleError, ValueError):
    """A generation request cannot be accepted; nothing was started."""


class PromptTooLongError(RequestError):
    """A prompt leaves no room for a new token in the model's context.

    Attributes:
        prompt_tokens: tokens of the prompt.
        context_tokens: tokens the context holds.
    """

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, but the context holds {context_tokens} and one must be left for "
            "the answer; shorten the prompt"
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class CapacityError(RequestError):
    """A request needs more cache blocks than the whole pool has, so it could never finish.

    Attributes:
        needed_blocks: blocks the request may come to need.
        pool_blocks: blocks of the pool.
    """

    def __init__(self, needed_blocks: int, pool_blocks: int, block_size: int) -> None:
        super().__init__(
            f"the request may need {needed_blocks} cache blocks of {block_size} tokens, but the pool has "
            f"{pool_blocks}; raise num_blocks, or lower max_new_tokens"
        )
        self.needed_blocks = needed_blocks
        self.pool_blocks = pool_blocks


class KernelError(MetraleError):
    """Launching or executing a kernel failed."""


class LaunchError(KernelError, ValueError):
    """The arguments of a launch do not fit the kernel."""


class MemoryFaultError(KernelError):
    """A kernel accessed memory outside an argument, or stored to one it may only read.

    Attributes:
        kernel: name of the kernel.
        argument: name of the pointer argument.
        offsets: the offending element offsets, relative to the argument's first element.
        program: the program's position in the grid.
    """

    def __init__(
        self, kernel: str, argument: str, offsets: Sequence[int], program: tuple[int, int, int], what: str
    ) -> None:
        super().__init__(f"{kernel}: program {program} {what} {argument!r} at offsets {_abridged(offsets)}")
        self.kernel = kernel
        self.argument = argument
        self.offsets: tuple[int, ...] = tuple(offsets)
        self.program = program


class RaceError(KernelError):
    """Two programs of one launch touched the same address, and at least one of them wrote it.

    Attributes:
        kernel: name of the kernel.
        argument: name of the pointer argument.
        offsets: element offsets that both touched.
        programs: grid positions of the programs.
    """

    def __init__(
        self,
        kernel: str,
        argument: str,
        offsets: Sequence[int],
        programs: Sequence[tuple[int, int, int]],
        what: str,
    ) -> None:
        super().__init__(f"{kernel}: programs {list(programs)} {what} {argument!r} at offsets {_abridged(offsets)}")
        self.kernel = kernel
        self.argument = argument
        self.offsets: tuple[int, ...] = tuple(offsets)
        self.programs: tuple[tuple[int, int, int], ...] = tuple(programs)


class UnsupportedOperationError(KernelError, NotImplementedError):
    """A kernel uses an operation that the executor does not know.

    Attributes:
        kernel: name of the kernel.
        operation: name of the operation in the intermediate representation.
    """

    def __init__(self, kernel: str, operation: str, detail: str = "") -> None:
        super().__init__(f"{kernel}: the executor has no entry for {operation!r}{': ' + detail if detail else ''}")
        self.kernel = kernel
        self.operation = operation


_SHOWN_OFFSETS = 8


def _abridged(offsets: Sequence[int]) -> str:
    shown = ", ".join(str(offset) for offset in offsets[:_SHOWN_OFFSETS])
    more = len(offsets) - _SHOWN_OFFSETS
    return f"{shown} and {more} more" if more > 0 else shown
