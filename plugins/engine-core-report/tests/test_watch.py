"""`engine-core watch`: how its page follows runs that grow, are cut and end; what its server answers to whom."""

import http.client
import itertools
import json
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
from engine_core_report import PageServer, live, read_run
from engine_core_report.live import MOST_STREAMS, Watched

from .left_runs import MANIFEST, append, write_run
from .report_pages import Page
from .watching import RUNNING, ask, data_of, served


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(live, "PERIOD_S", 0.05)
    monkeypatch.setattr(live, "REST", 0)


def losses(data):
    return next(chart for chart in data["charts"] if chart["title"] == "loss")["lines"][0]["y"]


def test_the_page_is_that_of_the_report_and_follows(tmp_path):
    folder = write_run(tmp_path / "run", **RUNNING)
    with served(folder) as server:
        status, html = ask(server)
        data = data_of(server)
    page = Page(html)
    assert status == 200
    assert page.data["charts"] == data["charts"]
    assert dict(page.elements)["html"] == {"lang": "en", "data-follows": None}
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "connect-src 'self'" in policy and "unsafe" not in policy
    assert data["ended"] is False
    assert Page(data["content"]).ids[:4] == ["main", "summary", "h-summary", "curves"]


def test_values_come_as_the_files_grow_and_a_line_that_is_being_written_waits(tmp_path):
    folder = write_run(tmp_path / "run", **RUNNING)
    with served(folder) as server:
        assert losses(data_of(server)) == [2.0, 1.0]
        append(folder / "metrics.jsonl", '{"step": 3, "seconds": 4.0, "train/loss"')
        assert losses(data_of(server)) == [2.0, 1.0]
        append(folder / "metrics.jsonl", ": 0.5}\n")
        assert losses(data_of(server)) == [2.0, 1.0, 0.5]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_files_that_a_resumed_run_cuts_are_read_anew(tmp_path, kept):
    folder = write_run(tmp_path / "run", **RUNNING)
    file = folder / "metrics.jsonl"
    watched = Watched([folder])
    whole = file.read_text().splitlines(keepends=True)
    again = [line.replace("1.0}", "9.0}").replace("2.0, ", "2.25, ") for line in whole[kept:]]
    # Longer than before, so that only its content tells that it was cut.
    file.write_text("".join([*whole[:kept], *again, '{"step": 4, "seconds": 9.0, "train/loss": 0.25}\n']))
    found, anew = watched.runs()[0], read_run(folder)
    assert found.series == anew.series
    assert found.last == anew.last
    file.unlink()
    assert watched.runs()[0].series == {}


def test_a_run_that_has_logged_nothing_is_an_empty_page_that_waits(tmp_path, listen):
    folder = write_run(tmp_path / "run", metrics=None, events=None, results=None, timing=None)
    with served(folder) as server:
        stream = listen(server)
        assert data_of(server)["charts"] == []
        write_run(tmp_path / "other")
        for name in ("metrics.jsonl", "results.json"):
            (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
        heard = []
        while "end" not in heard:
            heard.append(stream.next())
        assert heard[0] == "changed"
        data = data_of(server)
    assert data["ended"] is True
    assert [chart["title"] for chart in data["charts"]] == ["loss", "lr"]


def test_a_stream_is_silent_while_nothing_grows_and_tells_the_end_once(tmp_path, listen):
    folder = write_run(tmp_path / "run", **RUNNING)
    with served(folder) as server:
        with pytest.raises(TimeoutError):
            listen(server, timeout_s=0.5).next()
        ended = listen(server)
        append(folder / "metrics.jsonl", json.dumps({"kind": "fail", "step": 3, "seconds": 5.0}) + "\n")
        assert [ended.next(), ended.next()] == ["changed", "end"]
        append(folder / "metrics.jsonl", json.dumps({"kind": "resume", "step": 2, "seconds": 6.0}) + "\n")
        assert ended.next() == "changed"
        assert data_of(server)["ended"] is False


def test_a_manifest_that_goes_away_leaves_the_page_as_it_was(tmp_path):
    folder = write_run(tmp_path / "run", **RUNNING)
    with served(folder) as server:
        before = data_of(server)
        (folder / "manifest.json").unlink()
        after = data_of(server)
        assert after["charts"] == before["charts"]
        assert "the page shows this run as it was: " in after["content"]
        (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "seed": 7}))
        assert "seed 7" in data_of(server)["content"]


def test_a_run_that_can_not_be_read_any_more_does_not_hold_up_the_others(tmp_path):
    gone, other = (write_run(tmp_path / name, **RUNNING) for name in ("gone", "other"))
    with served(gone, other) as server:
        (gone / "manifest.json").write_text(json.dumps({**MANIFEST, "schema": 99}))
        append(other / "metrics.jsonl", '{"step": 9, "seconds": 9.0, "train/loss": 0.125}\n')
        data = data_of(server)
        assert "schema 99" in data["content"]
        lines = {line["name"]: line["y"][-1] for line in data["charts"][0]["lines"]}
        assert (lines["gone"], lines["other"]) == (1.0, 0.125)
        assert data_of(server)["content"].count("as it was") == 1


def test_a_run_given_by_a_relative_path_is_followed_wherever_the_program_goes(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", **RUNNING)
    monkeypatch.chdir(tmp_path)
    watched = Watched(["run"])
    monkeypatch.chdir("/")
    append(folder / "metrics.jsonl", '{"step": 9, "seconds": 9.0, "train/loss": 0.125}\n')
    assert watched.runs()[0].last["train/loss"] == 0.125


def test_a_stream_looks_at_the_files_once_a_period(tmp_path, listen, monkeypatch):
    monkeypatch.setattr(live, "PERIOD_S", 0.4)
    looks = []
    stamp = Watched.stamp
    monkeypatch.setattr(Watched, "stamp", lambda self: looks.append(time.monotonic()) or stamp(self))
    with served(write_run(tmp_path / "run", **RUNNING)) as server, pytest.raises(TimeoutError):
        listen(server, timeout_s=1.0).next()
    apart = [later - earlier for earlier, later in itertools.pairwise(looks) if later - earlier > 0.05]
    assert 1 <= len(apart) <= 4
    assert min(apart) >= 0.35


def test_changes_are_told_at_most_once_a_period_and_a_long_reading_lengthens_it(tmp_path, monkeypatch):
    watched = Watched([write_run(tmp_path / "run", **RUNNING)])
    monkeypatch.setattr(live, "PERIOD_S", 1.0)
    monkeypatch.setattr(live, "REST", 10)
    assert watched.period_s == 1.0
    watched._took_s = 0.5
    assert watched.period_s == 5.0


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
