# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a device driver tells about the current device."""

from .compiler import GPUTarget

class DriverBase:
    @classmethod
    def is_active(cls) -> bool: ...
    def get_current_target(self) -> GPUTarget: ...
