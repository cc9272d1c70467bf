# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every type checker accepts of `uses_ssm_pool`, and the engine too, at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, assert_type

from typing_extensions import override

from metrale_caps import UsesSsmPool, capability_of, declares

if TYPE_CHECKING:
    from metrale_caps import OwnStateLayer

Weights = TypeVar("Weights")


class Plain:
    """Has the method, and inherits nothing."""

    def __init__(self, width: int) -> None:
        self.width = width

    def uses_ssm_pool(self) -> bool:
        """Answer by what the layer was built with."""
        return self.width > 64


class Inherited(Plain):
    """Has the method from a base class."""


@declares("uses_ssm_pool")
class AlwaysTrue:
    """Cannot answer anything else."""

    def uses_ssm_pool(self) -> Literal[True]:
        """Answer True."""
        return True


class AlwaysFalse:
    """Cannot answer anything else."""

    def uses_ssm_pool(self) -> Literal[False]:
        """Answer False."""
        return False


@declares("uses_ssm_pool")
class Inheriting(UsesSsmPool):
    """Inherits the protocol, so that a checker compares the method with it."""

    @override
    def uses_ssm_pool(self) -> Literal[True]:
        """Answer True."""
        return True


@declares("uses_ssm_pool")
class Static:
    """Answers for the class as for each layer of it."""

    @staticmethod
    def uses_ssm_pool() -> Literal[True]:
        """Answer True."""
        return True


@declares("uses_ssm_pool")
class OfTheClass:
    """Answers as a class method."""

    @classmethod
    def uses_ssm_pool(cls) -> Literal[True]:
        """Answer True."""
        return True


class OptionalArgument:
    """Can be asked without an argument, and that is how it is asked."""

    def uses_ssm_pool(self, pretend: bool = False) -> bool:
        """Answer what the caller wants to hear."""
        return pretend


@declares("uses_ssm_pool")
@dataclass(frozen=True, slots=True)
class Frozen(Generic[Weights]):
    """Is generic, a dataclass, and has slots."""

    weights: Weights

    def uses_ssm_pool(self) -> Literal[True]:
        """Answer True."""
        return True


@declares("uses_ssm_pool")
@declares("decode_graph_unsupported")
class Stacked:
    """Declares two queries, one decorator for each."""

    def uses_ssm_pool(self) -> Literal[True]:
        """Answer True."""
        return True

    def decode_graph_unsupported(self) -> bool:
        """Answer False."""
        return False


@declares("uses_ssm_pool")
class WithForwardMethods:
    """May give either answer, since it has all methods of `OwnStateLayer`."""

    def __init__(self, width: int) -> None:
        self.width = width

    def uses_ssm_pool(self) -> bool:
        """Answer by what the layer was built with."""
        return self.width > 64

    def alloc_state(self) -> dict[str, int]:
        """Start a sequence."""
        return {"tokens": 0}

    def release_state(self, state: dict[str, int], /) -> None:
        """End a sequence."""
        state.clear()


LAYERS: tuple[UsesSsmPool, ...] = (
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


FORWARD: OwnStateLayer = WithForwardMethods(128)


def decorated_classes_keep_their_own_type() -> None:
    """The constructor, the attributes, the type argument and the class itself stay known."""
    assert_type(WithForwardMethods(128), WithForwardMethods)
    assert_type(WithForwardMethods(128).width, int)
    assert_type(Frozen([1.0]), Frozen[list[float]])
    assert_type(Stacked().decode_graph_unsupported(), bool)


def the_answer_is_of_the_query_s_type(layer: object) -> None:
    """The query's name selects the type, whatever the layer is known to be."""
    assert_type(capability_of(layer, "uses_ssm_pool"), bool)
    assert_type(capability_of(Plain(128), "uses_ssm_pool"), bool)
    assert_type(capability_of(AlwaysTrue(), "uses_ssm_pool"), bool)


def the_answer_needs_no_narrowing(layer: object) -> str:
    """A bool is never None."""
    answer: bool = capability_of(layer, "uses_ssm_pool")
    return "yes" if answer else "no"
