"""A measurement that meets the end of the memory is skipped, and the next goes on."""

from __future__ import annotations

from tests.forking import run_forked

# The address space ends half a GiB beyond what is in use.
EXHAUSTED = """
import resource
import tensorflow as tf
from grappler_pass.planning.draft import Stake
from tests.probe_samples import matmul, probe
from tf_amp.measuring import probe_timing as measuring, tuner
from tf_amp.measuring.sandbox import memory
from tf_amp.measuring.budget import Budget, Limits
from tf_amp.measuring.known_costs import KnownCosts

met = []
warmed_up = measuring._Attempt._warmed_up

def watched(self, *given):
    try:
        return warmed_up(self, *given)
    except tf.errors.OpError as error:
        met.append((self.probe.op, type(error).__name__))
        raise

measuring._Attempt._warmed_up = watched
# As on a machine with so much, of which something else takes all meanwhile.
memory.most_bytes = lambda device_type: 1 << 40
costs = KnownCosts.load("CPU", "this CPU", tf.__version__, None)
one = tuner.OnlineTuner(costs, Budget(Limits()).allowance("graph"))
one.measure([Stake(matmul(8, 8, 8), 1.0, "CPU")], "bfloat16")

pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (1 << 29)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
large = probe(
    "BroadcastTo", (1,), constants=[(4, 1 << 28)], Tidx="type: DT_INT32"
)
small = matmul(16, 16, 16)
one.measure([Stake(large, 9.0, "CPU"), Stake(small, 1.0, "CPU")], "bfloat16")
print(met)
for each in (large, small):
    print([costs.prices.get(each.key, dtype) is not None
           for dtype in ("float32", "bfloat16")])
print("broken", tuner._state.is_broken)
"""


def test_an_op_that_exhausts_the_memory_is_skipped_and_the_next_is_measured():
    lines = run_forked(EXHAUSTED).lines()
    assert lines == [
        # In float32; TensorFlow waits long for memory, so 16 bits are not tried.
        str([("BroadcastTo", "ResourceExhaustedError")]),
        "[False, False]",
        "[True, True]",
        "broken False",
    ]
