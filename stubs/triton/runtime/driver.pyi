# SPDX-License-Identifier: MIT OR Apache-2.0
"""The device driver in use; `driver.active` raises RuntimeError where there is no device."""

from ..backends.driver import DriverBase

class DriverConfig:
    @property
    def default(self) -> DriverBase: ...
    @property
    def active(self) -> DriverBase: ...
    def set_active(self, driver: DriverBase) -> None: ...
    def reset_active(self) -> None: ...

driver: DriverConfig
