"""The order in which threads of TensorFlow's executor start and end nodes.

A thread goes on with what its last node has made ready: with all ops that cost little,
such as views and every op of a GPU, and with one other. The rest waits in front of what
has waited before (executor.cc: Process, ScheduleReady). A thread without work takes
what has waited longest with another one.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator

from grappler_pass.costs.op_classes import FREE_OPS
from grappler_pass.graph import op_table as table
from grappler_pass.graph.view import Graph, Node


def executed(
    view: Graph,
    run: frozenset[int],
    duration: Callable[[Node], float],
    threads: int,
) -> Iterator[int]:
    """Yield the numbers of nodes, each where it starts and again where it ends.

    Args:
      view: the graph.
      run: the nodes that run.
      duration: returns how long a node takes, in any unit.
      threads: that run them.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    awaited: Counter[int] = Counter()
    for number in sorted(run):
        node = view.nodes[number]
        # What a fed node reads does not run.
        for source in run.intersection(view.waits_for(number)):
            is_back_edge = view.nodes[source].op in table.NEXT_ITERATION_OPS
            if not (is_back_edge and node.op in table.MERGE_OPS):
                readers[source].append(number)
                awaited[number] += 1
    # What each goes on with at once, and what it has made ready besides.
    own = [deque[int]() for _ in range(threads)]
    waiting = [deque[int]() for _ in range(threads)]
    waiting[0].extend(number for number in sorted(run) if not awaited[number])
    # When each node that runs ends, how many began before it, and on which thread.
    running, begun, now = list[tuple[float, int, int, int]](), 0, 0.0
    idle = set(range(threads))
    while True:
        for thread in sorted(idle):
            if mine := own[thread] or waiting[thread]:
                number = mine.popleft()
            elif others := next(filter(None, waiting), None):
                number = others.pop()
            else:
                continue
            idle.remove(thread)
            end = now + duration(view.nodes[number])
            heapq.heappush(running, (end, begun, thread, number))
            begun += 1
            yield number
        if not running:
            return
        now, _, thread, number = heapq.heappop(running)
        idle.add(thread)
        yield number
        costly = list[int]()
        for reader in readers[number]:
            awaited[reader] -= 1
            if awaited[reader]:
                continue
            node = view.nodes[reader]
            is_cheap = node.op in FREE_OPS or node.device_type == "GPU"
            (own[thread] if is_cheap else costly).append(reader)
        if costly and not own[thread]:
            own[thread].append(costly.pop())
        waiting[thread].extendleft(costly)
