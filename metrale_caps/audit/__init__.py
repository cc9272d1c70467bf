# SPDX-License-Identifier: MIT OR Apache-2.0
"""Findings about layers and their classes: all at once, each with the place to mend.

A finding is a fault that no call would show: a method that is never asked because of its name, answers that a wrapper
hides, answers that contradict what the layer can do. A stack of layers is audited when its route plan is made, and is
refused with all findings; `metrale-caps check` audits one class or plugin.
"""

from metrale_caps.audit.finding import Finding as Finding
from metrale_caps.audit.finding import FindingKind as FindingKind
from metrale_caps.audit.layers import LayerAudit as LayerAudit
from metrale_caps.audit.layers import audit_class as audit_class
from metrale_caps.audit.layers import audit_layer as audit_layer
from metrale_caps.audit.layers import audit_stack as audit_stack
from metrale_caps.audit.layers import takes_part as takes_part
from metrale_caps.audit.source_place import Place as Place

__all__ = [
    "Finding",
    "FindingKind",
    "LayerAudit",
    "Place",
    "audit_class",
    "audit_layer",
    "audit_stack",
    "takes_part",
]
