"""Every error that alora raises on purpose.

A message says what is wrong, where, and what to do about it. The command line prints the message alone and
exits with the class's ``exit_code``: 2 when the user can correct the input, 1 when a check ran and failed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

_Result = TypeVar("_Result")


def first_line(error: BaseException) -> str:
    """The first line of a library's error (and the next one after a colon), or the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def is_panic(error: BaseException) -> bool:
    """Whether Rust broke off below a Python call: pyo3's PanicException, which is not an ``Exception``."""
    return type(error).__name__ == "PanicException"


def one_line(error: BaseException) -> str:
    """A library's error in one line, or the name of its class, short enough for a message."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class AloraError(Exception):
    """Root of alora's errors; never raised itself."""

    exit_code = 2
    code: str | None = None  # of a folder that somebody sent: one of alora.received


class ConfigError(AloraError, ValueError):
    """A configuration that cannot be run: unknown key, impossible value, conflicting settings."""


class DataError(AloraError, ValueError):
    """Labelled conversations that cannot be used.

    ``findings`` holds one line, or :class:`alora.data.findings.Finding`, per problem, each with where it is
    (``train.jsonl:17: ...``). ``count`` says in how many rows they are.
    """

    def __init__(self, message: str, findings: Sequence[object] = (), count: int | None = None) -> None:
        self.findings = tuple(findings)
        self.count = len(self.findings) if count is None else count
        super().__init__("\n".join([message, *(f"  {finding}" for finding in self.findings)]))


class PolicyError(AloraError, ValueError):
    """A policy file or a label that this tokenizer cannot carry."""


class RenderError(AloraError, ValueError):
    """A conversation or chat template that cannot become a prompt."""


class PromptRefused(ConfigError):
    """A server refuses one prompt, and answers others: it is too long, say."""


class BaseError(AloraError, ValueError):
    """A base model that cannot be loaded, or that alora refuses by name."""


class AdapterError(AloraError, ValueError):
    """An adapter folder that is damaged, or does not fit its base."""


class BundleError(AloraError, ValueError):
    """A bundle that is damaged, or is being used on another base, tokenizer or template."""


class RunError(AloraError, RuntimeError):
    """A run folder that belongs to other settings, or cannot be written."""


class TrainingError(AloraError, RuntimeError):
    """Training that would produce a worthless adapter (no gradient, loss not finite)."""

    exit_code = 1


class CheckFailed(AloraError, AssertionError):
    """A check ran to its end and failed (KV identity, reload parity, golden rows)."""

    exit_code = 1


class MissingDependency(AloraError, ImportError):
    """A package of an optional extra is not installed."""


class AllFailed(AloraError):
    """Each of several policies failed, each with its own error; the user may be able to correct some of them."""

    def __init__(self, errors: Mapping[str, AloraError]) -> None:
        self.exit_code = max(error.exit_code for error in errors.values())
        lines = [f"  {name}: {error}" for name, error in errors.items()]
        super().__init__("\n".join([f"none of {len(lines)} policies is left:", *lines]))


class LeftOut(dict[str, AloraError]):
    """The policies of a command that failed, each with its error. The others go on, as long as there are any."""

    def each(self, names: Iterable[str], stage: Callable[[str], _Result]) -> dict[str, _Result]:
        """The results of ``stage`` by name; a name for which it raises an :class:`AloraError` is left out."""
        results = {}
        for name in names:
            try:
                results[name] = stage(name)
            except AloraError as error:
                self[name] = error
        return results

    def require_some(self, names: Iterable[str]) -> None:
        """Raise when all of ``names`` are left out: the error of the only one as it is, else all errors in one."""
        names = list(names)
        if names and all(name in self for name in names):
            raise self[names[0]] if len(names) == 1 else AllFailed({name: self[name] for name in names})
