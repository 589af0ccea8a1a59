"""What holds for every test: nothing is measured, and the user's cache is not read."""

from __future__ import annotations

import os

from tests.processes import SETTINGS

os.environ.update(SETTINGS)
