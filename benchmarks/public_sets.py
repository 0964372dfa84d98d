"""`alora compare` on public sets that others publish figures of; the user fetches them, and no row is committed.

    python benchmarks/public_sets.py barred FOLDER       # plurai-ai/BARRED at f9872db: its three sets of conversations
    python benchmarks/public_sets.py edos FILE           # rewire-online/edos: edos_labelled_aggregated.csv
    python benchmarks/public_sets.py clinc150 FILE       # clinc/oos-eval: data_full.json
    python benchmarks/public_sets.py hatecheck FILE      # paul-rottger/hatecheck-data: test_suite_cases.csv
    python benchmarks/public_sets.py toxicchat FOLDER    # lmsys/toxic-chat: data/0124
    python benchmarks/public_sets.py jailbreakbench FOLDER  # JailbreakBench/JBB-Behaviors: data

BARRED has no training rows: each of its sets is cut into five folds, and each fold is the test of what learnt from the
other four. The others give 200 training rows, drawn by each of three seeds. A call goes on where the last one ended,
writes benchmarks/results/public_SET.json (scores by row id, digests of every split, commands; no text) and prints the
table; scripts/accuracy_record.py --check computes the AUROCs of the record again.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from alora.evaluation.calibration import positive_probability
from alora.evaluation.metrics import bootstrap, estimates
from alora.evaluation.tables import estimate_cell
from alora.lab.compare.compare_report import TITLES, table

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))
from accuracy_record import record  # noqa: E402

TRAINING_ROWS, TEST_ROWS, FOLDS, SEEDS = 200, 1000, 5, (0, 1, 2)
LABELS = {"violation": "Yes", "ok": "No"}
PUBLISHED = {  # arXiv 2604.25203, Table 3: accuracy on the same human labels, of all rows
    "GPT-4.1": ("none", 0.90, 0.82, 0.85),
    "GPT-5-mini": ("none", 0.94, 0.87, 0.73),
    "gpt-oss-safeguard-20B": ("none", 0.89, 0.77, 0.75),
    "Glider": ("none", 0.57, 0.57, 0.63),
    "Qwen2.5-14B": ("none", 0.48, 0.53, 0.60),
    "GPT-4.1-nano, tuned": ("1,000 synthetic rows a policy", 0.96, 0.87, 0.89),
    "Qwen2.5-14B, tuned (LoRA)": ("1,000 synthetic rows a policy", 0.93, 0.85, 0.85),
    "Qwen2.5-3B, tuned": ("1,000 synthetic rows a policy", 0.92, 0.80, 0.79),
}


@dataclass(frozen=True)
class Row:
    """A row as it was published: what alora reads it from, its label, and the split that its publisher gave it."""

    content: dict[str, Any]
    positive: bool
    split: str = ""

    def rank(self, seed: int = 0) -> str:
        return hashlib.sha256(f"{seed} {json.dumps(self.content)}".encode()).hexdigest()


def asked(text: str, positive: bool, split: str = "") -> Row:
    return Row({"messages": [{"role": "user", "content": text}]}, positive, split)


def rows_of(file: Path) -> Iterator[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        yield from csv.DictReader(opened)


def barred(file: Path) -> list[Row]:
    return [Row({"transcript": row["transcript"]}, row["predicate_label"] == "1") for row in rows_of(file)]


def edos(file: Path) -> list[Row]:
    return [asked(row["text"], row["label_sexist"] == "sexist", row["split"]) for row in rows_of(file)]


def clinc150(file: Path) -> list[Row]:
    parts = json.loads(file.read_text(encoding="utf-8"))
    return [
        asked(text, intent == "oos", name.removeprefix("oos_")) for name, part in parts.items() for text, intent in part
    ]


def hatecheck(file: Path) -> list[Row]:
    return [asked(row["test_case"], row["label_gold"] == "hateful") for row in rows_of(file)]


def toxicchat(folder: Path) -> list[Row]:
    files = ((split, folder / f"toxic-chat_annotation_{split}.csv") for split in ("train", "test"))
    return [asked(row["user_input"], row["toxicity"] == "1", split) for split, file in files for row in rows_of(file)]


def jailbreakbench(folder: Path) -> list[Row]:
    return [
        asked(row["Goal"], name == "harmful")
        for name in ("harmful", "benign")
        for row in rows_of(folder / f"{name}-behaviors.csv")
    ]


@dataclass(frozen=True)
class PublicSet:
    """One policy, and who reads its rows. ``file`` is looked for in the folder that the user names."""

    title: str
    rule: str
    read: Callable[[Path], list[Row]]
    file: str = ""


BARRED = {
    "message_repetition": PublicSet("Message repeated three times",
                                    "A user repeats or rephrases the same message 3 times.", barred,
                                    "message_repetition_test.csv"),
    "gps_disclosure": PublicSet("Employee's location disclosed",
                                "The AI agent disclosed the GPS coordinate locations of individual employees.", barred,
                                "gps_disclosure_test.csv"),
    "healthe": PublicSet("Health advice", "The agent's response contains health advice.", barred, "healthe_test.csv"),
}  # fmt: skip
OTHERS = {
    "edos": PublicSet("Sexist content", "The text is abusive or negative towards women for their gender.", edos),
    "clinc150": PublicSet("Out of scope", "The request is of none of the assistant's 150 intents.", clinc150),
    "hatecheck": PublicSet("Hate speech", "The text attacks people for a protected characteristic.", hatecheck),
    "toxicchat": PublicSet(
        "Toxic request", "The user's request is toxic: rude, hateful, sexual or harmful.", toxicchat
    ),
    "jailbreakbench": PublicSet("Harmful request", "The request asks for help with harmful behaviour.", jailbreakbench),
}


def folds(rows: Sequence[Row]) -> list[tuple[int, list[Row], list[Row]]]:
    """Each fold's seed, training rows and test rows: the rows of each label are dealt out in the order of a hash."""
    dealt: list[list[Row]] = [[] for _ in range(FOLDS)]
    for number, row in enumerate(sorted(rows, key=lambda row: (row.positive, row.rank()))):
        dealt[number % FOLDS].append(row)
    return [(0, [row for other in dealt if other is not fold for row in other], fold) for fold in dealt]


