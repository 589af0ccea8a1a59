"""What the caller of a tool sets for its rewrites, beside what is in force."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_amp.config.amp_config import AmpConfig, checked_dtype, checked_level


@dataclasses.dataclass(frozen=True)
class Choice:
    """Settings that go before those in force; None: as they are."""

    dtype: str | None = None
    opt_level: str | None = None
    device_profile: str | None = None
    exclude: tuple[str, ...] = ()

    def applied_to(self, config: AmpConfig) -> AmpConfig:
        """Return a configuration with the choice in it; ConfigError if unknown."""
        given: dict[str, Any] = {"exclude": (*config.exclude, *self.exclude)}
        if self.dtype is not None:
            given["dtype"] = checked_dtype(self.dtype)
        if self.opt_level is not None:
            given["opt_level"] = checked_level(self.opt_level)
        if self.device_profile is not None:
            given["device_profile"] = self.device_profile
        return dataclasses.replace(config, **given)
