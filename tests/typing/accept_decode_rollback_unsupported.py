# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every type checker accepts of `decode_rollback_unsupported`, and the engine too, at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, assert_type

from typing_extensions import override

from metrale_caps import DecodeRollbackUnsupported, capability_of, declares

Weights = TypeVar("Weights")


@declares("decode_rollback_unsupported")
class Plain:
    """Has the method, and inherits nothing."""

    def __init__(self, width: int) -> None:
        self.width = width

    def decode_rollback_unsupported(self) -> bool:
        """Answer by what the layer was built with."""
        return self.width > 64


class Inherited(Plain):
    """Has the method from a base class."""


@declares("decode_rollback_unsupported")
class AlwaysTrue:
    """Cannot answer anything else."""

    def decode_rollback_unsupported(self) -> Literal[True]:
        """Answer True."""
        return True


@declares("decode_rollback_unsupported")
class AlwaysFalse:
    """Cannot answer anything else."""

    def decode_rollback_unsupported(self) -> Literal[False]:
        """Answer False."""
        return False


@declares("decode_rollback_unsupported")
class Inheriting(DecodeRollbackUnsupported):
    """Inherits the protocol, so that a checker compares the method with it."""

    @override
    def decode_rollback_unsupported(self) -> bool:
        """Answer True."""
        return True


@declares("decode_rollback_unsupported")
class Static:
    """Answers for the class as for each layer of it."""

    @staticmethod
    def decode_rollback_unsupported() -> bool:
        """Answer True."""
        return True


@declares("decode_rollback_unsupported")
class OfTheClass:
    """Answers as a class method."""

    @classmethod
    def decode_rollback_unsupported(cls) -> bool:
        """Answer True."""
        return True


@declares("decode_rollback_unsupported")
class OptionalArgument:
    """Can be asked without an argument, and that is how it is asked."""

    def decode_rollback_unsupported(self, pretend: bool = False) -> bool:
        """Answer what the caller wants to hear."""
        return pretend


@declares("decode_rollback_unsupported")
@dataclass(frozen=True, slots=True)
class Frozen(Generic[Weights]):
    """Is generic, a dataclass, and has slots."""

    weights: Weights

    def decode_rollback_unsupported(self) -> bool:
        """Answer True."""
        return True


@declares("decode_rollback_unsupported")
@declares("decode_graph_unsupported")
class Stacked:
    """Declares two queries, one decorator for each."""

    def decode_rollback_unsupported(self) -> bool:
        """Answer True."""
        return True

    def decode_graph_unsupported(self) -> bool:
        """Answer False."""
        return False


LAYERS: tuple[DecodeRollbackUnsupported, ...] = (
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
)


def decorated_classes_keep_their_own_type() -> None:
    """The constructor, the attributes, the type argument and the class itself stay known."""
    assert_type(Plain(128), Plain)
    assert_type(Plain(128).width, int)
    assert_type(Frozen([1.0]), Frozen[list[float]])
    assert_type(Stacked().decode_graph_unsupported(), bool)


def the_answer_is_of_the_query_s_type(layer: object) -> None:
    """The query's name selects the type, whatever the layer is known to be."""
    assert_type(capability_of(layer, "decode_rollback_unsupported"), bool)
    assert_type(capability_of(Plain(128), "decode_rollback_unsupported"), bool)
    assert_type(capability_of(AlwaysTrue(), "decode_rollback_unsupported"), bool)


def the_answer_needs_no_narrowing(layer: object) -> str:
    """A bool is never None."""
    answer: bool = capability_of(layer, "decode_rollback_unsupported")
    return "yes" if answer else "no"
