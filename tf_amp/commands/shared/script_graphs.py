"""The graphs of a script that a command runs, looked at and not changed."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from tf_amp.commands.shared import printing
from tf_amp.commands.shared.exit_codes import DONE, FAILED, NOTHING
from tf_amp.config import scope_registry
from tf_amp.tools import running_scripts

if TYPE_CHECKING:
    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.planning.draft import Settings

_T = TypeVar("_T")


@dataclasses.dataclass
class Script:
    """The script of a command, and the exit code that it has ended with."""

    options: argparse.Namespace
    code: int = DONE

    def run(self) -> None:
        """Run it, in its time; say so if it fails."""
        code = running_scripts.run_limited(
            str(self.options.model), self.options.script_arguments, self.options.seconds
        )
        self.code = running_scripts.exit_code_of(code)
        if self.code:
            said = f"tf-amp: the script ended with exit code {self.code}."
            print(said, file=sys.stderr)

    def exit_code(self, answer: int) -> int:
        """Return the command's exit code, given that of what it has found out."""
        return FAILED if self.code else answer


def run_observed(
    options: argparse.Namespace,
    look: Callable[..., _T],
    show: Callable[[tuple[_T, ...], TextIO], None],
    environment: Mapping[str, str | None],
) -> int:
    """Run the script of a command, look at its graphs, and return the exit code.

    What is found of a graph, given as to the pass, is shown at the end, however the
    script ends. The environment has settings for plans.
    """
    from tf_amp.compare.fingerprint import digest_of_products
    from tf_amp.rewriting import host

    found: dict[Hashable, _T] = {}

    def observe(
        graph_def: Any,
        item: Item,
        shapes: Callable[[], Shapes],
        name: str,
        settings: Settings,
    ) -> None:
        seen = look(graph_def, item, settings, shapes=shapes, name=name)
        # The second of Grappler's two iterations has the graph that runs.
        found[name, item.fetch, digest_of_products(graph_def, shapes())] = seen

    stream = printing.stream_for(options)
    host.current().observers.append(observe)
    running_scripts.switch_on(environment)
    script = Script(options)
    try:
        script.run()
    finally:
        show(tuple(found.values()), stream)
    if not found:
        print(f"tf-amp: {why_no_graph()}.", file=sys.stderr)
    return script.exit_code(DONE if found else NOTHING)


def why_no_graph() -> str:
    """Say why the pass was given no graph that it could have changed."""
    if "tensorflow" not in sys.modules:
        return "the script did not import TensorFlow"
    from tf_amp.runtime import switch

    config = scope_registry.base_config()
    if not config.rewrites:
        return f"every graph stays as it is at level {config.opt_level}"
    if switch.is_switched_off():
        return "the script switched mixed precision off"
    return "the script ran no graph with a matrix product or convolution"
