"""What holds for every test, whoever runs it and after whichever others.

Nothing is measured, and neither the user's settings nor the user's cache are read.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from tests.other_versions import expected_failure
from tests.processes import settings, without_settings

for _name in os.environ.keys() - without_settings(os.environ).keys():
    del os.environ[_name]
os.environ.update(settings())

# To look for cycles as often as usual takes a twentieth of the time, and of imports a
# tenth; what a program does at the usual pace is shown by those that are forked off.
gc.set_threshold(50_000, 20, 100)

# The same examples each time, however long they take where other work goes on.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("tests")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported, which stays."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let it, and whoever looks at all objects, pass over what a file has left, too."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: no process is left with one alone."""
    listed = pathlib.Path(__file__).with_name("slow_files.txt").read_text()
    places = {name: place for place, name in enumerate(listed.split())}

    # TensorFlow is not imported for that: its distribution has several names.
    (name, *_) = importlib.metadata.packages_distributions()["tensorflow"]
    release = tuple(map(int, importlib.metadata.version(name).split(".")[:2]))

    def place_of(item: pytest.Item) -> int:
        return places.get(item.nodeid.partition("::")[0], len(places))

    for item in items:
        if place_of(item) < len(places):
            item.add_marker("slow")
        if reason := expected_failure(item.nodeid, release):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    items.sort(key=place_of)


# What a process keeps, whether mixed precision is enabled or not.
_KEPT = (
    ("absl.logging", "_log_counter_per_token"),
    ("tf_amp.message_codes", "_said"),
    ("tf_amp.training.scale_state", "_eager_states"),
)


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """Forget what other tests left, without importing what a test may not need."""
    for module, name in _KEPT:
        if module in sys.modules:
            getattr(sys.modules[module], name).clear()
    if host := sys.modules.get("tf_amp.rewriting.host"):
        host.forget()
        host.current().plans.clear()


@pytest.fixture
def disabled_afterwards() -> Iterator[None]:
    """Leave nothing of a test's mixed precision to the next one."""
    yield
    import tf_amp

    tf_amp.disable()
