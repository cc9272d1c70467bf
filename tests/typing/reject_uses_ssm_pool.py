# SPDX-License-Identifier: MIT OR Apache-2.0
"""What pyright refuses of `uses_ssm_pool`, and the engine too, at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, assert_type

from typing_extensions import override

from metrale_caps import UsesSsmPool, capability_of, declares

if TYPE_CHECKING:
    from collections.abc import Iterator


class WrongReturnType:
    """Answers with a number."""

    def uses_ssm_pool(self) -> int:
        """Answer 1."""
        return 1


wrong_return_type: UsesSsmPool = WrongReturnType()  # pyright: ignore[reportAssignmentType]


def declare_wrong_return_type() -> None:
    """A number is no answer, even where it is true."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongReturnType):
        """Is refused."""


class WrongOptionalReturn:
    """May answer None."""

    def uses_ssm_pool(self) -> bool | None:
        """Leave it open."""
        return None


wrong_optional_return: UsesSsmPool = WrongOptionalReturn()  # pyright: ignore[reportAssignmentType]


def declare_wrong_optional_return() -> None:
    """None is no answer to this query."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongOptionalReturn):
        """Is refused."""


class ExtraArgument:
    """Cannot be asked without an argument."""

    def uses_ssm_pool(self, _rows: int) -> Literal[True]:
        """Answer by a number that nobody gives."""
        return True


extra_argument: UsesSsmPool = ExtraArgument()  # pyright: ignore[reportAssignmentType]


def declare_extra_argument() -> None:
    """The engine has no argument to give."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(ExtraArgument):
        """Is refused."""


class AsyncMethod:
    """Answers with a coroutine, which is true in a condition."""

    async def uses_ssm_pool(self) -> Literal[True]:
        """Answer later."""
        return True


async_method: UsesSsmPool = AsyncMethod()  # pyright: ignore[reportAssignmentType]


def declare_async_method() -> None:
    """A coroutine is no answer."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(AsyncMethod):
        """Is refused."""


class GeneratorMethod:
    """Answers with a generator, which is true in a condition."""

    def uses_ssm_pool(self) -> Iterator[bool]:
        """Yield rather than return."""
        yield True


generator_method: UsesSsmPool = GeneratorMethod()  # pyright: ignore[reportAssignmentType]


def declare_generator_method() -> None:
    """A generator is no answer."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(GeneratorMethod):
        """Is refused."""


class Attribute:
    """Has a value in place of the method."""

    uses_ssm_pool: bool = True


attribute: UsesSsmPool = Attribute()  # pyright: ignore[reportAssignmentType]


def declare_attribute() -> None:
    """An attribute cannot be called."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Attribute):
        """Is refused."""


class Property:
    """Has a property in place of the method."""

    @property
    def uses_ssm_pool(self) -> Literal[True]:
        """Answer without being called."""
        return True


property_method: UsesSsmPool = Property()  # pyright: ignore[reportAssignmentType]


def declare_property_method() -> None:
    """A property's value cannot be called."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Property):
        """Is refused."""


class MisspeltOverride(UsesSsmPool):
    """Inherits the protocol and misses its method by a letter, so that the default stands."""

    @override
    def use_ssm_pool(self) -> bool:  # pyright: ignore[reportGeneralTypeIssues]
        """Overrides nothing."""
        return True


def declare_misspelt_method() -> None:
    """The method is missed by a letter."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Misspelt:
        """Is refused."""

        def use_ssm_pool(self) -> Literal[True]:
            """Answer nothing that is asked."""
            return True


def declare_missing_method() -> None:
    """There is no such method at all."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Missing:
        """Is refused."""


def declare_misspelt_query() -> None:
    """There is no query of this name."""

    @declares("use_ssm_pool")  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedClassDecorator]
    class Right:
        """Has the method, but that is not what is declared."""

        def uses_ssm_pool(self) -> Literal[True]:
            """Answer True."""
            return True


def declare_without_forward_methods() -> None:
    """May be claimed, and the methods of `OwnStateLayer` are missing."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Unable:
        """Is refused."""

        def uses_ssm_pool(self) -> bool:
            """Answer False, which takes more than the answer."""
            return False


def declare_with_some_forward_methods() -> None:
    """The last method of `OwnStateLayer` is missing."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Unable:
        """Is refused."""

        def uses_ssm_pool(self) -> bool:
            """Answer False, which takes more than the answer."""
            return False

        def alloc_state(self) -> dict[str, int]:
            """Start a sequence."""
            return {"tokens": 0}


def declare_with_misshapen_forward_methods() -> None:
    """The methods of `OwnStateLayer` have the right names, and one cannot be called as the engine calls it."""

    @declares("uses_ssm_pool")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Unable:
        """Is refused by type checkers; at run time only the names are looked at."""

        def uses_ssm_pool(self) -> bool:
            """Answer False, which takes more than the answer."""
            return False

        def alloc_state(self, tokens: int) -> dict[str, int]:
            """Start a sequence."""
            return {"tokens": tokens}

        def release_state(self, state: dict[str, int], /) -> None:
            """End a sequence."""
            state.clear()


def ask_misspelt_query(layer: object) -> None:
    """There is no query of this name, and no default for it."""
    capability_of(layer, "use_ssm_pool")  # pyright: ignore[reportCallIssue, reportArgumentType]


def wrong_narrowing(layer: object) -> bool:
    """The answer is never None: a layer without the method gives the default."""
    answer = capability_of(layer, "uses_ssm_pool")
    if answer is None:  # pyright: ignore[reportUnnecessaryComparison]
        return False
    nothing: None = capability_of(layer, "uses_ssm_pool")  # pyright: ignore[reportAssignmentType]
    return nothing is None


def wrong_asserted_type(layer: object) -> None:
    """The answer's type is exactly `bool`."""
    answer = capability_of(layer, "uses_ssm_pool")
    assert_type(answer, bool | None)  # pyright: ignore[reportAssertTypeFailure]


@declares("uses_ssm_pool")
class Kept:
    """Is declared as it should be."""

    def __init__(self, width: int) -> None:
        self.width = width

    def uses_ssm_pool(self) -> Literal[True]:
        """Answer True."""
        return True


def lost_class() -> None:
    """A decorated class is still checked as itself: its constructor, and what it has."""
    Kept("wide")  # pyright: ignore[reportArgumentType]
    Kept(128).depth = 2  # pyright: ignore[reportAttributeAccessIssue]
