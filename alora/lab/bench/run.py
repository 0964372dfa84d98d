"""From settings to a record: the base, the machine's rates, every workload, the references, the ratios."""

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from alora.config.environment import describe_environment
from alora.config.schema import BaseSettings, BenchSettings
from alora.errors import ConfigError, first_line
from alora.lab.bench.harness import Clock, Context, Harness, TimeIsUp, evaluate
from alora.lab.bench.record import UNFINISHED, Record, settings_by_key
from alora.lab.bench.roofline import measure_machine
from alora.lab.bench.serving import ServingBench
from alora.lab.bench.training import TrainingBench
from alora.training.loop import tensor_cores


def run_bench(
    settings: BenchSettings, base: BaseSettings, device: torch.device, dtype: torch.dtype,
    keep: Callable[[Record], None] = lambda record: None, serving: type[ServingBench] = ServingBench,
) -> Record:  # fmt: skip
    """Measure everything that ``settings`` ask for; what was finished is kept, whatever stops it later. ``keep`` gets a
    record of all cells so far after each of them, before any reference was asked."""
    began, spent, threads = time.perf_counter(), time.process_time(), torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    precision = tensor_cores(device, dtype) if settings.workload == "training" else contextlib.nullcontext()
    try:
        with precision, tempfile.TemporaryDirectory(prefix="alora-bench-") as scratch:
            clock, harness = Clock(device, settings.threads), Harness(settings)
            context = Context(settings, base, device, dtype, Path(scratch), clock, harness)
            bench = TrainingBench(context) if settings.workload == "training" else serving(context)
            gc.collect()
            gc.freeze()  # the libraries' own objects, which collections between runs need not visit
            context.machine = measure_machine(bench.base, clock)

            def record(stopped: str | None) -> Record:
                return Record(
                    settings.workload, describe_environment(), settings_by_key(asdict(settings)),
                    bench.base.record(base.quantization or "none"),
                    "CPU time of the process" if clock.cpu else "wall time", bench.tolerance, context.machine,
                    bench.engine, *evaluate(harness.cells, bench), bench.load(), stopped,
                    round(time.perf_counter() - began, 1), round(time.process_time() - spent, 1),
                )  # fmt: skip

            harness.finished = lambda: keep(record(UNFINISHED))
            return record(_measured(bench, harness))
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def _measured(bench: TrainingBench | ServingBench, harness: Harness) -> str | None:
    """Run all; what stopped the run before its end, if anything did."""
    reasons = []
    try:
        harness.in_time()
        bench.measure()
    except (KeyboardInterrupt, Exception) as error:  # hours of figures are worth more than a traceback
        harness.keep_whole_rounds()
        if not harness.cells and not bench.load():
            if isinstance(error, TimeIsUp):
                raise ConfigError(f"{error} before anything was finished; raise it, or ask for less") from error
            raise
        reasons.append(_reason(error))
    try:
        bench.ask()
    except (KeyboardInterrupt, RuntimeError) as error:  # then no verdict was compared, and every ratio says so
        reasons.append(_reason(error))
    return "; then ".join(reasons) or None


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return first_line(error) if isinstance(error, TimeIsUp) else f"{type(error).__name__}: {first_line(error)}"
