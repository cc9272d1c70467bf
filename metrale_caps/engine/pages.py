# SPDX-License-Identifier: MIT OR Apache-2.0
"""Allocates the pages of a decoder, and has its layers keep FP8 pages with the scales that go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrale_caps.capabilities import capability_of
from metrale_caps.errors import ConfigurationError
from metrale_caps.kernels.recording import is_capturing
from metrale_caps.layer import forward_method
from metrale_caps.state.fp8_calibration import Fp8Calibration, check_scales
from metrale_caps.state.paged_kv import allocate_pages

if TYPE_CHECKING:
    from collections.abc import Collection

    from metrale_caps.engine.counters import Counters
    from metrale_caps.engine.options import EngineOptions
    from metrale_caps.layer import PagedKv
    from metrale_caps.models.decoder import Decoder


def make_pages(
    decoder: Decoder, num_blocks: int, options: EngineOptions, counters: Counters
) -> tuple[PagedKv | None, ...]:
    """Allocate each layer's pages; FP8 pages get their scales, or a calibration that finds them.

    Raises:
        ConfigurationError: scales are given for a layer without FP8 pages, or a layer with a calibration does not
            say that it has one, so that graphs would be captured before the scales are final.
        KvScaleError: a scale that is given is not finite, or not above 0.
    """
    layouts = options.page_layouts(decoder)
    pages = allocate_pages(layouts, num_blocks, options.block_size, device=decoder.device)
    quantised = {index: kv for index, kv in enumerate(pages) if kv is not None and kv.key_scale is not None}
    given = options.fp8_kv_scales or {}
    for index, scales in given.items():  # all of them before the first layer is told of its pages
        if index not in quantised:
            raise ConfigurationError(f"fp8_kv_scales has an entry for layer {index}, which has no FP8 pages")
        check_scales(scales, layer_index=index, layer_type=type(decoder.layers[index]).__qualname__)

    def frozen() -> None:
        counters.fp8_calibrations_frozen += 1

    _refuse_layers_of_another_engine(decoder, quantised.keys())
    for index, kv in quantised.items():
        layer: Any = decoder.layers[index]
        calibration = None
        if index in given:
            for tensor, scale in zip(kv.scales(), given[index], strict=True):
                tensor.fill_(scale)
        elif options.fp8_calibration_tokens:
            calibration = Fp8Calibration(
                kv,
                decoder.operations.store_kv_fp8,
                window=options.fp8_calibration_tokens,
                capturing=is_capturing,
                headroom=options.fp8_kv_headroom,
                on_freeze=frozen,
            )
        _bind(index, layer, calibration)
    return pages


def _refuse_layers_of_another_engine(decoder: Decoder, quantised: Collection[int]) -> None:
    """Refuse layers with a calibration that this engine's pages would never finish, so that no graph were captured."""
    for index, layer in enumerate(decoder.layers):
        if index not in quantised and forward_method(layer, "use_fp8_kv") is not None:
            answer = capability_of(layer, "fp8_calibration_frozen")
            if answer is not None:
                raise ConfigurationError(
                    f"layer {index} ({type(layer).__qualname__}) answers {answer} to `fp8_calibration_frozen`, but has "
                    "no FP8 pages here: it keeps some for another engine; build the model anew"
                )


def _bind(index: int, layer: object, calibration: Fp8Calibration | None) -> None:
    use_fp8_kv = forward_method(layer, "use_fp8_kv")
    if use_fp8_kv is None:
        raise LookupError(f"layer {index} has FP8 pages and no `use_fp8_kv`")
    use_fp8_kv(calibration)
    answer = capability_of(layer, "fp8_calibration_frozen")
    expected = None if calibration is None else False
    if answer is not expected:
        raise ConfigurationError(
            f"layer {index} ({type(layer).__qualname__}) answers {answer} to `fp8_calibration_frozen` where its "
            f"`use_fp8_kv` was given {'no calibration' if calibration is None else 'one that is not frozen'}; "
            f"it must answer {expected}, or graphs would hold back or read at the wrong time"
        )
