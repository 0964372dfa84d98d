"""Make ``tests/fixtures/received``: a folder of each kind that alora reads, for tests that open it with later code.

    OMP_NUM_THREADS=1 python -m tests.make_received /tmp/received

and copy that folder. Two calls give the same files but for the times in them and the last bits of what a processor
computes. The fixture stays as it is while the formats do: a new one says nothing about the folders that users have.
"""

import json
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from alora.base.stored import describe_base
from alora.batch.log_rows import survey
from alora.batch.stored_verdicts import read_manifest
from alora.bundle.artifact import find_artifact, saved_run
from alora.bundle.read import load_bundle
from alora.bundle.write import copy_bundle
from alora.cli import main
from alora.config.schema import BaseSettings
from alora.training.run_folder import open_claim
from tests.integration.llm.scripted import command, honest
from tests.toy_recipe import QUICK, toy_base_folder
from tests.unit.llm.endpoint import endpoint

POLICIES = """policies:
  - {id: toy, title: No red, rule: Nobody says red.}
  - id: shades
    title: Shades
    rule: The colour is told.
    labels: {red: "Yes", blue: "No", green: user}
"""
GENERATED_FOR = "id: no_refunds\ntitle: No refund promises\nrule: The assistant must not promise money back.\n"
IDS = ("toy", "shades")
VERDICTS = ("verdicts.parquet", "verdicts")
COLOURS = ("red", "blue", "green")


def make(folder: Path) -> None:
    """Fill ``folder``, which is new."""
    folder.mkdir()
    os.chdir(folder)
    os.environ |= {"ALORA_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    toy_base_folder(Path("base"))
    Path("policies.yaml").write_text(POLICIES)
    for seed, (split, count) in enumerate({"train": 36, "validation": 12, "test": 12}.items()):
        _rows(Path(f"{split}.jsonl"), count, seed)
    base, artifact = "base.source=base", "artifact=battery"
    data = [f"data.{split}={split}.jsonl" for split in ("train", "validation", "test")]
    _run("train", base, "policy.file=policies.yaml", "policies=[*]", *data, "run_dir=run", "name=received", *QUICK)
    shutil.copytree("run/battery", "battery")
    copy_bundle("run/battery/shades", "bundle")
    _run("validate", base, "artifact=bundle", "output=certificate.json", "identity.dtypes=[float32]")
    for output in ("verdicts.jsonl", *VERDICTS):
        _run("score", base, artifact, "data=test.jsonl", f"output={output}", "logs.shard_rows=5")
    Path("policy.yaml").write_text(GENERATED_FOR)
    with endpoint(honest) as server:
        _run(*(part.replace("output=out", "output=generated") for part in command(server.url)))
    Path("digests.json").write_text(json.dumps(digests(folder), indent=2) + "\n")
    shutil.rmtree("cache")
    for lock in folder.rglob(".lock"):
        lock.unlink()


def digests(folder: Path) -> dict[str, str]:
    """Every digest by which alora knows the contents of ``folder``."""
    run = find_artifact(folder / "run")
    recipe = saved_run(run)
    assert recipe is not None
    base = describe_base(BaseSettings(source=str(folder / "base")), folder / "base")
    known = {f"base {part}": value for part, value in base.fingerprint.as_dict().items()}
    known["claim"] = open_claim(run.folder, recipe).digest
    known["rows"] = survey(str(folder / "test.jsonl"), recipe.data).digest
    known |= {name: read_manifest(folder / name)["job"]["rows_digest"] for name in VERDICTS}
    for name in ("bundle", *(f"{battery}/{policy}" for battery in ("battery", "run/battery") for policy in IDS)):
        bundle = load_bundle(folder / name)
        known |= {f"{name} weights": bundle.weights.digest, f"{name} served weights": bundle.served_weights}
        known |= {f"{name} manifest": bundle.manifest.sha256, f"{name} served name": bundle.served_name}
    return known


def _rows(file: Path, count: int, seed: int) -> None:
    rows = []
    for number in range(count):
        colour = COLOURS[number % 3]
        labels = {"toy": "violation" if colour == "red" else "ok", "shades": colour}
        talk = [{"role": "user", "content": f"message {seed} {number} says {colour}"}]
        rows.append({"id": f"{seed}-{number}", "messages": talk, "labels": labels})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _run(*arguments: str) -> None:
    if code := main([*arguments]):
        raise SystemExit(f"alora {' '.join(arguments)} ended with {code}")


if __name__ == "__main__":
    machine = {"platform.platform": lambda: "Linux", "alora.config.environment.processor": lambda: None}
    with ExitStack() as stack:  # what is of this machine stays out
        for name, said in machine.items():
            stack.enter_context(patch(name, said))
        make(Path(sys.argv[1]).absolute())
