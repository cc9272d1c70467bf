# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer implements and what it is handed: the forward protocols and the contexts of a step.

A layer is one decoder block: it takes hidden rows `[rows, hidden_size]` and returns hidden rows of the same shape and
dtype. The rows it is handed are its own for the call: it may overwrite them and return them, but in the first phase of
a split prefill. Everything else it needs comes in a context, which is frozen and made once a step.

Only `decode` is required. What else a layer has decides how a step runs:

| protocol | when a layer lacks it |
|---|---|
| `DecodeLayer` | required |
| `MultiSeqDecodeLayer` | `decode` per row, each row with its own context |
| `VerifyLayer` | `decode` per row |
| `MultiSeqVerifyLayer` | the layer must declare `decode_verify_multi_unsupported` |
| `PrefillLayer` | `decode` per row |
| `SplitPrefillLayer` | required of a layer that says `is_ssm_layer` |
| `RowBuffersLayer` | a split prefill hands it no buffers |
| `PagedKvLayer` | the layer is handed no paged cache |
| `SsmPoolLayer` | the layer is handed no state of the pool; required of one that says `is_ssm_layer` and owns none |
| `Fp8KvLayer` | its pages have the type of the weights, also in an FP8 cache |
| `OwnStateLayer` | required of a layer that answers False to `uses_ssm_pool` |
| `GraphReplayLayer` | nothing to do |
| `AuxStateLayer` | nothing to save |

This module imports torch for type checking only.
"""

from __future__ import annotations

from metrale_caps.layer.caches import KvCalibration as KvCalibration
from metrale_caps.layer.caches import PagedKv as PagedKv
from metrale_caps.layer.caches import PagedKvSpec as PagedKvSpec
from metrale_caps.layer.caches import SsmLayerState as SsmLayerState
from metrale_caps.layer.caches import SsmStateSpec as SsmStateSpec
from metrale_caps.layer.contexts import DecodeContext as DecodeContext
from metrale_caps.layer.contexts import ForwardContext as ForwardContext
from metrale_caps.layer.contexts import MidchunkCapture as MidchunkCapture
from metrale_caps.layer.contexts import PrefillContext as PrefillContext
from metrale_caps.layer.contexts import VerifyContext as VerifyContext
from metrale_caps.layer.protocols import FORWARD_STUBS as FORWARD_STUBS
from metrale_caps.layer.protocols import AuxStateLayer as AuxStateLayer
from metrale_caps.layer.protocols import DecodeLayer as DecodeLayer
from metrale_caps.layer.protocols import Fp8KvLayer as Fp8KvLayer
from metrale_caps.layer.protocols import GraphReplayLayer as GraphReplayLayer
from metrale_caps.layer.protocols import MultiSeqDecodeLayer as MultiSeqDecodeLayer
from metrale_caps.layer.protocols import MultiSeqVerifyLayer as MultiSeqVerifyLayer
from metrale_caps.layer.protocols import OwnStateLayer as OwnStateLayer
from metrale_caps.layer.protocols import PagedKvLayer as PagedKvLayer
from metrale_caps.layer.protocols import PrefillLayer as PrefillLayer
from metrale_caps.layer.protocols import RowBuffersLayer as RowBuffersLayer
from metrale_caps.layer.protocols import SplitPrefillLayer as SplitPrefillLayer
from metrale_caps.layer.protocols import SsmPoolLayer as SsmPoolLayer
from metrale_caps.layer.protocols import VerifyLayer as VerifyLayer
from metrale_caps.layer.protocols import forward_method as forward_method
from metrale_caps.layer.row_buffers import RowBuffer as RowBuffer
from metrale_caps.layer.row_buffers import SplitPrefillBuffers as SplitPrefillBuffers

__all__ = [
    "FORWARD_STUBS",
    "AuxStateLayer",
    "DecodeContext",
    "DecodeLayer",
    "ForwardContext",
    "Fp8KvLayer",
    "GraphReplayLayer",
    "KvCalibration",
    "MidchunkCapture",
    "MultiSeqDecodeLayer",
    "MultiSeqVerifyLayer",
    "OwnStateLayer",
    "PagedKv",
    "PagedKvLayer",
    "PagedKvSpec",
    "PrefillContext",
    "PrefillLayer",
    "RowBuffer",
    "RowBuffersLayer",
    "SplitPrefillBuffers",
    "SplitPrefillLayer",
    "SsmLayerState",
    "SsmPoolLayer",
    "SsmStateSpec",
    "VerifyContext",
    "VerifyLayer",
    "forward_method",
]
