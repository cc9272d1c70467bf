# SPDX-License-Identifier: MIT OR Apache-2.0
"""What pyright refuses of `graph_stale_on_new_sequence`, and the engine too, at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from typing_extensions import override

from metrale_caps import GraphStaleOnNewSequence, capability_of, declares

if TYPE_CHECKING:
    from collections.abc import Iterator


class WrongReturnType:
    """Answers with a number."""

    def graph_stale_on_new_sequence(self) -> int:
        """Answer 1."""
        return 1


wrong_return_type: GraphStaleOnNewSequence = WrongReturnType()  # pyright: ignore[reportAssignmentType]


def declare_wrong_return_type() -> None:
    """A number is no answer, even where it is true."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongReturnType):
        """Is refused."""


class WrongOptionalReturn:
    """May answer None."""

    def graph_stale_on_new_sequence(self) -> bool | None:
        """Leave it open."""
        return None


wrong_optional_return: GraphStaleOnNewSequence = WrongOptionalReturn()  # pyright: ignore[reportAssignmentType]


def declare_wrong_optional_return() -> None:
    """None is no answer to this query."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongOptionalReturn):
        """Is refused."""


class ExtraArgument:
    """Cannot be asked without an argument."""

    def graph_stale_on_new_sequence(self, rows: int) -> bool:
        """Answer by a number that nobody gives."""
        return rows > 1


extra_argument: GraphStaleOnNewSequence = ExtraArgument()  # pyright: ignore[reportAssignmentType]


def declare_extra_argument() -> None:
    """The engine has no argument to give."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(ExtraArgument):
        """Is refused."""


class AsyncMethod:
    """Answers with a coroutine, which is true in a condition."""

    async def graph_stale_on_new_sequence(self) -> bool:
        """Answer later."""
        return True


async_method: GraphStaleOnNewSequence = AsyncMethod()  # pyright: ignore[reportAssignmentType]


def declare_async_method() -> None:
    """A coroutine is no answer."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(AsyncMethod):
        """Is refused."""


class GeneratorMethod:
    """Answers with a generator, which is true in a condition."""

    def graph_stale_on_new_sequence(self) -> Iterator[bool]:
        """Yield rather than return."""
        yield True


generator_method: GraphStaleOnNewSequence = GeneratorMethod()  # pyright: ignore[reportAssignmentType]


def declare_generator_method() -> None:
    """A generator is no answer."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(GeneratorMethod):
        """Is refused."""


class Attribute:
    """Has a value in place of the method."""

    graph_stale_on_new_sequence: bool = True


attribute: GraphStaleOnNewSequence = Attribute()  # pyright: ignore[reportAssignmentType]


def declare_attribute() -> None:
    """An attribute cannot be called."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Attribute):
        """Is refused."""


class Property:
    """Has a property in place of the method."""

    @property
    def graph_stale_on_new_sequence(self) -> bool:
        """Answer without being called."""
        return True


property_method: GraphStaleOnNewSequence = Property()  # pyright: ignore[reportAssignmentType]


def declare_property_method() -> None:
    """A property's value cannot be called."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Property):
        """Is refused."""


class MisspeltOverride(GraphStaleOnNewSequence):
    """Inherits the protocol and misses its method by a letter, so that the default stands."""

    @override
    def graph_stale_on_new_sequences(self) -> bool:  # pyright: ignore[reportGeneralTypeIssues]
        """Overrides nothing."""
        return True


def declare_misspelt_method() -> None:
    """The method is missed by a letter."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Misspelt:
        """Is refused."""

        def graph_stale_on_new_sequences(self) -> bool:
            """Answer nothing that is asked."""
            return True


def declare_missing_method() -> None:
    """There is no such method at all."""

    @declares("graph_stale_on_new_sequence")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Missing:
        """Is refused."""


def declare_misspelt_query() -> None:
    """There is no query of this name."""

    @declares("graph_stale_on_new_sequences")  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedClassDecorator]
    class Right:
        """Has the method, but that is not what is declared."""

        def graph_stale_on_new_sequence(self) -> bool:
            """Answer True."""
            return True


def ask_misspelt_query(layer: object) -> None:
    """There is no query of this name, and no default for it."""
    capability_of(layer, "graph_stale_on_new_sequences")  # pyright: ignore[reportCallIssue, reportArgumentType]


def wrong_narrowing(layer: object) -> bool:
    """The answer is never None: a layer without the method gives the default."""
    answer = capability_of(layer, "graph_stale_on_new_sequence")
    if answer is None:  # pyright: ignore[reportUnnecessaryComparison]
        return False
    nothing: None = capability_of(layer, "graph_stale_on_new_sequence")  # pyright: ignore[reportAssignmentType]
    return nothing is None


def wrong_asserted_type(layer: object) -> None:
    """The answer's type is exactly `bool`."""
    answer = capability_of(layer, "graph_stale_on_new_sequence")
    assert_type(answer, bool | None)  # pyright: ignore[reportAssertTypeFailure]


@declares("graph_stale_on_new_sequence")
class Kept:
    """Is declared as it should be."""

    def __init__(self, width: int) -> None:
        self.width = width

    def graph_stale_on_new_sequence(self) -> bool:
        """Answer True."""
        return True


def lost_class() -> None:
    """A decorated class is still checked as itself: its constructor, and what it has."""
    Kept("wide")  # pyright: ignore[reportArgumentType]
    Kept(128).depth = 2  # pyright: ignore[reportAttributeAccessIssue]
