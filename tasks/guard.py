"""Run one command in a session of its own that never outlives the one who asked for it.

    python -m tasks.guard LIMIT_SECONDS COMMAND...

The asker starts this with a new session and keeps the write end of its stdin open. When that closes, for whatever
reason (also `kill -9` of the asker), when SIGTERM comes, or when the limit is over, the whole session is ended. What
the command prints goes where this process's stdout goes: a file, since a pipe would take the training with its reader.

Exit code: the command's, 128 + N if signal N killed it, `TIMED_OUT` past the limit, `ABANDONED` if the asker left.
"""

import os
import select
import signal
import subprocess
import sys
import time

from tasks.processes import end_session

TIMED_OUT = 124
ABANDONED = 125
_TICK = 0.1


def main() -> int:
    limit, command = float(sys.argv[1]), sys.argv[2:]
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + limit
    while (code := child.poll()) is None:
        asker_left = bool(select.select([0], [], [], _TICK)[0]) and not os.read(0, 1)
        if asker_left or told:
            code = ABANDONED
        elif time.monotonic() > deadline:
            code = TIMED_OUT
        if code is not None:
            break
    # Also after a normal end: a command's own children (data loader workers) must not linger.
    end_session(os.getsid(0), but={os.getpid()})
    child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
