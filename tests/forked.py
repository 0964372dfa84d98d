"""Commands in processes of their own, forked off one that has imported torch: killed for real, started in no time.

So are the processes that they start with this interpreter. All of them share one hash seed, and what was imported read
the environment long before: what must not depend on that runs in a fresh process.
"""

import importlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_PATIENCE = 600  # seconds
_STOCK_EXECUTE_CHILD = subprocess.Popen._execute_child
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = (
    *("alora.commands.train", "alora.commands.score", "transformers.trainer", "torch.distributed.run"),
    "transformers.models.qwen3.modeling_qwen3",
)
_SERVER.set_forkserver_preload([*_PRELOADED])


def preload(*modules: str) -> None:
    """Modules that forked processes find imported; to be called before the first of them starts."""
    _SERVER.set_forkserver_preload([*_PRELOADED, *modules])


class Forked:
    """What follows ``python`` on a command line, as a running process, with what tests use of ``subprocess.Popen``.

    It cannot write files above ``largest_file`` bytes. With ``log``, both its streams go there.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        largest_file: int | None = None,
        folder: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="alora-forked-")
        self._streams = [str(log or Path(self._place.name, name)) for name in ("output", "errors")]
        what = ([sys.executable, *command], dict(environment), str(folder or Path.cwd()), largest_file, *self._streams)
        self._process = _SERVER.Process(target=_run, args=what)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, seconds: float = _PATIENCE) -> None:
        self._process.join(seconds)
        if self._process.is_alive():
            raise TimeoutError(f"still running after {seconds} s: {self._process}")

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; standard output and standard error."""
        try:
            self.wait()
        except TimeoutError:
            self.kill()
            raise
        output, errors = (Path(file).read_text() if Path(file).exists() else "" for file in self._streams)
        self._place.cleanup()
        return output, errors


def start_forked(*arguments: str, cache: Path) -> Forked:
    """``tests.toy_recipe.start_alora`` without the seconds that imports take."""
    return Forked(("-m", "alora", *arguments), os.environ | {"ALORA_CACHE": str(cache)})


def run_forked(*arguments: str, cache: Path) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error of one command."""
    process = start_forked(*arguments, cache=cache)
    output, errors = process.communicate()
    return process.returncode, output, errors


def kill_when(process: Forked, reached: Callable[[], bool]) -> None:
    """SIGKILL as soon as ``reached``, if the command runs as long."""
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.communicate()


def _run(
    command: list[str], environment: dict[str, str], folder: str, largest_file: int | None, output: str, errors: str
) -> None:
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    for path, stream in ((output, 1), (errors, 2)):
        written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(written, stream)
        os.close(written)
    os.chdir(folder)
    _start_warm()
    sys.exit(_become(command, environment))


def _start_warm() -> None:
    """From now on, what this process starts with this interpreter is forked off it."""
    context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: context("fork" if method == "spawn" else method)
    subprocess.Popen._execute_child = _execute_child
    os.execve = lambda _, command, environment: os._exit(_become(command, environment))


def _execute_child(self: subprocess.Popen, args: Any, *rest: Any) -> None:
    (_, _, _, _, folder, environment, _, _, shell, *pipes) = rest
    if shell or isinstance(args, str) or args[0] != sys.executable:
        _STOCK_EXECUTE_CHILD(self, args, *rest)
        return
    stdin, stdin_ours, stdout_ours, stdout, errors_ours, errors, *_, new_session, _ = pipes
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    self.pid = os.fork()
    self._child_created = True
    if self.pid:
        self._close_pipe_fds(*pipes[:6])
        return
    code = 1
    try:
        for ours in (stdin_ours, stdout_ours, errors_ours):
            if ours >= 0:
                os.close(ours)
        for theirs, stream in ((stdin, 0), (stdout, 1), (errors, 2)):
            if theirs >= 0:
                os.dup2(theirs, stream)
        if new_session:
            os.setsid()
        os.chdir(folder or ".")
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 standard input itself
        code = _become(args, os.environ if environment is None else environment)
    finally:
        os._exit(code)


def _become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """What ``exec`` of this interpreter does, but for what is imported already; the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    weakref.finalize._registry.clear()  # what was to be done at another's end
    environment = dict(environment)
    os.environ.clear()
    os.environ.update(environment)
    own = [] if command[1] == "-P" else [str(Path.cwd())]
    sys.path[:0] = [*own, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    _read_environment_again()
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)  # so it is meant to be
    sys.orig_argv, (_, *rest) = [*command], command
    while rest[0] in ("-u", "-W", "-P"):
        rest = rest[1 + (rest[0] == "-W") :]
    try:
        if rest[0] == "-m":
            sys.argv = rest[1:]
            runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = rest if rest[0] != "-c" else ["-c", *rest[2:]]
            exec(rest[1] if rest[0] == "-c" else Path(rest[0]).read_text(), {"__name__": "__main__"})  # noqa: S102
        code: Any = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    weakref.finalize._exitfunc()
    multiprocessing.util._exit_function()
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code or 0


def _read_environment_again() -> None:
    """What these modules do when they are imported."""
    if hub := sys.modules.get("huggingface_hub.constants"):
        importlib.reload(hub)
    if values := sys.modules.get("prometheus_client.values"):
        values.ValueClass = values.get_value_class()
    if logger := sys.modules.get("vllm.logger"):
        logger._configure_vllm_root_logger()
