"""Real servers of one thread each, on loopback: HTTP that keeps what is posted, and SMTP with STARTTLS and a login."""

from __future__ import annotations

import base64
import http.server
import json
import socketserver
import ssl
import threading
from contextlib import contextmanager


@contextmanager
def served(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Hook(http.server.HTTPServer):
    """Keeps the headers and the body of each post; `answers` are the codes of the next ones, then 200."""

    def __init__(self, port=0, *answers, headers=(), text=""):
        self.posts, self.answers, self.headers, self.text = [], list(answers), dict(headers), text
        super().__init__(("127.0.0.1", port), _HookHandler)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/hook/T00"

    @property
    def events(self):
        return [json.loads(body)["event"] for _, body in self.posts]


class _HookHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((dict(self.headers), body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    def log_message(self, *_):
        pass


class Smtp(socketserver.ThreadingTCPServer):
    """Keeps mail; `certificate` makes it offer STARTTLS, `refuses` are recipients that it does not know."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, certificate=None, refuses=()):
        self.certificate, self.refuses = certificate, refuses
        self.mail, self.logins, self.encrypted = [], [], []
        super().__init__(("127.0.0.1", 0), _SmtpHandler)

    @property
    def place(self):
        return f"localhost:{self.server_address[1]}"


class _SmtpHandler(socketserver.StreamRequestHandler):
    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())

    def finish(self):
        super().finish()
        self.request.close()

    def handle(self):
        self.say("220 test")
        secure, people = False, []
        while line := self.rfile.readline().decode().strip():
            verb, _, rest = line.partition(" ")
            if verb.upper() == "EHLO":
                self.say("250-test")
                self.say("250 AUTH PLAIN" if secure or not self.server.certificate else "250 STARTTLS")
            elif verb == "STARTTLS":
                self.say("220 go on")
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.server.certificate)
                self.request = context.wrap_socket(self.request, server_side=True)
                self.setup()
                secure = True
            elif verb == "AUTH":
                self.server.logins.append(base64.b64decode(rest.split()[1]).decode().split("\0")[1:])
                self.say("235 yes" if self.server.logins[-1][1] == "right" else "535 no such login")
            elif verb.lower() == "rcpt":
                known = not any(address in rest for address in self.server.refuses)
                people.append(rest)
                self.say("250 yes" if known else "550 nobody")
            elif verb.lower() == "data":
                self.say("354 go on")
                self.server.mail.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                self.server.encrypted.append(secure)
                self.say("250 yes")
            elif verb.lower() == "quit":
                self.say("221 bye")
                return
            else:
                self.say("250 yes")
