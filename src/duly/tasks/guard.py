"""A process that outlives its worker for a moment, to kill what that leaves: `python guard.py`.

Its standard input names process groups, `+group` and `-group`, a line each. When that ends, the worker has ended,
killed or not, and the groups that are left are killed. It imports nothing of Duly, to be small.
"""

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are the worker's to heed
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
