# SPDX-License-Identifier: MIT OR Apache-2.0
"""`declares`: a declaration that is checked at the class, by a type checker and when the class is made.

What the overloads are bound to exists for type checkers alone and costs nothing at run time. A checker that refuses a
class shows the names below, so they say what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from metrale_caps.capabilities import capability_of, type_name
from metrale_caps.declaration import declaration_faults, tie_faults
from metrale_caps.errors import CapabilityDeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Protocol, TypeVar

    from metrale_caps.layer import MultiSeqVerifyLayer, OwnStateLayer, SplitPrefillLayer
    from metrale_caps.protocols import (
        DecodeGraphUnsupported,
        DecodeMultiSeqUnsupported,
        DecodeRollbackUnsupported,
        DecodeVerifyMultiUnsupported,
        Fp8CalibrationFrozen,
        GraphStaleOnNewSequence,
        IsSsmLayer,
        SupportsReplayTailSplit,
        UsesLocalMlaPrefill,
        UsesSsmPool,
    )
    from metrale_caps.queries import QueryName

    class _IsSsmLayerWithPrefillPhases(IsSsmLayer, SplitPrefillLayer, Protocol): ...

    class _IsSsmLayerIsLiteralFalse(Protocol):
        def is_ssm_layer(self) -> Literal[False]: ...

    class _UsesSsmPoolWithOwnState(UsesSsmPool, OwnStateLayer, Protocol): ...

    class _UsesSsmPoolIsLiteralTrue(Protocol):
        def uses_ssm_pool(self) -> Literal[True]: ...

    class _DecodeVerifyMultiUnsupportedWithDecodeVerifyMulti(
        DecodeVerifyMultiUnsupported, MultiSeqVerifyLayer, Protocol
    ): ...

    class _DecodeVerifyMultiUnsupportedIsLiteralTrue(Protocol):
        def decode_verify_multi_unsupported(self) -> Literal[True]: ...

    _Layer = TypeVar("_Layer")
    _MlaPrefill = TypeVar("_MlaPrefill", bound=UsesLocalMlaPrefill)
    _Fp8Calibration = TypeVar("_Fp8Calibration", bound=Fp8CalibrationFrozen)
    _DecodeGraph = TypeVar("_DecodeGraph", bound=DecodeGraphUnsupported)
    _MultiSeqDecode = TypeVar("_MultiSeqDecode", bound=DecodeMultiSeqUnsupported)
    _Rollback = TypeVar("_Rollback", bound=DecodeRollbackUnsupported)
    _MultiSeqVerify = TypeVar(
        "_MultiSeqVerify",
        bound=_DecodeVerifyMultiUnsupportedWithDecodeVerifyMulti | _DecodeVerifyMultiUnsupportedIsLiteralTrue,
    )
    _StaleGraph = TypeVar("_StaleGraph", bound=GraphStaleOnNewSequence)
    _SsmLayer = TypeVar("_SsmLayer", bound=_IsSsmLayerWithPrefillPhases | _IsSsmLayerIsLiteralFalse)
    _SsmState = TypeVar("_SsmState", bound=_UsesSsmPoolWithOwnState | _UsesSsmPoolIsLiteralTrue)
    _ReplayTail = TypeVar("_ReplayTail", bound=SupportsReplayTailSplit)


@overload
def declares(query: Literal["uses_local_mla_prefill"], /) -> Callable[[type[_MlaPrefill]], type[_MlaPrefill]]: ...
@overload
def declares(
    query: Literal["fp8_calibration_frozen"], /
) -> Callable[[type[_Fp8Calibration]], type[_Fp8Calibration]]: ...
@overload
def declares(query: Literal["decode_graph_unsupported"], /) -> Callable[[type[_DecodeGraph]], type[_DecodeGraph]]: ...
@overload
def declares(
    query: Literal["decode_multi_seq_unsupported"], /
) -> Callable[[type[_MultiSeqDecode]], type[_MultiSeqDecode]]: ...
@overload
def declares(query: Literal["decode_rollback_unsupported"], /) -> Callable[[type[_Rollback]], type[_Rollback]]: ...
@overload
def declares(
    query: Literal["decode_verify_multi_unsupported"], /
) -> Callable[[type[_MultiSeqVerify]], type[_MultiSeqVerify]]: ...
@overload
def declares(query: Literal["graph_stale_on_new_sequence"], /) -> Callable[[type[_StaleGraph]], type[_StaleGraph]]: ...
@overload
def declares(query: Literal["is_ssm_layer"], /) -> Callable[[type[_SsmLayer]], type[_SsmLayer]]: ...
@overload
def declares(query: Literal["uses_ssm_pool"], /) -> Callable[[type[_SsmState]], type[_SsmState]]: ...
@overload
def declares(query: Literal["supports_replay_tail_split"], /) -> Callable[[type[_ReplayTail]], type[_ReplayTail]]: ...
def declares(query: QueryName, /) -> Callable[[type[_Layer]], type[_Layer]]:
    """Check that the class below declares a capability query as the engine will ask it.

    ```python
    @declares("is_ssm_layer")
    @declares("uses_ssm_pool")
    class GatedDeltaNet: ...
    ```

    A type checker refuses, at the decorator, a class whose method is missing, misspelt, async, a property, an
    attribute, needs an argument, or returns another type; and it refuses a misspelt query. The same is refused when
    the class is made, and also a method that is only inherited from the query's protocol, which declares nothing. The
    class itself comes back, unchanged: its constructor and attributes stay known to the checker, and nothing is
    recorded or asked. Decorating is optional; an undecorated method is an answer all the same.

    Three claims oblige a layer to have forward methods, unless the return annotation excludes the claim:

    | query | forward methods | not needed if annotated |
    |---|---|---|
    | `is_ssm_layer` | those of `SplitPrefillLayer` | `-> Literal[False]` |
    | `uses_ssm_pool` | those of `OwnStateLayer` | `-> Literal[True]` |
    | `decode_verify_multi_unsupported` | those of `MultiSeqVerifyLayer` | `-> Literal[True]` |

    One decorator takes one query: Python's types have no intersection of a variable number of protocols, so of several
    queries in one call only the names could be checked. Stack one decorator for each.

    Args:
        query: one of the ten names.

    Returns:
        A decorator that returns the class it is given.

    Raises:
        UnknownCapabilityError: the name is none of the ten; raised before there is a class.
        CapabilityDeclarationError: raised by the decorator, with every fault of the class.
    """
    capability_of(None, query)  # None has none of the methods, so that only the name can be refused

    def check(cls: type[_Layer], /) -> type[_Layer]:
        _check(cls, query)
        return cls

    return check


def _check(cls: object, query: QueryName) -> None:
    if not isinstance(cls, type):
        raise CapabilityDeclarationError(type_name(type(cls)), query, ["is an instance, where a class is expected"])
    faults = [*declaration_faults(cls, query), *tie_faults(cls, query)]
    if faults:
        raise CapabilityDeclarationError(type_name(cls), query, faults)
