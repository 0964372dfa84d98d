"""Verbs to commands; errors to messages and exit codes. Nothing heavy is imported before a verb asks for it.

Exit codes: 0 done; 1 a check ran and failed; 2 something the user can correct; 3 a fault of alora's own;
130 interrupted; 141 the reader of standard output went away.
"""

import contextlib
import difflib
import errno
import functools
import gc
import importlib
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from alora.commands.output import say, table
from alora.config.environment import debugging
from alora.config.secrets import redacted
from alora.errors import AloraError, ConfigError
from alora.text import printable
from alora.version import __version__

if TYPE_CHECKING:
    from alora.config.schema import Recipe
    from alora.config.sweep import JobRecord

VERBS = {
    "new": "NAME: a recipe folder with a policy and a few rows, ready for alora train",
    "generate": "judge.url=URL: labelled rows from a policy's text, by a model behind an OpenAI-compatible endpoint",
    "check": "every row, label, token and length, before any money is spent",
    "train": "train, evaluate, calibrate, certify KV identity, export",
    "validate": "artifact=DIR: KV identity of an adapter or bundle against its base",
    "evaluate": "artifact=DIR: metrics on test rows",
    "compare": "aLoRA, LoRA, encoder, prompt, probe, bag of words and an LLM judge on the same rows, seeds and budget",
    "recalibrate": "artifact=BUNDLE data.validation=FILE: its threshold for another precision or engine",
    "fleet": "battery=DIR data.test=FILE: every policy's figures, drift, and who fires on whose positives",
    "export": "artifact=DIR: a bundle that PEFT and vLLM load as it is",
    "score": "DIR FILE: verdicts on a conversation (.json, or - for standard input), or on each row (.jsonl)",
    "report": "verdicts=DIR: what verdicts on a log say: rates over time, co-firing, examples, drift",
    "label": "verdicts=DIR data=LOG output=FILE: the rows of a log that are worth a label",
    "serve": "battery=DIR: a guard in stock vLLM's server, every policy in one request; serving.scorer=packed: no vLLM",
    "bench": "serving: aLoRA, LoRA, base, packed scorer on vLLM; training: against PEFT and TRL",
    "plan": "plan.rate=N: devices, memory, p95 and cost for your traffic, next to standard LoRA, with every assumption",
    "doctor": "versions, devices, base and caches, and what will not work here",
}
# How safetensors and torch, which raise errors of their own, say that a file could not be written.
_DISK_SIGNS = ("No space left on device", "StorageFull", "File too large", "inline_container")
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free the space and run the same command again"),
    errno.ENAMETOOLONG: "give a shorter name",
}
MISUSED, INTERNAL, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` by default) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _ready_streams()
    try:
        exit_code = _dispatch(arguments)
        sys.stdout.flush()
        return exit_code
    except SystemExit as request:  # Hydra's own flags and argparse
        return request.code if isinstance(request.code, int) else int(request.code is not None)
    except BaseException as error:
        exit_code = report(error)
        with contextlib.suppress(ValueError):  # closed
            try:
                sys.stdout.flush()
            except OSError:  # a full disk; the interpreter's own flush would change the exit code
                _discard_output()
        return exit_code


def report(error: BaseException) -> int:
    """Print one clear message for ``error`` on standard error and return the exit code that belongs to it."""
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return BROKEN_PIPE
    if isinstance(error, KeyboardInterrupt):
        return _fail("interrupted; the same command goes on from what it had saved", INTERRUPTED)
    if debugging():
        traceback.print_exception(error)
    if "TORCHELASTIC_RUN_ID" in os.environ and not importlib.import_module("alora.training.processes").first_to_fail():
        return INTERNAL  # another process of this training has said why
    if isinstance(error, AloraError):
        return _fail(str(error), error.exit_code)
    surroundings = _surroundings(error)
    if surroundings is not None:
        return _fail(surroundings, MISUSED)
    kind, text = type(error).__name__, " ".join(str(error).split())
    return _fail(f"internal error: {kind}: {text}\nrun it with ALORA_DEBUG=1 for a traceback, and report it", INTERNAL)


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and arguments[1:2] and arguments[1] in VERBS:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0 if arguments else MISUSED
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"alora {__version__}\n")
        return 0
    from alora.config import compose, hydra_main, sweep  # Hydra, which --help goes without

    if not {"-sc", "--shell-completion"}.isdisjoint(arguments):
        hydra_main.complete([item for item in arguments if item not in VERBS], list(VERBS))
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.5)
        meant = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(VERBS)}"
        return _fail(f"there is no verb {verb!r}; {meant}", MISUSED)
    of_several = os.environ.get("WORLD_SIZE", "1") not in ("0", "1") and "TORCHELASTIC_RUN_ID" in os.environ
    if of_several and verb not in ("train", "doctor") and {"-h", "--help"}.isdisjoint(rest):
        raise ConfigError(
            f"a launcher started {os.environ['WORLD_SIZE'][:20]} processes, and each would do the whole work of alora "
            f"{verb}; only alora train shares it: run alora {verb} without torchrun or accelerate launch"
        )
    _quieten(verb)
    if not {"-h", "--help"}.isdisjoint(rest):
        sys.stdout.write(f"alora {verb}  {VERBS[verb]}\n\n")
    elif not {"-m", "--multirun"}.isdisjoint(rest):
        records = sweep.run_sweep(verb, rest, functools.partial(_run_job, verb), report, _say)
        _summarise(records)
        return max((record.exit_code for record in records), default=0)
    recipe = compose.load_recipe(verb, rest, _say)
    return 0 if recipe is None else _run(verb, recipe)


def _run_job(verb: str, recipe: "Recipe") -> tuple[int, float | None, bool]:
    """Run one job of a sweep, perhaps in a process of its own, so nothing here may need the first one.

    Only a training may have been done before, and only a training has a figure for a sweeper to lower.
    """
    _quieten(verb)
    done = verb == "train" and _command(verb).is_finished(recipe)
    exit_code = 0 if done else _run(verb, recipe)
    return exit_code, _command(verb).metric(recipe) if verb == "train" and not exit_code else None, done


def _run(verb: str, recipe: "Recipe") -> int:
    command = _command(verb)
    return command.run(command.generate_rows(recipe) if verb == "train" else recipe)


def _command(verb: str) -> ModuleType:
    """Import without garbage collection, which would walk all objects of torch and transformers again and again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"alora.commands.{verb}")
    finally:
        if collecting:
            gc.enable()


def _summarise(records: Sequence["JobRecord"]) -> None:
    """One line per job of a sweep."""
    say()
    rows = [
        (record.number, record.changed, record.outcome, record.metric, record.message or record.where or "")
        for record in records
    ]
    table(("job", "what", "outcome", "validation loss", "where, or why not"), rows)
    measured = [(record.metric, record.number) for record in records if record.metric is not None]
    if len(measured) > 1:
        say(f"lowest validation loss: job {min(measured)[1]}")


_DOCTOR = "install alora with its packages (pip install alora-toolkit); alora doctor says which do not load"


def _surroundings(error: BaseException) -> str | None:
    """A message for faults of the machine rather than the program: disk, permissions, memory."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or text or type(error).__name__
        is_library = error.errno is None and error.filename is None and ".so" in text
        other = _DOCTOR if is_library else "choose a path that can be read and written"
        return f"{file[:300]}{reason}; {_REMEDIES.get(error.errno or 0, other)}"
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "alora":
        return f"{text[:300]}; {_DOCTOR}"
    if isinstance(error, UnicodeEncodeError) or "embedded null byte" in text:
        return f"a name that no file can have ({text[:200]}); give another"
    if any(sign in text for sign in _DISK_SIGNS):
        return f"a file could not be written ({text[:200]}); free the space and run the same command again"
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        found = f" ({text[:200]})" if text else ""
        return (
            f"out of memory{found}; lower training.batch_size, training.max_suffix_tokens or "
            "prompt.max_prefix_tokens, or choose training=low_memory"
        )
    return None


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {what}" for verb, what in VERBS.items())
    return (
        "alora <verb> [key=value ...]: guardrail policies as activated LoRA adapters\n\n"
        f"{verbs}\n\n"
        "  alora train recipe=quickstart         the whole story on SmolLM2-135M, without GPU or hub\n"
        "  alora train --help                    its keys, each with its meaning (--help all: every verb's)\n"
        "  alora train --cfg job                 the settings that would run, checked\n"
        "  alora train -m training.seed=0,1      one run for each value, in numbered folders\n"
        '  eval "$(alora -sc install=bash)"      completion by TAB; zsh and fish, too\n'
        "  alora --version\n\n"
        "ALORA_DEBUG=1 shows tracebacks and what the libraries below have to say.\n"
    )


def _quieten(verb: str) -> None:
    """Settings that libraries and the Pythons they start read: few threads, and no remarks by default."""
    # Read when torch loads: threads that spin at a barrier make a shared machine several times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if debugging():
        return
    warnings.filterwarnings("ignore")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on import it reports a faster kernel it did not find
    for name, value in (
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TRANSFORMERS_VERBOSITY", "error"),
        ("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("HF_HUB_VERBOSITY", "error"),
        ("HF_DATASETS_DISABLE_PROGRESS_BARS", "1"),
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("RAY_USAGE_STATS_ENABLED", "0"),
    ):
        if verb != "serve" or not name.startswith("VLLM_LOGGING"):  # a server's own log is its user's business
            os.environ.setdefault(name, value)


def _ready_streams() -> None:
    """Conversations hold text that a terminal's encoding may not have; show it escaped instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str, exit_code: int) -> int:
    _say(f"alora: {message}" if exit_code != 1 else message)
    return exit_code


def _discard_output() -> None:
    """Discard what is written to standard output from now on, and what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it: the exit code stays
        sys.stderr.write(f"{printable(redacted(text))}\n")
        sys.stderr.flush()
