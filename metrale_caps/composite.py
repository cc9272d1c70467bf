# SPDX-License-Identifier: MIT OR Apache-2.0
"""A layer that is composed of parts answers for them: each query's fold, from the table, over the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast, overload

from metrale_caps.capabilities import FOLDS_PARTS, capability_of, type_name
from metrale_caps.errors import CapabilityAnswerError
from metrale_caps.queries import QUERIES, Answer, BooleanQueryName, OptionalQueryName, QueryName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Function = TypeVar("_Function", bound="Callable[..., object]")


def _folds_parts(function: _Function) -> _Function:
    setattr(function, FOLDS_PARTS, True)
    return function


class CompositeLayer:
    """Gives all ten answers of a layer made of parts; derive from it and name the parts.

    ```python
    class Block(CompositeLayer, nn.Module):
        def capability_parts(self):
            return self.mixer, self.feed_forward
    ```

    One part that objects is enough: a block whose mixer cannot be captured in a graph cannot be either. A method of
    the class's own replaces the fold for its query. Parts are asked each time the layer is asked, so that
    `fp8_calibration_frozen` follows them.
    """

    def capability_parts(self) -> Iterable[object]:
        """Return the parts whose answers count, none of them None; a part without answers counts with the defaults.

        Raises:
            CapabilityAnswerError: the class does not say what its parts are.
        """
        raise self._fault("is not written", "Return the parts whose answers count.")

    @_folds_parts
    def uses_local_mla_prefill(self) -> bool:
        """Answer `UsesLocalMlaPrefill` for the parts."""
        return self._answer_of_parts("uses_local_mla_prefill")

    @_folds_parts
    def fp8_calibration_frozen(self) -> bool | None:
        """Answer `Fp8CalibrationFrozen` for the parts."""
        return self._answer_of_parts("fp8_calibration_frozen")

    @_folds_parts
    def decode_graph_unsupported(self) -> bool:
        """Answer `DecodeGraphUnsupported` for the parts."""
        return self._answer_of_parts("decode_graph_unsupported")

    @_folds_parts
    def decode_multi_seq_unsupported(self) -> bool:
        """Answer `DecodeMultiSeqUnsupported` for the parts."""
        return self._answer_of_parts("decode_multi_seq_unsupported")

    @_folds_parts
    def decode_rollback_unsupported(self) -> bool:
        """Answer `DecodeRollbackUnsupported` for the parts."""
        return self._answer_of_parts("decode_rollback_unsupported")

    @_folds_parts
    def decode_verify_multi_unsupported(self) -> bool:
        """Answer `DecodeVerifyMultiUnsupported` for the parts."""
        return self._answer_of_parts("decode_verify_multi_unsupported")

    @_folds_parts
    def graph_stale_on_new_sequence(self) -> bool:
        """Answer `GraphStaleOnNewSequence` for the parts."""
        return self._answer_of_parts("graph_stale_on_new_sequence")

    @_folds_parts
    def is_ssm_layer(self) -> bool:
        """Answer `IsSsmLayer` for the parts."""
        return self._answer_of_parts("is_ssm_layer")

    @_folds_parts
    def uses_ssm_pool(self) -> bool:
        """Answer `UsesSsmPool` for the parts."""
        return self._answer_of_parts("uses_ssm_pool")

    @_folds_parts
    def supports_replay_tail_split(self) -> bool:
        """Answer `SupportsReplayTailSplit` for the parts."""
        return self._answer_of_parts("supports_replay_tail_split")

    @overload
    def _answer_of_parts(self, query: BooleanQueryName) -> bool: ...
    @overload
    def _answer_of_parts(self, query: OptionalQueryName) -> bool | None: ...
    def _answer_of_parts(self, query: QueryName) -> Answer:
        parts = tuple(self.capability_parts())
        if not parts:
            raise self._fault("returned no parts", "Return the parts whose answers count.")
        if any(part is None for part in parts):
            raise self._fault("returned None among the parts", "Leave out a part that is not there.")
        ask = cast("Callable[[object, QueryName], Answer]", capability_of)
        return QUERIES[query].of_parts([ask(part, query) for part in parts])

    def _fault(self, came: str, advice: str) -> CapabilityAnswerError:
        return CapabilityAnswerError(type_name(type(self)), "capability_parts", came, "the layer's parts", advice)
