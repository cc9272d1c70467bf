# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every type checker accepts of `fp8_calibration_frozen`, and the engine too, at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, assert_type

from typing_extensions import override

from metrale_caps import Fp8CalibrationFrozen, capability_of, declares

Weights = TypeVar("Weights")


@declares("fp8_calibration_frozen")
class Plain:
    """Has the method, and inherits nothing."""

    def __init__(self, width: int) -> None:
        self.width = width

    def fp8_calibration_frozen(self) -> bool | None:
        """Answer by what the layer was built with."""
        return None if self.width == 0 else self.width > 64


class Inherited(Plain):
    """Has the method from a base class."""


@declares("fp8_calibration_frozen")
class CalibratesNothing:
    """Can only answer None."""

    def fp8_calibration_frozen(self) -> None:
        """Return nothing: there is no window."""


@declares("fp8_calibration_frozen")
class Calibrates:
    """Never answers None."""

    def fp8_calibration_frozen(self) -> bool:
        """Say that the window is open."""
        return False


@declares("fp8_calibration_frozen")
class AlwaysTrue:
    """Cannot answer anything else."""

    def fp8_calibration_frozen(self) -> Literal[True]:
        """Answer True."""
        return True


@declares("fp8_calibration_frozen")
class AlwaysFalse:
    """Cannot answer anything else."""

    def fp8_calibration_frozen(self) -> Literal[False]:
        """Answer False."""
        return False


@declares("fp8_calibration_frozen")
class Inheriting(Fp8CalibrationFrozen):
    """Inherits the protocol, so that a checker compares the method with it."""

    @override
    def fp8_calibration_frozen(self) -> bool | None:
        """Answer True."""
        return True


@declares("fp8_calibration_frozen")
class Static:
    """Answers for the class as for each layer of it."""

    @staticmethod
    def fp8_calibration_frozen() -> bool | None:
        """Answer True."""
        return True


@declares("fp8_calibration_frozen")
class OfTheClass:
    """Answers as a class method."""

    @classmethod
    def fp8_calibration_frozen(cls) -> bool | None:
        """Answer True."""
        return True


@declares("fp8_calibration_frozen")
class OptionalArgument:
    """Can be asked without an argument, and that is how it is asked."""

    def fp8_calibration_frozen(self, pretend: bool = False) -> bool | None:
        """Answer what the caller wants to hear."""
        return pretend


@declares("fp8_calibration_frozen")
@dataclass(frozen=True, slots=True)
class Frozen(Generic[Weights]):
    """Is generic, a dataclass, and has slots."""

    weights: Weights

    def fp8_calibration_frozen(self) -> bool | None:
        """Answer True."""
        return True


@declares("fp8_calibration_frozen")
@declares("decode_graph_unsupported")
class Stacked:
    """Declares two queries, one decorator for each."""

    def fp8_calibration_frozen(self) -> bool | None:
        """Answer True."""
        return True

    def decode_graph_unsupported(self) -> bool:
        """Answer False."""
        return False


LAYERS: tuple[Fp8CalibrationFrozen, ...] = (
    Plain(128),
    Plain(0),
    Inherited(128),
    CalibratesNothing(),
    Calibrates(),
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
    assert_type(capability_of(layer, "fp8_calibration_frozen"), bool | None)
    assert_type(capability_of(Plain(128), "fp8_calibration_frozen"), bool | None)
    assert_type(capability_of(AlwaysTrue(), "fp8_calibration_frozen"), bool | None)


def the_answer_is_narrowed(layer: object) -> str:
    """Three answers are told apart."""
    answer = capability_of(layer, "fp8_calibration_frozen")
    if answer is None:
        return "calibrates nothing"
    assert_type(answer, bool)
    return "final" if answer else "provisional"
