"""linger view."""

import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from linger.cli import view
from linger.graph import save
from tests.cli.schemas.test_schemas import schema_of, strict
from tests.graph.files.test_external_data import with_weights
from tests.support.command import run

pytest.importorskip("netron", reason="the extra view is not installed")


def asked(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, b"", {}


def viewed(monkeypatch, folder, name, look, *options):
    """Exit code and output of the command, which is stopped by Ctrl-C after a look at its page."""

    def browser(address):
        def work():
            try:
                look(address)
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=work).start()

    monkeypatch.setattr("webbrowser.open", browser)
    return run("view", name, *options, cwd=folder)


def test_the_page_and_the_model_are_served_to_this_machine_until_ctrl_c(folder, monkeypatch):
    found = {}

    def look(address):
        found["page"] = asked(address)
        found["model"] = asked(f"{address}data/m.onnx")
        found["script"] = asked(f"{address}onnx.js")
        found["other"] = asked(f"{address}data/x.npz")
        found["outside"] = asked(f"{address}%2e%2e/%2e%2e/pip/__init__.py")
        found["stranger"] = asked(address, Host="elsewhere.example")
        found["address"] = address

    done = viewed(monkeypatch, folder, "m.onnx", look)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", found["address"])
    assert found["address"] in done.stdout
    status, page, headers = found["page"]
    assert status == 200
    assert b'<meta name="file" content="/data/m.onnx">' in page
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert found["model"][:2] == (200, (folder / "m.onnx").read_bytes())
    assert found["script"][0] == 200
    assert [found[name][0] for name in ("other", "outside", "stranger")] == [404, 404, 404]


def test_data_files_are_served_and_the_address_is_json(folder, monkeypatch):
    save(with_weights(np.ones(5000, np.float32)), folder / "big.onnx", external_data=True)
    found = []
    done = viewed(monkeypatch, folder, "big.onnx", lambda a: found.append(asked(f"{a}data/big.onnx.data")), "--json")
    assert done.returncode == 0
    assert found[0][:2] == (200, (folder / "big.onnx.data").read_bytes())
    import jsonschema

    jsonschema.validate(json.loads(done.stdout), strict(schema_of("view", folder)))


def test_no_browser_and_a_port_that_is_taken(folder, monkeypatch):
    monkeypatch.setattr("webbrowser.open", pytest.fail)
    monkeypatch.setattr(view._Server, "serve_forever", lambda server: None)
    assert run("view", "m.onnx", "--no-browser", cwd=folder).returncode == 0
    with view._Server(folder, folder / "m.onnx", frozenset(), 0) as server:
        taken = run("view", "m.onnx", "--no-browser", "--port", server.server_address[1], cwd=folder)
    assert taken.returncode == 2
    assert "cannot be used (Address already in use)" in taken.stderr
    assert taken.stderr.count("\n") == 1


def test_ctrl_c_ends_the_command_also_while_a_request_is_taken(folder, monkeypatch):
    def interrupted(server, request, address):
        del server, request, address
        os.kill(os.getpid(), signal.SIGINT)  # it is seen at once: this is the main thread

    def browser(address):
        host, port = address.removeprefix("http://").strip("/").split(":")
        socket.create_connection((host, int(port))).close()

    monkeypatch.setattr("socketserver.ThreadingMixIn.process_request", interrupted)
    monkeypatch.setattr("webbrowser.open", browser)
    assert run("view", "m.onnx", cwd=folder).returncode == 0
