"""An S3 server for tests: moto's, behind a gate that answers late, wrongly or not at all."""

import threading
import urllib.request
from contextlib import contextmanager

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

UNAVAILABLE = b"<Error><Code>ServiceUnavailable</Code><Message>down for a test</Message></Error>"


class Silent(WSGIRequestHandler):
    def log(self, type, message, *args):
        pass


class S3Server:
    """A server with one bucket. `refuses` says which requests get a 503, `holds` which wait until
    `released`, `forgets` which are answered as if they were done."""

    def __init__(self):
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=Silent
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.port}"
        self.behave()

    def behave(self):
        """No fault any more."""
        self.refuses = self.holds = self.forgets = lambda method, path: False
        self.released = threading.Event()
        self.requests = []

    def new_bucket(self, name):
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=t/1/us-east-1/s3/x")
        urllib.request.urlopen(request).close()

    def close(self):
        self.released.set()
        self._server.shutdown()
        self._thread.join()

    def _answer(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        if self.holds(method, path):
            self.released.wait(60)
        if self.refuses(method, path):
            start_response("503 Service Unavailable", [("Content-Type", "application/xml")])
            return [UNAVAILABLE]
        if self.forgets(method, path):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("200 OK", [("ETag", '"0"')])
            return [b""]
        return self._app(environ, start_response)


@contextmanager
def served():
    server = S3Server()
    try:
        yield server
    finally:
        server.close()


def is_put(method, path):
    return method == "PUT"


def always(method, path):
    return True
