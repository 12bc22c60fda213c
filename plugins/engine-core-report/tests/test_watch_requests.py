"""`engine-core watch`: what its server answers to whom, and the command."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.errors import ArgumentError
from engine_core_report import PageServer, live
from engine_core_report.live import MOST_STREAMS

from .left_runs import write_run
from .watching import RUNNING, ask, served


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(live, "PERIOD_S", 0.05)
    monkeypatch.setattr(live, "REST", 0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "localhost:8080"}, 200),
        ({"Host": "[::1]:9"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Host": "127.0.0.1.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:9", "Origin": "http://localhost:9"}, 200),
        ({"Host": "localhost:9", "Origin": "http://localhost:8080"}, 403),
        ({"Host": "page.example@127.0.0.1"}, 403),
        ({"Host": "127.0.0.1/page.example"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 200),
        ({"Origin": "https://page.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_only_names_of_this_machine_and_no_page_of_others_get_an_answer(tmp_path, headers, status):
    with served(write_run(tmp_path / "run")) as server:
        for path in ("/", "/data.json", "/events"):
            assert ask(server, path, method="HEAD", **headers)[0] == status


def test_no_other_path_is_served(tmp_path):
    with served(write_run(tmp_path / "run")) as server:
        for path in ("/x", "/manifest.json", "/../manifest.json", "/%2e%2e/", "/?", "/data.json/", "*"):
            assert ask(server, path)[0] == 404


def test_other_methods_are_refused_and_head_has_no_body(tmp_path):
    with served(write_run(tmp_path / "run")) as server:
        assert ask(server, method="HEAD") == (200, "")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, method=method)[0] == 501


def test_a_seventeenth_stream_is_refused_until_one_ends(tmp_path, listen):
    with served(write_run(tmp_path / "run", **RUNNING)) as server:
        streams = [listen(server) for _ in range(MOST_STREAMS)]
        assert {stream.status for stream in streams} == {200}
        assert listen(server).status == 503
        assert ask(server)[0] == 200
        streams[0].close()
        deadline = time.monotonic() + 10
        while (later := listen(server)).status == 503:  # it looks once a period whether browsers are there
            assert time.monotonic() < deadline
        assert later.status == 200


def test_it_listens_on_this_machine_alone(tmp_path):
    with served(write_run(tmp_path / "run")) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"


def test_what_cannot_be_is_refused_with_exit_code_2(tmp_path):
    write_run(tmp_path / "one")
    (tmp_path / "empty").mkdir()

    def refused(*arguments):
        result = CliRunner().invoke(main, ["watch", *map(str, arguments)])
        assert result.exit_code == 2
        return result.output

    assert "holds no manifest.json" in refused(tmp_path / "empty")
    assert "does not exist" in refused(tmp_path / "none")
    assert "not in the range" in refused(tmp_path / "one", "--port", 65536)
    assert "Missing argument 'RUN...'" in refused()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} can't be had" in refused(tmp_path / "one", "--port", port)
        with pytest.raises(ArgumentError, match="can't be had"):
            PageServer([tmp_path / "one"], port)


@pytest.mark.skipif(os.name == "nt", reason="SIGINT can't be sent to one process there")
def test_the_command_prints_its_address_first_and_ctrl_c_ends_it_without_a_word(tmp_path):
    folder = write_run(tmp_path / "run", **RUNNING)
    blocked = "import sys; sys.modules['torch'] = None; from engine_core.cli import main; main(['watch', sys.argv[1]])"
    command = [sys.executable, "-c", blocked, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline()
        host, _, port = address.removeprefix("http://").rstrip("/\n").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/events")  # which ends, too
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (out, err, process.returncode) == ("", "", 0)
