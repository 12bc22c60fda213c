"""The page of runs served to this machine, where it follows them. Knows what was read, and HTTP; serves no file."""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from engine_core.arguments import path_of
from engine_core.errors import ArgumentError

from .page import render, update_of
from .reading import RunData, RunReader

HOST = "127.0.0.1"
_NAME = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
"""What the browser may call this machine; a page of another name, which leads here, is refused."""
_OWN = (None, "same-origin", "none")
"""Where a request may come from, as browsers say: the page itself, or a person."""
MOST_STREAMS = 16
PERIOD_S = 1.0
"""How often a stream looks at the files, at most."""
REST = 10
"""How much longer than it reads the server rests, so that the training has the processor."""
_ALIVE_AFTER_S = 15.0


class Watched:
    """Runs that are read when their files have changed, once for all who ask.

    Args:
        paths: of each run the folder or the manifest.

    Raises:
        ArgumentError: (a ValueError) if one is not a run.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._readers = [RunReader(path_of(path).absolute()) for path in paths]  # the working directory may change
        self._lock = threading.Lock()
        self._took_s = 0.0
        self._stamp = self.stamp()
        self._good = [reader.read() for reader in self._readers]
        self._runs = self._good

    @property
    def period_s(self) -> float:
        """How long to wait before the files are looked at again."""
        return max(PERIOD_S, REST * self._took_s)

    def stamp(self) -> tuple[object, ...]:
        """Return what changes whenever a file does."""
        return tuple(reader.stamp() for reader in self._readers)

    def runs(self) -> list[RunData]:
        """Return the runs as they are; one that can't be read is as it was, and a warning says why."""
        with self._lock:
            stamp = self.stamp()
            if stamp != self._stamp:
                self._stamp, began_s = stamp, time.perf_counter()
                self._runs = [self._read(place) for place in range(len(self._readers))]
                self._took_s = time.perf_counter() - began_s
            return self._runs

    def _read(self, place: int) -> RunData:
        try:
            self._good[place] = self._readers[place].read()
        except ArgumentError as error:  # the manifest was taken away, or is of a newer engine-core
            before = self._good[place]
            return replace(before, warnings=[f"the page shows this run as it was: {error}", *before.warnings])
        return self._good[place]

    def has_ended(self) -> bool:
        """Return whether all runs have told their end."""
        return all(run.has_ended for run in self.runs())


class PageServer(ThreadingHTTPServer):
    """Serves the page of runs to this machine at `address`, and the page follows them.

    Args:
        paths: of each run the folder or the manifest.
        port: 0 takes a free one.

    Raises:
        ArgumentError: (a ValueError) if one is not a run, or the port can't be had.
    """

    daemon_threads = True
    allow_reuse_address = False  # on some systems it would share the port of another program

    def __init__(self, paths: Sequence[Path], port: int = 0) -> None:
        self.watched, self.closing = Watched(paths), threading.Event()
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ArgumentError(f"port {port} can't be had: {why}; choose another, or leave it out") from None

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def server_close(self) -> None:
        """End the streams, and give the port back."""
        self.closing.set()
        super().server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing where a browser has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "engine-core", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds; of a connection without a word

    def do_GET(self) -> None:
        """Answer a request."""
        watched = self.server.watched
        if not self._is_from_here():
            self._refuse(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._send("text/html; charset=utf-8", render(watched.runs(), follows=True))
        elif self.path == "/data.json":
            self._send("application/json", update_of(watched.runs()))
        elif self.path == "/events":
            self._stream()
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815  http.server looks for this name

    def _is_from_here(self) -> bool:
        """Is the page asked for by a name of this machine, and its data by the page alone?"""
        headers = self.headers
        hosts, origin = headers.get_all("Host", []), headers.get("Origin")
        if len(hosts) != 1 or not _NAME.fullmatch(hosts[0]) or origin not in (None, f"http://{hosts[0]}"):
            return False
        return headers.get("Sec-Fetch-Site") in _OWN or headers.get("Sec-Fetch-Mode") == "navigate"  # a link

    def _stream(self) -> None:
        if not self.server.streams.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            self.close_connection = True
            stamp = self.server.watched.stamp()  # before the browser asks for what is there
            self._head("text/event-stream")
            if self.command == "GET":
                self._tell_changes(stamp)
        except OSError:  # the browser has gone
            return
        finally:
            self.server.streams.release()

    def _tell_changes(self, stamp: tuple[object, ...]) -> None:
        """Tell each change of the files since `stamp`, and the end of all runs."""
        watched, had_ended, told_s = self.server.watched, False, time.monotonic()
        while True:
            has_ended = watched.has_ended()
            now = watched.stamp()
            if now != stamp:
                text = "data: changed\n\n"
            elif time.monotonic() - told_s > _ALIVE_AFTER_S:
                text = ": alive\n\n"
            else:
                text = ""
            if has_ended and not had_ended:
                text += "event: end\ndata: ended\n\n"
            stamp, had_ended = now, has_ended
            if text:
                self.wfile.write(text.encode())
                told_s = time.monotonic()
            if self.server.closing.wait(watched.period_s) or self._has_gone():
                return

    def _has_gone(self) -> bool:
        """Has the browser closed the stream?"""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _head(self, kind: str, length: int | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if length is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self._head(kind, len(body))
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_error(status)

    def log_message(self, *_: object) -> None:
        """Say nothing: the address is the only line of the command."""
