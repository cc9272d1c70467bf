# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m metrale_caps` is the `metrale-caps` command."""

import sys

from metrale_caps.cli import main

sys.exit(main())
