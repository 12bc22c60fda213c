"""`explain` prints what was asked for, whatever plugins print while they are imported and made."""

import json
import os
import subprocess
import sys

import pytest

from engine_core.cli import main

MODULE = """
    import ctypes, os, subprocess, sys
    from engine_core import Algorithm, AlgorithmMetadata

    {at_import}

    class Loud(Algorithm):
        metadata = AlgorithmMetadata(events=("init",))
        match = apply = lambda self, *arguments: None

        def __init__(self):
            {when_made}
"""
CHILD = "subprocess.run([sys.executable, '-c', 'print(\"loud\")'], check=True)"
WAYS = [
    "print('loud')",
    CHILD,
    "os.write(1, b'loud\\n')",
    "ctypes.CDLL(None).puts(b'loud')",
    "sys.__stdout__.write('loud\\n')",
]


@pytest.fixture
def loud(install, tmp_path):
    """Return `loud(at_import, when_made)`: stdout and stderr of `explain --json` in a process of its own."""

    def tell(at_import="", when_made="pass", shell=""):
        if not (tmp_path / "site-packages" / "loud_plugin-1.0.dist-info").exists():
            text = MODULE.format(at_import=at_import, when_made=when_made)
            install("loud-plugin", {"algorithms": {"loud": "loud_module:Loud"}}, {"loud_module": text})
        # Unbuffered Python has an unbuffered C library, which would hold nothing back.
        environment = {**os.environ, "PYTHONUNBUFFERED": ""}
        command = [sys.executable, "-m", "engine_core", "explain", "--algorithms", "loud", "--json"]
        if shell:
            command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return tell


@pytest.mark.skipif(sys.platform == "win32", reason="the C library has another name there")
def test_what_is_printed_by_an_import_and_by_a_constructor_goes_to_stderr_in_whatever_way(loud):
    out, err = loud(at_import="; ".join(WAYS), when_made="; ".join(WAYS))
    assert (list(json.loads(out)), err.split()) == (["init"], ["loud"] * 2 * len(WAYS))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_process_without_stderr_still_answers_and_one_without_stdout_finishes(loud):
    out, _ = loud(when_made="print('loud')", shell="2>&-")
    assert list(json.loads(out)) == ["init"]
    assert loud(shell=">&-") == ("", "loud\n")


def test_a_stdout_without_a_descriptor_stays_clean(install, capsys):
    text = MODULE.format(at_import="", when_made="print('loud')")
    install("loud-plugin", {"algorithms": {"loud": "loud_module:Loud"}}, {"loud_module": text})
    main(["explain", "--algorithms", "loud", "--json"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert (list(json.loads(out)), err) == (["init"], "loud\n")