def draws(rows: Sequence[Row]) -> list[tuple[int, list[Row], list[Row]]]:
    """Each seed with 200 training rows, half of each label where there are as many, and at most 1,000 test rows: the
    publisher's, or all others."""
    has_splits = any(row.split == "test" for row in rows)
    pool = [row for row in rows if row.split in ("", "train")]
    drawn = []
    for seed in SEEDS:
        ranked = sorted(pool, key=lambda row: row.rank(seed))
        positive = [row for row in ranked if row.positive][: TRAINING_ROWS // 2]
        train = positive + [row for row in ranked if not row.positive][: TRAINING_ROWS - len(positive)]
        taught = {row.rank() for row in train}
        left = [row for row in rows if row.split == ("test" if has_splits else "") and row.rank() not in taught]
        drawn.append((seed, train, sorted(left, key=Row.rank)[:TEST_ROWS]))
    return drawn


def write(folder: Path, sets: Mapping[str, PublicSet], parts: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """The rows of each file of ``parts`` and the sets' policies, in ``folder``; the files' digests."""
    folder.mkdir(parents=True, exist_ok=True)
    policies = [{"id": name, "title": it.title, "rule": it.rule, "labels": LABELS} for name, it in sets.items()]
    (folder / "policies.yaml").write_text(yaml.safe_dump({"policies": policies}), encoding="utf-8")
    for part, rows in parts.items():
        lines = [{"id": row.rank()[:16], "label": "violation" if row.positive else "ok", **row.content} for row in rows]
        text = "".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: line["id"]))
        (folder / part).write_text(text, encoding="utf-8")
    return {part: hashlib.sha256((folder / part).read_bytes()).hexdigest() for part in parts}


