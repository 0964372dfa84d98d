"""A forked process does what a fresh one does, with its children, its signals and what it becomes."""

import os
import subprocess
import sys

from tests.forked import Forked

SCRIPT = """
import os, subprocess, sys
print(sys.argv, sys.orig_argv, os.getcwd(), os.environ["MINE"], __name__)
child = "import os, sys; print(sys.stdin.read(), os.getcwd(), 'MINE' in os.environ); sys.exit(3)"
run = subprocess.run([sys.executable, "-W", "ignore", "-c", child], cwd="/", env={}, input=b"in", capture_output=True)
print(run.returncode, run.stdout, run.stderr)
print(subprocess.run(["sh", "-c", "echo $MINE; exit 4"], stdout=subprocess.PIPE))
sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
sleeping.terminate()
print(sleeping.wait(), subprocess.run([sys.executable, "-m", "nowhere"], stderr=subprocess.DEVNULL).returncode)
sys.stdout.flush()
last = "import os, sys; print(sys.argv, dict(os.environ)['MINE']); sys.exit('no more')"
os.execve(sys.executable, [sys.executable, "-c", last, "b"], {"MINE": "2"})
"""


def test_a_forked_process_is_as_a_fresh_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {"MINE": "1"}
    command = [sys.executable, "-c", SCRIPT, "a"]
    fresh = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    forked = Forked(command[1:], environment)
    assert forked.communicate() == (fresh.stdout, fresh.stderr)
    assert forked.returncode == fresh.returncode == 1
    assert fresh.stdout.count("\n") == 5
    assert fresh.stderr == "no more\n"
