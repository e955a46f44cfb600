"""What clients do wrong, or on purpose: each is answered by name or hung up on, and nobody else has to wait for it."""
import json
import os
import socket
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from operator_kit import Service, fleet, read_answer  # noqa: E402

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(devices=1, rounds=1)
        cls.service.start_server()

    @classmethod
    def tearDownClass(cls):
        cls.service.close()

    def assert_prompt(self):
        """Somebody else is answered at once."""
        began = time.monotonic()
        self.assertEqual(self.service.ask("/livez")[0], 200)
        self.assertLess(time.monotonic() - began, 2)

    def test_bad_requests_are_refused_by_name(self):
        head = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
        cases = {
            b"\r\n\r\n": (400, "malformed"),
            b"GET\r\n\r\n": (400, "malformed"),
            b"GET /livez\r\n\r\n": (400, "malformed"),
            b"GET  /livez HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /livez HTTP/2.0\r\nHost: x\r\n\r\n": (505, "unknown_version"),
            b"GET /livez HTTP/1.1\r\n\r\n": (400, "malformed"),  # no Host
            b"GET http://x/livez HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"BREW /livez HTTP/1.1\r\nHost: x\r\n\r\n": (501, "malformed"),
            b"G\x01T /livez HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"PUT /livez HTTP/1.1\r\nHost: x\r\n\r\n": (405, "usage"),
            b"POST /livez HTTP/1.1\r\nHost: x\r\n\r\n": (405, "usage"),
            b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n": (404, "not_found"),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n": (404, "not_found"),
            b"GET /livez/ HTTP/1.1\r\nHost: x\r\n\r\n": (404, "not_found"),
            b"GET //livez HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /v1/../livez HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /v1/%2e%2e/livez HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /v1/jobs/acme/" + b"x" * 100 + b" HTTP/1.1\r\nHost: x\r\n\r\n": (404, "not_found"),
            b"GET /v1/jobs/acme/none HTTP/1.1\r\nHost: x\r\n\r\n": (404, "unknown_job"),
            b"GET /v1/jobs/acme/digits/rounds/one HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /v1/jobs/acme/digits/rounds/9 HTTP/1.1\r\nHost: x\r\n\r\n": (404, "not_found"),
            b"GET /v1/clients?limit=1001 HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /v1/clients?limit=-1 HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /v1/clients?limit=1&limit=2 HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            b"GET /v1/clients?limit HTTP/1.1\r\nHost: x\r\n\r\n": (400, "malformed"),
            head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n": (400, "malformed"),
            head + b"Content-Length: 5, 5\r\n\r\n": (400, "malformed"),
            head + b"Content-Length: 99999999999999999999\r\n\r\n": (413, "too_large"),
            head + b"Content-Length: 65537\r\n\r\n": (413, "too_large"),
            head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n": (501, "malformed"),
            head + b"Expect: something\r\n\r\n": (417, "malformed"),
            head + b"X : y\r\n\r\n": (400, "malformed"),
            head + b"X: a\r\n b\r\n\r\n": (400, "malformed"),  # folded
            head + b"X: a\nY: b\r\n\r\n": (400, "malformed"),  # a bare line feed
            head + b"X: a\x00b\r\n\r\n": (400, "malformed"),
            head + b"Host: y\r\n\r\n": (400, "malformed"),
            head + b"X: y\r\n" * 64 + b"\r\n": (431, "too_large"),
            head + b"X: " + b"y" * 9000 + b"\r\n\r\n": (431, "too_large"),
            b"GET /" + b"x" * 9000: (431, "too_large"),
        }
        for data, (code, name) in cases.items():
            with self.subTest(data[:60]):
                status, text = self.service.say(data)
                answer = json.loads(text)
                self.assertEqual((status, answer["error"]), (code, name), text)
                self.assertTrue(answer["detail"])
        self.assert_prompt()

    def test_405_says_what_is_allowed(self):
        code, fields, _ = self.service.ask("/livez", "DELETE")
        self.assertEqual((code, fields["Allow"]), (405, "GET, HEAD"))
        code, fields, _ = self.service.ask("/v1/jobs/acme/digits/pause")
        self.assertEqual((code, fields["Allow"]), (405, "POST"))

    def test_head_is_get_without_the_body(self):
        code, fields, text = self.service.ask("/livez", "HEAD")
        self.assertEqual((code, text), (200, ""))
        self.assertEqual(int(fields["Content-Length"]), len(self.service.ask("/livez")[2]))

    def test_a_body_that_nobody_asked_for_changes_nothing(self):
        code, _, _ = self.service.ask("/v1/jobs/acme/digits/resume", "POST", b"{not json" * 1000)
        self.assertEqual(code, 200)

    def test_who_expects_100_gets_it(self):
        with self.service.bare() as stream:
            stream.sendall(b"POST /v1/jobs/acme/digits/resume HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            self.assertEqual(stream.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
            stream.sendall(b"{}")
            self.assertEqual(read_answer(stream)[0], 200)

    def test_a_request_in_single_bytes_is_taken(self):
        with self.service.bare() as stream:
            for byte in GET:
                stream.sendall(bytes([byte]))
            self.assertEqual(read_answer(stream)[0], 200)

    def test_one_request_a_connection(self):
        status, text = self.service.say(GET + GET)
        self.assertEqual((status, text.count("HTTP/1.1")), (200, 0))

    def test_200_idle_connections_keep_nobody_out(self):
        idle = [self.service.bare() for _ in range(200)]
        try:
            for _ in range(5):
                self.assert_prompt()
        finally:
            for stream in idle:
                stream.close()

    def test_a_head_or_a_body_that_trickles_is_ended_in_time(self):
        slow = {"head": (self.service.bare(), b"GET /livez HTTP/1.1\r\nHost: x\r\n"),
                "body": (self.service.bare(), b"POST /v1/jobs/acme/digits/resume HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")}
        began = time.monotonic()
        for stream, start in slow.values():
            stream.sendall(start)
        ended = {}
        while len(ended) < len(slow) and time.monotonic() - began < 20:
            for name, (stream, _) in slow.items():
                if name in ended:
                    continue
                try:
                    stream.sendall(b"X-a: b\r\n")
                    stream.settimeout(0.2)
                    ended[name] = (time.monotonic() - began, stream.recv(12))
                except socket.timeout:
                    pass
            self.assert_prompt()
        for name, (seconds, said) in ended.items():
            self.assertEqual(said, b"HTTP/1.1 408", name)
            self.assertTrue(9 < seconds < 13, (name, seconds))  # ten seconds for a request, however busily it trickles
        self.assertEqual(sorted(ended), ["body", "head"])
        for stream, _ in slow.values():
            stream.close()

    def test_who_never_reads_holds_up_nobody(self):
        silent = []
        for _ in range(30):
            stream = self.service.bare()
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            silent.append(stream)
        for _ in range(5):
            self.assert_prompt()
        for stream in silent:
            stream.close()
        self.service.wait_for(lambda: 'sheaf_operator_connections{listener="local"} 1\n' in self.service.ask("/metrics")[2], 10)


class Paths(unittest.TestCase):
    """Where the socket may stand."""

    def fails(self, service):
        import subprocess
        done = subprocess.run([fleet.SHEAFD, "--config", service.config], text=True, capture_output=True, timeout=30)
        return done.returncode, done.stderr

    def test_a_path_that_no_socket_may_have_is_refused_by_name(self):
        service = Service(devices=1, rounds=1)
        self.addCleanup(service.close)
        with open(service.config, encoding="utf-8") as file:
            text = file.read().replace("/state\n", "/" + "s" * 100 + "\n")
        with open(service.config, "w", encoding="utf-8") as file:
            file.write(text)
        code, said = self.fails(service)
        self.assertEqual(code, 3)
        self.assertIn("the path of a socket may have 107", said)

    def test_a_folder_that_others_may_write_is_refused(self):
        service = Service(devices=1, rounds=1)
        self.addCleanup(service.close)
        os.mkdir(service.state)
        os.chmod(service.state, 0o777)
        code, said = self.fails(service)
        self.assertEqual(code, 3)
        self.assertIn("chmod 700", said)

    def test_a_bad_address_is_refused_by_name(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for extra, code, text in (('operator: {listen: "http://127.0.0.1:1"}\n', 3, "expected https://HOST:PORT"),
                                      ('operator: {listen: "https://127.0.0.1"}\n', 3, "expected https://HOST:PORT"),
                                      ('operator: {listen: "https://127.0.0.1:0/x"}\n', 3, "expected https://HOST:PORT"),
                                      ('operator: {listen: "https://203.0.113.1:0"}\n', 3, "cannot listen"),
                                      ("enrolment: {authority: /nowhere}\n", 3, "expected operator.listen too"),
                                      (f'operator: {{listen: "https://127.0.0.1:{taken.getsockname()[1]}"}}\n', 4,
                                       "address_in_use")):
                with self.subTest(extra):
                    service = Service(devices=1, rounds=1, extra=extra)
                    self.addCleanup(service.close)
                    found, said = self.fails(service)
                    self.assertEqual(found, code, said)
                    self.assertIn(text, said)

    def test_what_is_no_socket_is_left_alone(self):
        service = Service(devices=1, rounds=1)
        self.addCleanup(service.close)
        os.mkdir(service.state, 0o700)
        with open(service.socket_path, "w", encoding="ascii") as file:
            file.write("mine")
        code, said = self.fails(service)
        self.assertNotEqual(code, 0)
        self.assertIn("is no socket", said)
        with open(service.socket_path, encoding="ascii") as file:
            self.assertEqual(file.read(), "mine")


if __name__ == "__main__":
    unittest.main()
