# SPDX-License-Identifier: MIT OR Apache-2.0
"""What pyright refuses of `fp8_calibration_frozen`, and the engine too, at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from typing_extensions import override

from metrale_caps import Fp8CalibrationFrozen, capability_of, declares

if TYPE_CHECKING:
    from collections.abc import Iterator


class WrongReturnType:
    """Answers with a number."""

    def fp8_calibration_frozen(self) -> int:
        """Answer 1."""
        return 1


wrong_return_type: Fp8CalibrationFrozen = WrongReturnType()  # pyright: ignore[reportAssignmentType]


def declare_wrong_return_type() -> None:
    """A number is no answer, even where it is true."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongReturnType):
        """Is refused."""


class WrongOptionalReturn:
    """Answers with text, or not at all."""

    def fp8_calibration_frozen(self) -> str | None:
        """Answer with text."""
        return "final"


wrong_optional_return: Fp8CalibrationFrozen = WrongOptionalReturn()  # pyright: ignore[reportAssignmentType]


def declare_wrong_optional_return() -> None:
    """Text is no answer; that None would be one does not help."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongOptionalReturn):
        """Is refused."""


class ExtraArgument:
    """Cannot be asked without an argument."""

    def fp8_calibration_frozen(self, rows: int) -> bool | None:
        """Answer by a number that nobody gives."""
        return rows > 1


extra_argument: Fp8CalibrationFrozen = ExtraArgument()  # pyright: ignore[reportAssignmentType]


def declare_extra_argument() -> None:
    """The engine has no argument to give."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(ExtraArgument):
        """Is refused."""


class AsyncMethod:
    """Answers with a coroutine, which is true in a condition."""

    async def fp8_calibration_frozen(self) -> bool | None:
        """Answer later."""
        return True


async_method: Fp8CalibrationFrozen = AsyncMethod()  # pyright: ignore[reportAssignmentType]


def declare_async_method() -> None:
    """A coroutine is no answer."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(AsyncMethod):
        """Is refused."""


class GeneratorMethod:
    """Answers with a generator, which is true in a condition."""

    def fp8_calibration_frozen(self) -> Iterator[bool]:
        """Yield rather than return."""
        yield True


generator_method: Fp8CalibrationFrozen = GeneratorMethod()  # pyright: ignore[reportAssignmentType]


def declare_generator_method() -> None:
    """A generator is no answer."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(GeneratorMethod):
        """Is refused."""


class Attribute:
    """Has a value in place of the method."""

    fp8_calibration_frozen: bool = True


attribute: Fp8CalibrationFrozen = Attribute()  # pyright: ignore[reportAssignmentType]


def declare_attribute() -> None:
    """An attribute cannot be called."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Attribute):
        """Is refused."""


class Property:
    """Has a property in place of the method."""

    @property
    def fp8_calibration_frozen(self) -> bool | None:
        """Answer without being called."""
        return True


property_method: Fp8CalibrationFrozen = Property()  # pyright: ignore[reportAssignmentType]


def declare_property_method() -> None:
    """A property's value cannot be called."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Property):
        """Is refused."""


class MisspeltOverride(Fp8CalibrationFrozen):
    """Inherits the protocol and misses its method by a letter, so that the default stands."""

    @override
    def fp8_calibration_froze(self) -> bool | None:  # pyright: ignore[reportGeneralTypeIssues]
        """Overrides nothing."""
        return True


def declare_misspelt_method() -> None:
    """The method is missed by a letter."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Misspelt:
        """Is refused."""

        def fp8_calibration_froze(self) -> bool | None:
            """Answer nothing that is asked."""
            return True


def declare_missing_method() -> None:
    """There is no such method at all."""

    @declares("fp8_calibration_frozen")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Missing:
        """Is refused."""


def declare_misspelt_query() -> None:
    """There is no query of this name."""

    @declares("fp8_calibration_froze")  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedClassDecorator]
    class Right:
        """Has the method, but that is not what is declared."""

        def fp8_calibration_frozen(self) -> bool | None:
            """Answer True."""
            return True


def ask_misspelt_query(layer: object) -> None:
    """There is no query of this name, and no default for it."""
    capability_of(layer, "fp8_calibration_froze")  # pyright: ignore[reportCallIssue, reportArgumentType]


def wrong_narrowing(layer: object) -> bool:
    """The answer may be None, and one that was checked says nothing about the next."""
    unchecked: bool = capability_of(layer, "fp8_calibration_frozen")  # pyright: ignore[reportAssignmentType]
    if capability_of(layer, "fp8_calibration_frozen") is None:
        return unchecked
    asked_again: bool = capability_of(layer, "fp8_calibration_frozen")  # pyright: ignore[reportAssignmentType]
    return asked_again


def wrong_asserted_type(layer: object) -> None:
    """The answer's type is exactly `bool | None`."""
    answer = capability_of(layer, "fp8_calibration_frozen")
    assert_type(answer, bool)  # pyright: ignore[reportAssertTypeFailure]


@declares("fp8_calibration_frozen")
class Kept:
    """Is declared as it should be."""

    def __init__(self, width: int) -> None:
        self.width = width

    def fp8_calibration_frozen(self) -> bool | None:
        """Answer True."""
        return True


def lost_class() -> None:
    """A decorated class is still checked as itself: its constructor, and what it has."""
    Kept("wide")  # pyright: ignore[reportArgumentType]
    Kept(128).depth = 2  # pyright: ignore[reportAttributeAccessIssue]
