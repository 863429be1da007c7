"""How a process has another one forked by the server of tests/forked.py. Every stage begins with it: few imports."""

import json
import os
import signal
import socket
import struct


def ask(connection: socket.socket, server: str, request: dict, descriptors: tuple[int, ...] = (0, 1, 2)) -> int:
    """The exit status of a process that the server forks; the signal that ended it is negative."""
    connection.connect(f"\0{server}")
    socket.send_fds(connection, [b"\n"], descriptors)
    content = json.dumps(request).encode()
    connection.sendall(struct.pack("I", len(content)) + content)
    answer = connection.recv(4)
    assert answer, "the server of tests/forked.py has ended"
    return struct.unpack("i", answer)[0]


def hand_over(code: str, words: list[str]) -> None:
    """Have the server fork a process that does what this one was started for: `code`, or the module words[0]."""
    with socket.socket(socket.AF_UNIX) as connection:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
        request = {"code": code, "words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        status = ask(connection, os.environ["FORK_SERVER"], request | {"parent": os.getppid(), "group": os.getpgrp()})
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
