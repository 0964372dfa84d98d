"""``alora bench``: serving (aLoRA against standard LoRA on one engine), and training."""

import tempfile
from pathlib import Path

from alora.atomic import write_text
from alora.base.load import choose_device, choose_dtype
from alora.commands.output import report_file, say, say_json
from alora.config.schema import Recipe
from alora.errors import BaseError, ConfigError
from alora.lab.bench.bench_report import PICTURES, markdown, write_plots
from alora.lab.bench.harness import judge
from alora.lab.bench.record import Record, load_record, plain, record_json
from alora.lab.bench.run import run_bench
from alora.lab.bench.serving import ServingBench
from alora.text import note


def run(recipe: Recipe, serving: type[ServingBench] = ServingBench) -> int:
    """Write ``bench.json``, ``bench.md`` and plots; 1 when a ratio was withheld for a fault, or the run was stopped."""
    if recipe.bench.judge:
        return _write(recipe, judge(load_record(Path(recipe.bench.judge))))
    device = choose_device(recipe.base.device)
    if recipe.bench.needs_gpu and recipe.base.device == "auto" and device.type != "cuda":
        raise BaseError(
            "this benchmark needs a GPU (bench.needs_gpu), and torch sees none; take bench=cpu, or base.device=cpu for "
            "the same work on the CPU, which may take hours"
        )
    file, dtype = _folder(recipe) / "bench.json", choose_dtype(recipe.base.dtype, device)

    def keep(record: Record) -> None:
        write_text(file, record_json(record))

    return _write(recipe, run_bench(recipe.bench, recipe.base, device, dtype, keep, serving))


def _write(recipe: Recipe, record: Record) -> int:
    """Into the folder of ``output``; a record that is judged again is printed alone unless one is given."""
    report = markdown(record)
    if recipe.json:  # printed before it is written: a disk that has become full does not take the figures with it
        say_json(plain(record))
    else:
        say(report)
    if recipe.output or not recipe.bench.judge:
        folder = _folder(recipe)
        write_text(folder / "bench.json", record_json(record))
        write_text(folder / "bench.md", report)
        plots = write_plots(record, folder)
        note(f"written to {folder}: bench.md, {len(plots)} plots, and bench.json with every sample")
    if record.engine.get("name") == "scorer":
        note("without vLLM: the packed scorer against PEFT's LoRA; pip install 'alora-toolkit[vllm]' for the server")
    if record.stopped:
        note(f"{record.stopped}: the report holds what was finished before")
    faults = record.faults()
    if faults:
        note(f"{len(faults)} reason(s) to withhold a figure; bench.md has them")
    return int(bool(faults or record.stopped))


def _folder(recipe: Recipe) -> Path:
    """Where the results go; a folder that cannot be written to is refused before minutes are spent on them."""
    folder = Path(recipe.output or Path("runs") / f"bench_{recipe.bench.workload}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    report_file(folder / "bench.json")
    for name in ("bench.md", *PICTURES):
        file = folder / name
        if file.exists() and not (folder / "bench.json").exists():
            raise ConfigError(f"{file} is there and is not a report of alora's; give another output=")
    tempfile.TemporaryFile(dir=folder).close()
    return folder