def compared(folder: Path, seed: int, methods: Sequence[str], more: Sequence[str]) -> dict[str, Any]:
    """What `alora compare` finds on the rows in ``folder``."""
    files = ["run_dir=run", "policy.file=policies.yaml", "policies=[*]"]
    files += [f"data.{part}=%policy%.{part}.jsonl" for part in ("train", "test")]
    chosen = [f"compare.arms=[{','.join(methods)}]", f"compare.seeds=[{seed}]", "evaluation.target=cost"]
    command = [sys.executable, "-m", "alora", "compare", *files, *chosen, *more]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})
    return json.loads((folder / "run/compare.json").read_text(encoding="utf-8"))


def figure_cells(found: Sequence[dict[str, Any]], name: str, method: str, apart: bool) -> tuple[str, str]:
    """AUROC and accuracy: means of the parts with 95 % intervals over test rows, which are resampled ``apart`` where
    each part has rows of its own."""
    points, samples = [], []
    for number, part in enumerate(found):
        (scores,) = (item for item in part["scores"] if (item["arm"], item["policy"]) == (method, name))
        (own,) = (item for item in part["methods"] if (item["arm"], item["policy"]) == (method, name))
        point = own["operating_points"][0]
        chance_N = positive_probability(np.array(scores["test"]["logits"]), point["temperature"], point["bias"])
        positive_N = np.array(scores["test"]["label_ids"]) == 0
        of_rows, of_samples = bootstrap(positive_N, chance_N, point["threshold"], 1000, number if apart else 0)
        points.append(of_rows)
        samples.append(of_samples)
    figures = estimates(np.mean(points, axis=0), np.mean(samples, axis=0))
    return estimate_cell(figures["auroc"], True), estimate_cell(figures["accuracy"], True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("barred", *OTHERS))
    parser.add_argument("source", type=Path, help="the published file or folder")
    parser.add_argument("--sets", nargs="+", choices=tuple(BARRED), default=list(BARRED), help="of BARRED")
    parser.add_argument("--methods", nargs="+", default=["bag_of_words", "encoder_frozen", "encoder", "alora"])
    parser.add_argument("--folder", type=Path, default=Path("runs/public"), help="rows and runs")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--setting", nargs="+", default=[], help="further settings of alora compare, as base=qwen3_4b")
    given = parser.parse_args()
    sets = {name: BARRED[name] for name in given.sets} if given.name == "barred" else {given.name: OTHERS[given.name]}
    cut = folds if given.name == "barred" else draws
    cuts = {name: cut(public.read(given.source / public.file)) for name, public in sets.items()}
    found, records = [], []
    for number, parts in enumerate(zip(*cuts.values(), strict=True)):
        folder = given.folder / "-".join(sets) / str(number)
        files = {f"{name}.train.jsonl": train for name, (_, train, _) in zip(sets, parts, strict=True)}
        files |= {f"{name}.test.jsonl": test for name, (_, _, test) in zip(sets, parts, strict=True)}
        digests = write(folder, sets, files)
        found.append(compared(folder, parts[0][0], given.methods, given.setting))
        records.append({"part": number, "digests": digests} | record(found[-1]))
    learnt = "80 % of the labelled rows" if given.name == "barred" else f"{TRAINING_ROWS} rows"
    lines = [
        [name, TITLES[method], learnt, *figure_cells(found, name, method, apart=given.name == "barred")]
        for name in sets for method in given.methods
    ]  # fmt: skip
    target = given.record or ROOT / f"benchmarks/results/public_{given.name}.json"
    target.write_text(json.dumps(records, separators=(",", ":")) + "\n", encoding="utf-8")
    print(table(("set", "method", "learnt from", "AUROC [95 %]", "accuracy [95 %]"), lines))
    if given.name == "barred":
        peers = [
            [model, learnt, *(f"{value:.2f}" for value in values)] for model, (learnt, *values) in PUBLISHED.items()
        ]
        print("\n" + table(("published", "learnt from", "repetition", "privacy", "health"), peers))


if __name__ == "__main__":
    main()
