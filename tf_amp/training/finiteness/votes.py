"""Which gradients a value comes from, and whether those were finite.

Every call for gradients casts a vote: its results, and the tensor that says whether
they are finite. Whoever uses gradients, clipped, summed or averaged as they may be,
finds the votes by walking back through the graph.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.graph.op_table import BRANCH_OPS, MERGE_OPS
from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private.tracing import captured, kept_with, outwards
from tf_amp.training.finiteness import eager_steps
from tf_amp.training.finiteness.of_gradients import is_scalable
from tf_amp.training.finiteness.scale_update import ScaleUpdate

_VOTES = "_tf_amp_votes"
_BRANCHES = BRANCH_OPS | MERGE_OPS
_FUNCTION_ATTRIBUTES = ("f", "then_branch", "body", "branches", "body_graph")


@dataclasses.dataclass(frozen=True, eq=False)
class Vote:
    """What one call for gradients has decided.

    Attributes:
      finite: whether its results are, bool scalar; those it was made from included.
      own: the same, regardless of what the results were made from.
      scale_update: adjusts the loss scale, from a tensor that says whether gradients
        are finite.
      updated: in a `tf.Graph`, the operation that waits for the loss scale to be
        adjusted; None elsewhere, and where the results are made from others'.
      adjusting: what `updated` waits for.
    """

    finite: Any
    own: Any
    scale_update: ScaleUpdate
    updated: Any = None
    adjusting: tuple[Any, ...] = ()


class Ancestry(NamedTuple):
    """What is behind some tensors.

    Attributes:
      votes: each one once, in the order found.
      arguments: of functions, and what is fed, of which nothing more is known.
      calls: operations that call functions.
      is_whole: whether nothing is left out, as the votes are that were cast in old
        loops, and what is behind branches where the walk ends there.
    """

    votes: tuple[Vote, ...] = ()
    arguments: tuple[Any, ...] = ()
    calls: tuple[Any, ...] = ()
    is_whole: bool = True


def cast_vote(results: Sequence[Any], vote: Vote) -> None:
    """Remember what the results of a call depend on."""
    for tensor in results:
        if not _is_symbolic(tensor):
            eager_steps.remember(tensor, vote.finite)
            continue
        kept_with(tensor.graph, _VOTES)[tensor.ref()] = vote


def vote_on(tensor: Any) -> Vote | None:
    """Return the vote that a tensor of a graph carries, if any."""
    votes: dict[Any, Vote] = getattr(tensor.graph, _VOTES, {})
    return votes.get(tensor.ref())


def share_vote(results: Sequence[Any], beside: Any) -> None:
    """Let what comes beside the results of a call be used only where they are."""
    known = map(vote_on, filter(_is_symbolic, [beside, *results]))
    vote = next((vote for vote in known if vote is not None), None)
    if vote is not None and _is_symbolic(beside):
        cast_vote([beside], vote)


def ancestry_of(tensors: Iterable[Any], *, numbers_only: bool = False) -> Ancestry:
    """Walk back from tensors to the calls for gradients that they come from.

    Args:
      tensors: where to begin.
      numbers_only: whether to follow no more than what numbers are computed from, up to
        the branches of a graph. What a program decides on, such as whether there was an
        overflow, is no part of it: the numbers that are chosen then need not come from
        gradients.
    """

    def is_end(tensor: Any) -> bool:
        is_choice = numbers_only and tensor.op.type in _BRANCHES
        return is_choice or vote_on(tensor) is not None

    votes: dict[Vote, None] = {}
    arguments = []
    calls = {}
    is_whole = True
    for tensor in walk(tensors, is_end, numbers_only):
        vote = vote_on(tensor)
        if vote is not None:
            votes[vote] = None
        elif tensor.op.type == "Placeholder" and is_scalable(tensor):
            arguments.append(tensor)
        elif calls_function(tensor.op):
            calls[id(tensor.op)] = tensor.op
        is_whole = is_whole and tensor.op.type not in _BRANCHES
    seen = [one for one in map(_seen_from_here, votes) if one is not None]
    is_whole = is_whole and len(seen) == len(votes)
    return Ancestry(tuple(seen), tuple(arguments), tuple(calls.values()), is_whole)


def any_around(graph: Any) -> bool:
    """Return whether a graph, or one around it, holds votes."""
    return any(hasattr(each, _VOTES) for each in outwards(graph))


def descends_from(tensors: Iterable[Any], is_wanted: Callable[[Any], Any]) -> bool:
    """Return whether a wanted tensor is among some, or behind them by any way."""
    return any(is_wanted(tensor) for tensor in walk(tensors, lambda tensor: False))


def calls_function(operation: Any) -> bool:
    """Return whether an operation runs functions, loops or branches."""
    definition = operation.op_def
    return any(a.name in _FUNCTION_ATTRIBUTES for a in definition.attr)


def walk(
    tensors: Iterable[Any], is_end: Callable[[Any], bool], numbers_only: bool = False
) -> Iterator[Any]:
    """Yield symbolic tensors and what they are made of; not beyond an end.

    Args:
      tensors: where to begin.
      is_end: returns whether to go no further back from a tensor.
      numbers_only: whether to follow no more than what numbers are computed from.
    """
    waiting = deque(tensor for tensor in tensors if _is_symbolic(tensor))
    seen = set()
    while waiting:
        tensor = waiting.popleft()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        outer = captured(tensor)
        if outer is None:
            yield tensor
        if not is_end(tensor):
            inputs = tensor.op.inputs if outer is None else (outer,)
            waiting.extend(
                t
                for t in inputs
                if _is_symbolic(t) and (is_scalable(t) or not numbers_only)
            )


def _seen_from_here(vote: Vote) -> Vote | None:
    """Return a vote that can be used here; None where it was cast in an old loop.

    One that was cast in an old branch has updated the scale there.
    """
    finite = _flag_seen_from_here(vote.finite)
    if finite is None or finite is vote.finite:
        return None if finite is None else vote
    return dataclasses.replace(vote, finite=finite, own=finite, updated=None)


def _flag_seen_from_here(flag: Any) -> Any:
    """Return a flag of an old branch as it can be used in the present part of a graph.

    It is True where the branch is not taken. None of what is in the frames of an old
    loop: each round has a flag of its own.
    """
    here = tracing.frames_of(tf.compat.v1.get_default_graph())
    for frame in tracing.frames_of(flag.op):
        if flag is None or frame in here:
            break
        flag = tracing.true_unless_taken(flag, frame)
    return flag


def _is_symbolic(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy")
