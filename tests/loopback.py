"""A web server on loopback, for tests of downloads."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """A web server on loopback that knows ranges, and misbehaves as told."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.seen = []  # of every GET: path, Range, If-Range
        self.cuts = []  # after how many bytes of a body to hang up, one for each GET
        self.always_cut = None
        self.statuses = []  # to answer with, one for each GET
        self.ranges = True
        self.dates_only = False  # no ETag
        self.heeds_if_range = True
        self.announced = None  # a Content-Length
        self.more_headers = {}
        self.gate = threading.Event()  # bodies wait for it, once `cuts` bytes are sent
        self.gate.set()

    def url(self, file):
        return f"http://127.0.0.1:{self.server_port}/official/{file}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        body = self.server.files.get(self.path)
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", self.server.announced or len(body or b""))
        self.end_headers()

    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.seen.append((self.path, asked, self.headers.get("If-Range")))
        if server.statuses:
            return self.send_error(server.statuses.pop(0))
        if self.path not in server.files:
            return self.send_error(404)
        body = server.files[self.path]
        date = f"Mon, 01 Jan 2024 00:00:{len(body) % 60:02d} GMT"
        version = date if server.dates_only else f'"{hashlib.md5(body).hexdigest()}"'
        stale = server.heeds_if_range and self.headers.get("If-Range") not in (None, version)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        if not server.ranges or stale:
            start = 0
        if start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", server.announced or len(body) - start)
        self.send_header("Last-Modified" if server.dates_only else "ETag", version)
        for name, value in server.more_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.send_body(body[start:])

    def send_body(self, body):
        cut = self.server.always_cut or (self.server.cuts.pop(0) if self.server.cuts else None)
        self.wfile.write(body[: cut or (0 if not self.server.gate.is_set() else len(body))])
        if not self.server.gate.is_set():
            self.wfile.flush()
            self.server.gate.wait(20)
            self.wfile.write(body[cut or 0 :])
