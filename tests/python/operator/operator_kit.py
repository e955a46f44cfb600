"""A running sheafd for the operator channel's tests, and HTTP clients that are not ours: Python's, and bare sockets."""
import http.client
import json
import os
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
import fleet  # noqa: E402


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=20):
        super().__init__("sheafd", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Service(fleet.Fleet):
    """A fleet whose service does not end by itself."""

    def __init__(self, extra="", **options):
        super().__init__(**options)
        self.extra = extra
        self.write_server_config()

    def write_server_config(self):
        super().write_server_config()
        with open(self.config, encoding="utf-8") as file:
            text = file.read().replace("exit_when_done: true", "exit_when_done: false")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text + getattr(self, "extra", ""))

    def close(self):
        """A service that still runs must end well: sanitizers speak through its exit code."""
        code, said = 0, ""
        if self.server is not None and self.server.poll() is None:
            code = self.stop_server()
            said = self.server.stderr.read()
        super().close()
        assert code == 0, (code, said)

    @property
    def socket_path(self):
        return os.path.join(self.state, "operator.sock")

    def connection(self):
        return UnixConnection(self.socket_path)

    def ask(self, path, method="GET", body=None, headers=None):
        """(HTTP status, headers, text) over the Unix socket."""
        return ask(self.connection(), path, method, body, headers)

    def get(self, path):
        code, _, text = self.ask(path)
        assert code == 200, (path, code, text)
        return json.loads(text)

    def post(self, path):
        code, _, text = self.ask(path, "POST")
        return code, json.loads(text)

    def job(self):
        return self.get(f"/v1/jobs/{fleet.TENANT}/{fleet.JOB}")

    def bare(self):
        """A socket that says whatever a test wants."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(self.socket_path)
        stream.settimeout(30)
        return stream

    def tool(self, *arguments):
        return subprocess.run([fleet.SHEAF, *arguments, "--state", self.state], text=True, capture_output=True, timeout=60)

    def say(self, data):
        """What a bare client that sends these bytes hears until the end: (HTTP status, text)."""
        with self.bare() as stream:
            stream.sendall(data)
            return read_answer(stream)


def ask(connection, path, method="GET", body=None, headers=None):
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def read_answer(stream):
    heard = b""
    while True:
        part = stream.recv(65536)
        if not part:
            break
        heard += part
    head, _, body = heard.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return status, body.decode()
