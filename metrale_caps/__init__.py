# SPDX-License-Identifier: MIT OR Apache-2.0
"""The contract between an LLM inference engine and its layers.

Everything named here imports neither torch nor triton: a layer package can declare and check its capabilities
without them. What only a host uses (audit, plugins, plan) is loaded when it is first used. The engine lives in
`metrale_caps.engine`.
"""

from typing import TYPE_CHECKING

from metrale_caps.capabilities import LayerCapabilities as LayerCapabilities
from metrale_caps.capabilities import Source as Source
from metrale_caps.capabilities import capability_of as capability_of
from metrale_caps.composite import CompositeLayer as CompositeLayer
from metrale_caps.declares import declares as declares
from metrale_caps.errors import CapabilityAnswerError as CapabilityAnswerError
from metrale_caps.errors import CapabilityDeclarationError as CapabilityDeclarationError
from metrale_caps.errors import CapabilityError as CapabilityError
from metrale_caps.errors import LayerContractError as LayerContractError
from metrale_caps.errors import MetraleError as MetraleError
from metrale_caps.errors import UnknownCapabilityError as UnknownCapabilityError
from metrale_caps.layer import AuxStateLayer as AuxStateLayer
from metrale_caps.layer import DecodeContext as DecodeContext
from metrale_caps.layer import DecodeLayer as DecodeLayer
from metrale_caps.layer import ForwardContext as ForwardContext
from metrale_caps.layer import Fp8KvLayer as Fp8KvLayer
from metrale_caps.layer import GraphReplayLayer as GraphReplayLayer
from metrale_caps.layer import KvCalibration as KvCalibration
from metrale_caps.layer import MidchunkCapture as MidchunkCapture
from metrale_caps.layer import MultiSeqDecodeLayer as MultiSeqDecodeLayer
from metrale_caps.layer import MultiSeqVerifyLayer as MultiSeqVerifyLayer
from metrale_caps.layer import OwnStateLayer as OwnStateLayer
from metrale_caps.layer import PagedKv as PagedKv
from metrale_caps.layer import PagedKvLayer as PagedKvLayer
from metrale_caps.layer import PagedKvSpec as PagedKvSpec
from metrale_caps.layer import PrefillContext as PrefillContext
from metrale_caps.layer import PrefillLayer as PrefillLayer
from metrale_caps.layer import RowBuffer as RowBuffer
from metrale_caps.layer import RowBuffersLayer as RowBuffersLayer
from metrale_caps.layer import SplitPrefillBuffers as SplitPrefillBuffers
from metrale_caps.layer import SplitPrefillLayer as SplitPrefillLayer
from metrale_caps.layer import SsmLayerState as SsmLayerState
from metrale_caps.layer import SsmPoolLayer as SsmPoolLayer
from metrale_caps.layer import SsmStateSpec as SsmStateSpec
from metrale_caps.layer import VerifyContext as VerifyContext
from metrale_caps.layer import VerifyLayer as VerifyLayer
from metrale_caps.protocols import DecodeGraphUnsupported as DecodeGraphUnsupported
from metrale_caps.protocols import DecodeMultiSeqUnsupported as DecodeMultiSeqUnsupported
from metrale_caps.protocols import DecodeRollbackUnsupported as DecodeRollbackUnsupported
from metrale_caps.protocols import DecodeVerifyMultiUnsupported as DecodeVerifyMultiUnsupported
from metrale_caps.protocols import Fp8CalibrationFrozen as Fp8CalibrationFrozen
from metrale_caps.protocols import GraphStaleOnNewSequence as GraphStaleOnNewSequence
from metrale_caps.protocols import IsSsmLayer as IsSsmLayer
from metrale_caps.protocols import SupportsReplayTailSplit as SupportsReplayTailSplit
from metrale_caps.protocols import UsesLocalMlaPrefill as UsesLocalMlaPrefill
from metrale_caps.protocols import UsesSsmPool as UsesSsmPool
from metrale_caps.queries import QUERIES as QUERIES
from metrale_caps.queries import Asked as Asked
from metrale_caps.queries import Fold as Fold
from metrale_caps.queries import Query as Query
from metrale_caps.queries import query_names as query_names

