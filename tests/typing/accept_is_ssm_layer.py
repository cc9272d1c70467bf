# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every type checker accepts of `is_ssm_layer`, and the engine too, at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, assert_type

from typing_extensions import override

from metrale_caps import IsSsmLayer, capability_of, declares

if TYPE_CHECKING:
    from metrale_caps import PrefillContext, SplitPrefillLayer

Weights = TypeVar("Weights")


class Plain:
    """Has the method, and inherits nothing."""

    def __init__(self, width: int) -> None:
        self.width = width

    def is_ssm_layer(self) -> bool:
        """Answer by what the layer was built with."""
        return self.width > 64


class Inherited(Plain):
    """Has the method from a base class."""


class AlwaysTrue:
    """Cannot answer anything else."""

    def is_ssm_layer(self) -> Literal[True]:
        """Answer True."""
        return True


@declares("is_ssm_layer")
class AlwaysFalse:
    """Cannot answer anything else."""

    def is_ssm_layer(self) -> Literal[False]:
        """Answer False."""
        return False


@declares("is_ssm_layer")
class Inheriting(IsSsmLayer):
    """Inherits the protocol, so that a checker compares the method with it."""

    @override
    def is_ssm_layer(self) -> Literal[False]:
        """Answer False."""
        return False


@declares("is_ssm_layer")
class Static:
    """Answers for the class as for each layer of it."""

    @staticmethod
    def is_ssm_layer() -> Literal[False]:
        """Answer False."""
        return False


@declares("is_ssm_layer")
class OfTheClass:
    """Answers as a class method."""

    @classmethod
    def is_ssm_layer(cls) -> Literal[False]:
        """Answer False."""
        return False


class OptionalArgument:
    """Can be asked without an argument, and that is how it is asked."""

    def is_ssm_layer(self, pretend: bool = False) -> bool:
        """Answer what the caller wants to hear."""
        return pretend


@declares("is_ssm_layer")
@dataclass(frozen=True, slots=True)
class Frozen(Generic[Weights]):
    """Is generic, a dataclass, and has slots."""

    weights: Weights

    def is_ssm_layer(self) -> Literal[False]:
        """Answer False."""
        return False


@declares("is_ssm_layer")
@declares("decode_graph_unsupported")
class Stacked:
    """Declares two queries, one decorator for each."""

    def is_ssm_layer(self) -> Literal[False]:
        """Answer False."""
        return False

    def decode_graph_unsupported(self) -> bool:
        """Answer False."""
        return False


@declares("is_ssm_layer")
class WithForwardMethods:
    """May give either answer, since it has all methods of `SplitPrefillLayer`."""

    def __init__(self, width: int) -> None:
        self.width = width

    def is_ssm_layer(self) -> bool:
        """Answer by what the layer was built with."""
        return self.width > 64

    def prefill_phase1(self, hidden: Any, context: PrefillContext, buffers: Any, /) -> None:
        """Fill the buffers with one chunk."""
        buffers[context.chunk_start] = hidden

    def prefill_gdn_full(self, context: PrefillContext, buffers: Any, /) -> None:
        """Run the recurrence."""
        buffers[context.max_length] = None

    def prefill_phase3(self, hidden: Any, context: PrefillContext, buffers: Any, /) -> Any:
        """Add one chunk's output."""
        return hidden + buffers[context.chunk_start]


LAYERS: tuple[IsSsmLayer, ...] = (
    Plain(128),
    Plain(0),
    Inherited(128),
    AlwaysTrue(),
    AlwaysFalse(),
    Inheriting(),
    Static(),
    OfTheClass(),
    OptionalArgument(),
    Frozen([1.0]),
    Stacked(),
    WithForwardMethods(128),
    WithForwardMethods(0),
)


FORWARD: SplitPrefillLayer = WithForwardMethods(128)


def decorated_classes_keep_their_own_type() -> None:
    """The constructor, the attributes, the type argument and the class itself stay known."""
    assert_type(WithForwardMethods(128), WithForwardMethods)
    assert_type(WithForwardMethods(128).width, int)
    assert_type(Frozen([1.0]), Frozen[list[float]])
    assert_type(Stacked().decode_graph_unsupported(), bool)


def the_answer_is_of_the_query_s_type(layer: object) -> None:
    """The query's name selects the type, whatever the layer is known to be."""
    assert_type(capability_of(layer, "is_ssm_layer"), bool)
    assert_type(capability_of(Plain(128), "is_ssm_layer"), bool)
    assert_type(capability_of(AlwaysTrue(), "is_ssm_layer"), bool)


def the_answer_needs_no_narrowing(layer: object) -> str:
    """A bool is never None."""
    answer: bool = capability_of(layer, "is_ssm_layer")
    return "yes" if answer else "no"
