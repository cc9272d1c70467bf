# SPDX-License-Identifier: MIT OR Apache-2.0
"""Layers of other distributions: each plugin is tried on its own, and what fails is kept with its cause.

A distribution declares an entry point that names a function:

```toml
[project.entry-points."metrale_caps.layers"]
sliding_window = "metrale_sliding_window:register"
```

and the function registers layers by name:

```python
def register(registrar: LayerRegistrar) -> None:
    registrar.add("sliding_window", build, example=example)
```

A plugin is used whole or not at all. Nothing is remembered between two calls of `load_plugins`.
"""

from metrale_caps.plugins.entry_points import PluginOrigin as PluginOrigin
from metrale_caps.plugins.loading import GROUP as GROUP
from metrale_caps.plugins.loading import STRICT_VARIABLE as STRICT_VARIABLE
from metrale_caps.plugins.loading import BlockSource as BlockSource
from metrale_caps.plugins.loading import LayerPlugins as LayerPlugins
from metrale_caps.plugins.loading import LayerRegistrar as LayerRegistrar
from metrale_caps.plugins.loading import PluginFailure as PluginFailure
from metrale_caps.plugins.loading import PluginLayer as PluginLayer
from metrale_caps.plugins.loading import Stage as Stage
from metrale_caps.plugins.loading import collect_plugins as collect_plugins
from metrale_caps.plugins.loading import describe_cause as describe_cause
from metrale_caps.plugins.loading import load_plugins as load_plugins
from metrale_caps.plugins.loading import report_failures as report_failures

__all__ = [
    "GROUP",
    "STRICT_VARIABLE",
    "BlockSource",
    "LayerPlugins",
    "LayerRegistrar",
    "PluginFailure",
    "PluginLayer",
    "PluginOrigin",
    "Stage",
    "collect_plugins",
    "describe_cause",
    "load_plugins",
    "report_failures",
]
