# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every error this package raises on purpose, as one tree.

```text
MetraleError
├── CapabilityError
│   ├── UnknownCapabilityError (also KeyError)
│   ├── CapabilityAnswerError (also TypeError)
│   └── CapabilityDeclarationError (also TypeError)
├── LayerContractError
├── PluginError
│   ├── UnknownPluginError (also KeyError)
│   ├── PluginFailedError
│   ├── PluginLoadError
│   ├── PluginDeclarationError
│   ├── PluginConflictError
│   └── RegistrarClosedError
├── ConfigurationError (also ValueError)
│   ├── UnsupportedArchitectureError
│   └── CheckpointError
├── LayerResultError (also TypeError)
├── SlotError (also ValueError)
├── SnapshotError (also ValueError)
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

    from metrale_caps.audit import Finding
    from metrale_caps.plugins import PluginFailure
    from metrale_caps.plugins.entry_points import PluginOrigin


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


class CapabilityDeclarationError(CapabilityError, TypeError):
    """A class that is declared to answer a query cannot, as it stands, answer it.

    Attributes:
        layer_type: qualified name of the class.
        query: the query it is declared to answer.
        faults: one phrase for each fault found; all are reported at once.
    """

    def __init__(self, layer_type: str, query: str, faults: Sequence[str]) -> None:
        super().__init__(f"{layer_type} is declared to answer {query!r}, but it {'; and it '.join(faults)}")
        self.layer_type = layer_type
        self.query = query
        self.faults: tuple[str, ...] = tuple(faults)


class LayerContractError(MetraleError):
    """Layers of a stack cannot be run as they declare; all that was found is reported at once.

    Attributes:
        findings: every fault found, with the layer and the place to mend it.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        lines = [f"{finding} [{finding.place}]" if finding.place else str(finding) for finding in findings]
        count = f"{len(lines)} findings about the layers:\n  " if len(lines) > 1 else ""
        super().__init__(count + "\n  ".join(lines))
        self.findings: tuple[Finding, ...] = tuple(findings)


class PluginError(MetraleError):
    """A plugin, or what is asked of one, cannot be used."""


class UnknownPluginError(PluginError, KeyError):
    """A name was asked that no plugin has.

    Attributes:
        name: the name that was asked.
        known: the names that were found.
        suggestion: the nearest of them, or None.
    """

    def __init__(self, name: str, known: Sequence[str], suggestion: str | None = None, advice: str = "") -> None:
        hint = f"; did you mean {suggestion!r}?" if suggestion else "."
        found = f"Found are: {', '.join(known)}" if known else "No plugin layer was found"
        super().__init__(f"there is no plugin layer {name!r}{hint} {found}{'; ' + advice if advice else ''}")
        self.name = name
        self.known: tuple[str, ...] = tuple(known)
        self.suggestion = suggestion

    @override
    def __str__(self) -> str:
        return str(self.args[0])


class PluginFailedError(PluginError):
    """A plugin was asked for that had failed; it is raised from what the plugin raised.

    Attributes:
        failure: the plugin, the stage, and the cause.
    """

    def __init__(self, name: str, failure: PluginFailure) -> None:
        super().__init__(f"{name!r} cannot be used: {failure}")
        self.failure = failure


class PluginLoadError(PluginError):
    """Plugins failed where failures are fatal; all were tried.

    Attributes:
        failures: every plugin that failed, with the stage and the cause.
    """

    def __init__(self, failures: Sequence[PluginFailure]) -> None:
        count = "a plugin failed" if len(failures) == 1 else f"{len(failures)} plugins failed"
        super().__init__(f"{count}: {'; '.join(map(str, failures))}")
        self.failures: tuple[PluginFailure, ...] = tuple(failures)


class PluginDeclarationError(PluginError):
    """A plugin is declared, or registers its layers, in a way that cannot be used.

    Attributes:
        faults: one clause for each fault found; all are reported at once.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults: tuple[str, ...] = tuple(faults)


class PluginConflictError(PluginError):
    """Several plugins claim one name, so none of them is used.

    Attributes:
        name: what they claim.
        origins: the plugins.
    """

    def __init__(self, kind: str, name: str, origins: Sequence[PluginOrigin]) -> None:
        ordered = sorted(origins, key=str)
        super().__init__(
            f"the {kind} {name!r} is claimed by {' and '.join(map(str, ordered))}, so none of them is used; "
            "uninstall all but one"
        )
        self.name = name
        self.origins: tuple[PluginOrigin, ...] = tuple(ordered)


class RegistrarClosedError(PluginError):
    """A plugin registers a layer after it returned.

    Attributes:
        origin: the plugin.
    """

    def __init__(self, origin: PluginOrigin, name: object) -> None:
        super().__init__(
            f"{origin} registers {name!r} after it returned; register every layer while the entry point's function runs"
        )
        self.origin = origin


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


class LayerResultError(MetraleError, TypeError):
    """A layer's forward method did something else than its protocol says.

    Attributes:
        layer_index: place of the layer in the stack.
        layer_type: its class.
        method: the method.
    """

    def __init__(self, layer_index: int, layer_type: str, method: str, detail: str) -> None:
        self.layer_index = layer_index
        self.layer_type = layer_type
        self.method = method
        super().__init__(f"layer {layer_index} ({layer_type}): `{method}` {detail}")


class SlotError(MetraleError, ValueError):
    """A slot was claimed, used or released by someone who does not hold it."""


class SnapshotError(MetraleError, ValueError):
    """A saved state does not fit what it is to be restored to; nothing was changed."""


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


class GraphError(MetraleError):
    """A decode graph cannot be made or used."""


class CaptureError(GraphError):
    """A step does something that a graph cannot hold; the step itself can still run eagerly.

    Attributes:
        layer_index: the layer that did it, or None outside the stack.
    """

    def __init__(self, what: str, layer_index: int | None) -> None:
        place = "outside the layers" if layer_index is None else f"in layer {layer_index}"
        super().__init__(f"{place}, {what}")
        self.layer_index = layer_index


class StaleGraphError(GraphError):
    """A graph baked the address of a buffer that its owner has replaced since. Nothing was run.

    Attributes:
        owner: who owns the buffer: a layer with its index and type, or a part of the engine.
        buffer: the buffer's place in its owner.
    """

    def __init__(self, owner: str, buffer: str, advice: str) -> None:
        super().__init__(f"a decode graph holds a stale address of {owner}: {buffer} has moved since; {advice}")
        self.owner = owner
        self.buffer = buffer


class KvScaleError(ConfigurationError):
    """A scale of an FP8 cache is no finite positive number.

    Attributes:
        layer_index: the layer.
        scale: what came.
    """

    def __init__(self, layer_index: int, layer_type: str, tensor: str, scale: float) -> None:
        super().__init__(
            f"the {tensor} scale of layer {layer_index} ({layer_type}) is {scale}; it must be finite and above 0"
        )
        self.layer_index = layer_index
        self.scale = scale


_SHOWN_OFFSETS = 8


def _abridged(offsets: Sequence[int]) -> str:
    shown = ", ".join(str(offset) for offset in offsets[:_SHOWN_OFFSETS])
    more = len(offsets) - _SHOWN_OFFSETS
    return f"{shown} and {more} more" if more > 0 else shown
