"""Functions that XLA compiles as a whole: what is left alone, and how a copy is made.

The copy is made from the function as it was traced, of itself and of all that it calls,
without what only watches: XLA cannot call back into this process. Its types are those
that are worth it under XLA. TensorFlow keeps what XLA compiles until the process ends,
and so stays the copy.

Where XLA takes only the one function that it calls, as in Keras' `fit`, the copy is of
that one. It is compiled with zeros for a batch, which only a step of the program takes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass import pipeline
from grappler_pass.functions import whole
from grappler_pass.functions.bodies import bodies_of, with_bodies
from grappler_pass.functions.conversion import (
    function_from_graph,
    graph_from_function,
    library_of,
    set_known,
)
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from tf_amp._tensorflow_private import eager_context, functions
from tf_amp.compare import call_sites
from tf_amp.compare.call_sites import CallSite
from tf_amp.compare.compiled_steps import Way
from tf_amp.rewriting import compiled, graph_settings, stripping

if TYPE_CHECKING:
    from grappler_pass.graph.view import Item
    from tf_amp.config.scope_registry import RegisteredScope

# Of all that XLA computes, whatever the type: where products are is alike in both.
_LISTS = OpLists.for_dtype("bfloat16")

# Of one function of the program: each shape of its arguments is another one.
_MOST_SHAPES = 3
# By the name of the function, those of its copies.
_copies: dict[str, set[str]] = defaultdict(set)
# How names of functions begin that a tape outside calls, forward and backward.
_OF_TAPES = ("__forward_", "__inference___backward_")


class WholeFunction:
    """A function that XLA may compile as a whole."""

    def __init__(
        self, site: CallSite, name: str, scope: RegisteredScope, device_type: str
    ) -> None:
        """Take a function.

        Args:
          site: where it is called.
          name: human-readable.
          scope: its settings.
          device_type: of what it runs on.
        """
        self._site, self._name = site, name
        self._scope, self._device_type = scope, device_type
        # How many copies have been made; each after the first since one has failed.
        self._made = 0
        # That of the function that XLA compiles, where it is not the one at the site.
        self._call: NodeDef | None = None

    def examine(self, inputs: Sequence[Any]) -> float:
        """Return the seconds that a call is expected to take once it is compiled.

        Args:
          inputs: of a call.

        Raises:
          ValueError: it is left alone; the message says why.
        """
        self._check()
        graph_def, item = self._graph()
        known = tuple(map(compiled.known_argument, self._arguments(inputs)))
        shapes = [shape for each in known for _, shape in each.contents]
        if any(shape is None or None in shape for shape in shapes):
            raise ValueError("the shape of a variable varies")
        set_known(graph_def, self._definitions()[0], known)
        seconds = 0.0
        for body in bodies_of(graph_def, item, _shapes_of(graph_def), _LISTS):
            chosen = graph_settings.settings_for(
                self._scope, body.graph_def, self._device_type
            )
            chosen = dataclasses.replace(chosen, own_steps=None)
            draft = pipeline.draft_graph(
                body.graph_def, body.item, chosen, shapes=body.shapes
            )
            seconds += body.weight * sum(draft.prices.float32)
        return seconds

    def _check(self) -> None:
        if self._site.name.startswith(_OF_TAPES):
            raise ValueError("a tape outside of it needs what it computes in between")
        definitions = self._definitions()
        why = whole.obstacle_in(_needed(definitions), self._device_type)
        if why and (call := whole.only_call(definitions)) is not None:
            self._call = call
            needed = _needed(self._definitions())
            why = whole.obstacle_in(needed, self._device_type)
            why = why or whole.obstacle_of_zeros(needed)
        if why:
            raise ValueError(why)

    def make_copy(self) -> Way:
        """Give the site the copy of its function that XLA compiles.

        Returns:
          How it is called so that XLA compiles it.

        Raises:
          ValueError: there are as many others as may be.
        """
        graph_def, item = self._graph()
        first, shapes = self._definitions()[0], _shapes_of(graph_def)
        given = (graph_def, item, shapes, self._device_type)
        changed = call_sites.call_as(
            self._site, functions.WHOLE, compiled.rewritten_bodies, *given
        )
        if changed:
            suffix = "__compiled"
            graph_def = with_bodies(graph_def, changed, lambda called: called + suffix)
            first = function_from_graph(graph_def, first)
        needed = _needed([first, *library_of(graph_def).values()])
        copies = whole.compiled_copies(needed, self._made)
        self._made += 1
        name, others = copies[0].signature.name, _copies[self._name]
        if name not in others and len(others) >= _MOST_SHAPES:
            most = f"{_MOST_SHAPES} shapes of its arguments"
            raise ValueError(f"it is compiled for {most} already")
        others.add(name)
        if self._call is None:
            _add(copies)
            self._site.whole = name.encode()
            return functions.on_copies
        called = whole.calling_compiled(self._caller(), self._call, copies[0])
        _add([*copies, *called])
        self._site.whole = called.caller.signature.name.encode()
        alone = called.alone.signature
        return functions.another_on_copies(
            alone.name.encode(),
            len(alone.output_arg),
            self._arguments,
            stays_on_thread=self._device_type == "CPU",
        )

    def _arguments(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of what XLA compiles, given those of a call.

        Zeros stand for what only the call itself would compute.
        """
        if self._call is None:
            return inputs
        names = (arg.name for arg in self._caller().signature.input_arg)
        values = dict(zip(names, inputs, strict=True))
        function = self._definitions()[0]
        arguments = []
        for number, name in enumerate(whole.argument_sources(self._call)):
            if name in values:
                arguments.append(values[name])
            elif (shape := whole.fixed_shape(function, number)) is not None:
                dtype = function.signature.input_arg[number].type
                arguments.append(tf.zeros(shape, dtype))
            else:
                raise ValueError(f"it makes what {self._call.name} is given itself")
        return arguments

    def _caller(self) -> FunctionDef:
        return next(functions.definitions(eager_context(), self._site.name.encode()))

    def _definitions(self) -> list[FunctionDef]:
        """Return the function as it was traced, and those that it calls."""
        name = self._site.name if self._call is None else self._call.attr["f"].func.name
        return [*functions.definitions(eager_context(), name.encode())]

    def _graph(self) -> tuple[GraphDef, Item]:
        first, *callees = self._definitions()
        return graph_from_function(first, {f.signature.name: f for f in callees})


def _add(added: Sequence[FunctionDef]) -> None:
    context = eager_context()
    for function in added:
        if not context.has_function(function.signature.name):
            context.add_function_def(function)


def _shapes_of(graph_def: GraphDef) -> Callable[[], Shapes]:
    return functools.partial(shapes_from_graph_def, graph_def)


def _needed(found: list[FunctionDef]) -> list[FunctionDef]:
    """Return functions without what only this process can use, and what none needs."""
    holder = GraphDef()
    holder.library.function.extend(found)
    stripping.strip(holder)
    return [whole.pruned(function) for function in holder.library.function]
