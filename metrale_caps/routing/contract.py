# SPDX-License-Identifier: MIT OR Apache-2.0
"""Forward methods that a layer's answers oblige it to have, checked when a plan is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.layer import forward_method

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from metrale_caps.capabilities import LayerCapabilities


def contract_violations(layers: Sequence[object], capabilities: Sequence[LayerCapabilities]) -> list[str]:
    """Return one sentence for each layer and obligation it does not meet."""
    return [
        sentence
        for index, (layer, answers) in enumerate(zip(layers, capabilities, strict=True))
        for sentence in _violations(index, layer, answers)
    ]


def _violations(index: int, layer: object, answers: LayerCapabilities) -> Iterator[str]:
    who = f"layer {index} ({answers.layer_type})"
    if missing := _missing(layer, "decode"):
        yield f"{who} has no {missing}; every layer must decode"
    if answers.is_ssm_layer and (missing := _missing(layer, "prefill_phase1", "prefill_gdn_full", "prefill_phase3")):
        yield f"{who} answers is_ssm_layer = True but has no {missing}"
    if not answers.uses_ssm_pool and (missing := _missing(layer, "alloc_state", "release_state")):
        yield f"{who} answers uses_ssm_pool = False but has no {missing}"
    if not answers.decode_verify_multi_unsupported and (missing := _missing(layer, "decode_verify_multi")):
        yield (
            f"{who} has no {missing}; write it, or answer True to decode_verify_multi_unsupported so that drafts are "
            "verified one sequence at a time"
        )


def _missing(layer: object, *methods: str) -> str:
    return ", ".join(f"`{name}`" for name in methods if forward_method(layer, name) is None)