if TYPE_CHECKING:
    from metrale_caps.audit import Finding as Finding
    from metrale_caps.audit import FindingKind as FindingKind
    from metrale_caps.audit import LayerAudit as LayerAudit
    from metrale_caps.audit import audit_class as audit_class
    from metrale_caps.audit import audit_layer as audit_layer
    from metrale_caps.plugins import BlockSource as BlockSource
    from metrale_caps.plugins import LayerPlugins as LayerPlugins
    from metrale_caps.plugins import LayerRegistrar as LayerRegistrar
    from metrale_caps.plugins import PluginFailure as PluginFailure
    from metrale_caps.plugins import PluginLayer as PluginLayer
    from metrale_caps.plugins import PluginOrigin as PluginOrigin
    from metrale_caps.plugins import load_plugins as load_plugins
    from metrale_caps.routing.plan import Decision as Decision
    from metrale_caps.routing.plan import RoutePlan as RoutePlan

__all__ = [
    "QUERIES",
    "Asked",
    "AuxStateLayer",
    "BlockSource",
    "CapabilityAnswerError",
    "CapabilityDeclarationError",
    "CapabilityError",
    "CompositeLayer",
    "Decision",
    "DecodeContext",
    "DecodeGraphUnsupported",
    "DecodeLayer",
    "DecodeMultiSeqUnsupported",
    "DecodeRollbackUnsupported",
    "DecodeVerifyMultiUnsupported",
    "Finding",
    "FindingKind",
    "Fold",
    "ForwardContext",
    "Fp8CalibrationFrozen",
    "Fp8KvLayer",
    "GraphReplayLayer",
    "GraphStaleOnNewSequence",
    "IsSsmLayer",
    "KvCalibration",
    "LayerAudit",
    "LayerCapabilities",
    "LayerContractError",
    "LayerPlugins",
    "LayerRegistrar",
    "MetraleError",
    "MidchunkCapture",
    "MultiSeqDecodeLayer",
    "MultiSeqVerifyLayer",
    "OwnStateLayer",
    "PagedKv",
    "PagedKvLayer",
    "PagedKvSpec",
    "PluginFailure",
    "PluginLayer",
    "PluginOrigin",
    "PrefillContext",
    "PrefillLayer",
    "Query",
    "RoutePlan",
    "RowBuffer",
    "RowBuffersLayer",
    "Source",
    "SplitPrefillBuffers",
    "SplitPrefillLayer",
    "SsmLayerState",
    "SsmPoolLayer",
    "SsmStateSpec",
    "SupportsReplayTailSplit",
    "UnknownCapabilityError",
    "UsesLocalMlaPrefill",
    "UsesSsmPool",
    "VerifyContext",
    "VerifyLayer",
    "audit_class",
    "audit_layer",
    "capability_of",
    "declares",
    "load_plugins",
    "query_names",
]

if not TYPE_CHECKING:  # a checker that saw `__getattr__` would take every misspelt name for one of ours
    _LOADED_WHEN_USED = {
        **dict.fromkeys(("Finding", "FindingKind", "LayerAudit", "audit_class", "audit_layer"), "metrale_caps.audit"),
        **dict.fromkeys(
            (
                "BlockSource",
                "LayerPlugins",
                "LayerRegistrar",
                "PluginFailure",
                "PluginLayer",
                "PluginOrigin",
                "load_plugins",
            ),
            "metrale_caps.plugins",
        ),
        **dict.fromkeys(("Decision", "RoutePlan"), "metrale_caps.routing.plan"),
    }

    def __getattr__(name: str) -> object:
        """Return a name that only hosts use, and keep it."""
        module = _LOADED_WHEN_USED.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        from importlib import import_module

        found = globals()[name] = getattr(import_module(module), name)
        return found

    def __dir__() -> list[str]:
        """Return the names of the module, those not yet loaded too."""
        return sorted({*globals(), *__all__})
