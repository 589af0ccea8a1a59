"""Passes lines on from standard input to standard error, but the native log's.

Run as a program of its own, by its path: a process that dies at once cannot take along
what it has just written, such as why it dies.
"""

import os
import re
import signal

# INFO, WARNING and ERROR as written in C++; what is fatal is passed on.
_NATIVE = re.compile(
    rb"(?:[IWE]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IWE] ).*\.(?:cc|cu|h|inc):\d+\]"
    rb"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|To enable the following instructions: .* rebuild TensorFlow"
)


def main() -> None:
    """Go on in a process that is nobody's child, until no one writes any more."""
    # Ctrl-C is for those who write.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A program that waits for all its children must not wait for this one.
    if os.fork():
        os._exit(0)
    with open(0, "rb") as lines, open(2, "wb", buffering=0) as screen:
        for line in lines:
            if not _NATIVE.match(line):
                screen.write(line)


if __name__ == "__main__":
    main()
