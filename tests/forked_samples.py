"""Let `tf-amp bench` fork off what it measures, rather than start Python anew.

What a sample is made of is the same; that processes are started, ended and survived is
shown by `tests/tf_amp/commands/test_bench_command.py`.
"""

FORKING = """
import os, sys, time, traceback
from tf_amp.tools.bench import measuring
from tf_amp.tools.bench.journal import Ended
from tf_amp.tools.bench import worker

def run_worker(task, environment, seconds, stop):
    begin = time.monotonic()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["-c", task]
            worker.main()
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    _, status, usage = os.wait4(child, 0)
    return Ended(
        status=os.waitstatus_to_exitcode(status),
        is_out_of_time=False,
        errors="",
        peak_bytes=usage.ru_maxrss * 1024,
        begin=begin,
    )

measuring._run_worker = run_worker
"""
