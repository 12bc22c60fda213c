"""A server of `engine-core watch` in this process, and what a browser asks it."""

import http.client
import json
import socket
import threading
from contextlib import contextmanager

from engine_core_report import PageServer

from .left_runs import EVENTS, METRICS

RUNNING = {"events": EVENTS[:2], "results": None, "metrics": METRICS[:3]}


@contextmanager
def served(*folders):
    with PageServer(folders) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def data_of(server):
    status, text = ask(server, "/data.json")
    assert status == 200
    return json.loads(text)


class Stream:
    """What a browser hears at /events."""

    def __init__(self, server, timeout_s=10):
        self.socket = socket.create_connection(server.server_address, timeout_s)
        self.socket.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        while self.file.readline().strip():
            pass

    def next(self):
        """Return the kind of the next event."""
        kind = "changed"
        while line := self.file.readline().decode().strip():
            kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
        return kind

    def close(self):
        self.file.close()
        self.socket.close()
