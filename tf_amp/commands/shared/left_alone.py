"""Why a command that runs a script has found nothing to do in its graphs."""

from __future__ import annotations

import sys


def why_no_graph() -> str:
    """Say why the pass was given no graph that it could have changed."""
    if "tensorflow" not in sys.modules:
        return "the script did not import TensorFlow"
    from tf_amp.config import scope_registry
    from tf_amp.runtime import switch

    config = scope_registry.base_config()
    if not config.rewrites:
        return f"every graph stays as it is at level {config.opt_level}"
    if switch.is_switched_off():
        return "the script switched mixed precision off"
    return "the script ran no graph with a matrix product or convolution"
