# SPDX-License-Identifier: MIT OR Apache-2.0
"""What pyright refuses of `is_ssm_layer`, and the engine too, at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, assert_type

from typing_extensions import override

from metrale_caps import IsSsmLayer, capability_of, declares

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metrale_caps import PrefillContext


class WrongReturnType:
    """Answers with a number."""

    def is_ssm_layer(self) -> int:
        """Answer 1."""
        return 1


wrong_return_type: IsSsmLayer = WrongReturnType()  # pyright: ignore[reportAssignmentType]


def declare_wrong_return_type() -> None:
    """A number is no answer, even where it is true."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongReturnType):
        """Is refused."""


class WrongOptionalReturn:
    """May answer None."""

    def is_ssm_layer(self) -> bool | None:
        """Leave it open."""
        return None


wrong_optional_return: IsSsmLayer = WrongOptionalReturn()  # pyright: ignore[reportAssignmentType]


def declare_wrong_optional_return() -> None:
    """None is no answer to this query."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(WrongOptionalReturn):
        """Is refused."""


class ExtraArgument:
    """Cannot be asked without an argument."""

    def is_ssm_layer(self, _rows: int) -> Literal[False]:
        """Answer by a number that nobody gives."""
        return False


extra_argument: IsSsmLayer = ExtraArgument()  # pyright: ignore[reportAssignmentType]


def declare_extra_argument() -> None:
    """The engine has no argument to give."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(ExtraArgument):
        """Is refused."""


class AsyncMethod:
    """Answers with a coroutine, which is true in a condition."""

    async def is_ssm_layer(self) -> Literal[False]:
        """Answer later."""
        return False


async_method: IsSsmLayer = AsyncMethod()  # pyright: ignore[reportAssignmentType]


def declare_async_method() -> None:
    """A coroutine is no answer."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(AsyncMethod):
        """Is refused."""


class GeneratorMethod:
    """Answers with a generator, which is true in a condition."""

    def is_ssm_layer(self) -> Iterator[bool]:
        """Yield rather than return."""
        yield True


generator_method: IsSsmLayer = GeneratorMethod()  # pyright: ignore[reportAssignmentType]


def declare_generator_method() -> None:
    """A generator is no answer."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(GeneratorMethod):
        """Is refused."""


class Attribute:
    """Has a value in place of the method."""

    is_ssm_layer: bool = True


attribute: IsSsmLayer = Attribute()  # pyright: ignore[reportAssignmentType]


def declare_attribute() -> None:
    """An attribute cannot be called."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Attribute):
        """Is refused."""


class Property:
    """Has a property in place of the method."""

    @property
    def is_ssm_layer(self) -> Literal[False]:
        """Answer without being called."""
        return False


property_method: IsSsmLayer = Property()  # pyright: ignore[reportAssignmentType]


def declare_property_method() -> None:
    """A property's value cannot be called."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Declared(Property):
        """Is refused."""


class MisspeltOverride(IsSsmLayer):
    """Inherits the protocol and misses its method by a letter, so that the default stands."""

    @override
    def is_ssm_layre(self) -> bool:  # pyright: ignore[reportGeneralTypeIssues]
        """Overrides nothing."""
        return True


def declare_misspelt_method() -> None:
    """The method is missed by a letter."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Misspelt:
        """Is refused."""

        def is_ssm_layre(self) -> Literal[False]:
            """Answer nothing that is asked."""
            return False


def declare_missing_method() -> None:
    """There is no such method at all."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Missing:
        """Is refused."""


def declare_misspelt_query() -> None:
    """There is no query of this name."""

    @declares("is_ssm_layre")  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedClassDecorator]
    class Right:
        """Has the method, but that is not what is declared."""

        def is_ssm_layer(self) -> Literal[False]:
            """Answer False."""
            return False


def declare_without_forward_methods() -> None:
    """May be claimed, and the methods of `SplitPrefillLayer` are missing."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Unable:
        """Is refused."""

        def is_ssm_layer(self) -> bool:
            """Answer True, which takes more than the answer."""
            return True


def declare_with_some_forward_methods() -> None:
    """The last method of `SplitPrefillLayer` is missing."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Unable:
        """Is refused."""

        def is_ssm_layer(self) -> bool:
            """Answer True, which takes more than the answer."""
            return True

        def prefill_phase1(self, hidden: Any, context: PrefillContext, buffers: Any, /) -> None:
            """Fill the buffers with one chunk."""
            buffers[context.chunk_start] = hidden

        def prefill_gdn_full(self, context: PrefillContext, buffers: Any, /) -> None:
            """Run the recurrence."""
            buffers[context.max_length] = None


def declare_with_misshapen_forward_methods() -> None:
    """The methods of `SplitPrefillLayer` have the right names, and one cannot be called as the engine calls it."""

    @declares("is_ssm_layer")  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
    class Unable:
        """Is refused by type checkers; at run time only the names are looked at."""

        def is_ssm_layer(self) -> bool:
            """Answer True, which takes more than the answer."""
            return True

        def prefill_phase1(self, hidden: Any, slot: int, context: PrefillContext, buffers: Any, /) -> None:
            """Fill the buffers with one chunk."""
            buffers[context.chunk_start] = hidden[slot]

        def prefill_gdn_full(self, context: PrefillContext, buffers: Any, /) -> None:
            """Run the recurrence."""
            buffers[context.max_length] = None

        def prefill_phase3(self, hidden: Any, context: PrefillContext, buffers: Any, /) -> Any:
            """Add one chunk's output."""
            return hidden + buffers[context.chunk_start]


def ask_misspelt_query(layer: object) -> None:
    """There is no query of this name, and no default for it."""
    capability_of(layer, "is_ssm_layre")  # pyright: ignore[reportCallIssue, reportArgumentType]


def wrong_narrowing(layer: object) -> bool:
    """The answer is never None: a layer without the method gives the default."""
    answer = capability_of(layer, "is_ssm_layer")
    if answer is None:  # pyright: ignore[reportUnnecessaryComparison]
        return False
    nothing: None = capability_of(layer, "is_ssm_layer")  # pyright: ignore[reportAssignmentType]
    return nothing is None


def wrong_asserted_type(layer: object) -> None:
    """The answer's type is exactly `bool`."""
    answer = capability_of(layer, "is_ssm_layer")
    assert_type(answer, bool | None)  # pyright: ignore[reportAssertTypeFailure]


@declares("is_ssm_layer")
class Kept:
    """Is declared as it should be."""

    def __init__(self, width: int) -> None:
        self.width = width

    def is_ssm_layer(self) -> Literal[False]:
        """Answer False."""
        return False


def lost_class() -> None:
    """A decorated class is still checked as itself: its constructor, and what it has."""
    Kept("wide")  # pyright: ignore[reportArgumentType]
    Kept(128).depth = 2  # pyright: ignore[reportAttributeAccessIssue]
