"""Stands between a host and a server and writes down what the host sends: `tap.py JOURNAL COMMAND ARG…`.

One line a start, and one a message, with the number of the start. It ends when the server ends, with its exit code;
the server's stdout and stderr are those of the host, untouched.
"""

import os
import subprocess
import sys
import threading
from typing import IO


def pass_on(server: "subprocess.Popen[bytes]", journal: IO[bytes]) -> None:
    assert server.stdin is not None
    for line in sys.stdin.buffer:
        journal.write(b"%d " % server.pid + line)
        try:
            server.stdin.write(line)
            server.stdin.flush()
        except BrokenPipeError:
            return
    server.stdin.close()


def main() -> None:
    with open(sys.argv[1], "ab", buffering=0) as journal:
        server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE)
        journal.write(b"%d started\n" % server.pid)
        threading.Thread(target=pass_on, args=(server, journal), daemon=True).start()
        code = server.wait()
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
