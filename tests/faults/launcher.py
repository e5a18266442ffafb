"""A process that starts programs by forking, for tests that start and kill many of them.

Importing what a program needs takes most of its start; here that is done once. Run by
`test_kill.py` with a socket as its standard input. A message is the name of a program and its
arguments, with the file that becomes its standard output; the answer is its process id.
"""

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import killed_writer
import looping_compactor

PROGRAMS = {"killed_writer": killed_writer.main, "looping_compactor": looping_compactor.main}


def run(program, arguments, out):
    """In the child: the program, with nothing of this process but what it has imported."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(out, 1)
    os.close(out)
    try:
        PROGRAMS[program](*arguments)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who was killed is gone at once
    with socket.socket(fileno=0) as asked:
        while True:
            message, files, *_ = socket.recv_fds(asked, 1 << 16, 1)
            if not message:
                return
            program, arguments = json.loads(message)
            pid = os.fork()
            if pid == 0:
                os.dup2(os.open(os.devnull, os.O_RDONLY), asked.detach())
                run(program, arguments, *files)
            os.close(files[0])
            asked.sendall(str(pid).encode())


main()
