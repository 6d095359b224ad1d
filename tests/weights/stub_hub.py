"""A Hugging Face Hub on loopback: the four endpoints that downloading a model needs."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "c0ffee" * 6 + "beef"


class StubHub:
    """Serves `repositories` ({"org/name": {file name: bytes}}) at `url`; `requests` holds (method, path, Range header).

    A repository in `gated` is refused with a 401. `cut` names a file whose first transfer breaks off half-way.
    With `status` the server answers everything so.
    """

    def __init__(self, repositories, *, gated=(), cut=None, status=None):
        self.repositories = repositories
        self.gated = gated
        self.cut = cut
        self.status = status
        self.requests = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub._answer(self)

            do_HEAD = do_GET  # noqa: N815 (named by http.server)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler):
        path = urlsplit(handler.path).path.strip("/")
        self.requests.append((handler.command, path, handler.headers.get("Range")))
        parts = path.removeprefix("api/models/").split("/")
        repository, rest = "/".join(parts[:2]), parts[2:]
        if self.status is not None:
            self._send(handler, self.status, b"", {})
        elif repository in self.gated:
            code = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}
            self._send(handler, 401, b"", code)
        elif repository not in self.repositories:
            self._send(handler, 404, b"", {"X-Error-Code": "RepoNotFound"})
        elif rest and rest[1] not in ("main", COMMIT):
            self._send(handler, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("api/"):
            self._send_json(handler, self._describe(repository, rest))
        else:
            self._send_file(handler, self.repositories[repository], "/".join(rest[2:]))

    def _describe(self, repository, rest):
        files = self.repositories[repository]
        if rest and rest[0] == "tree":
            return [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
        return {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}

    def _send_file(self, handler, files, name):
        data = files[name]
        start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        is_cut = name == self.cut and handler.command == "GET" and start == 0
        self._send(handler, 206 if start else 200, data[start:], headers, num_bytes=len(data) // 2 if is_cut else None)

    def _send_json(self, handler, value):
        self._send(handler, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, handler, status, body, headers, num_bytes=None):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body[:num_bytes])
        if num_bytes is not None:
            handler.close_connection = True
