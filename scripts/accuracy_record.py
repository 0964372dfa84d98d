"""From a finished comparison to what is committed of it: a compact record, and the tables of docs/accuracy.md.

    alora compare run_dir=runs/accuracy ...
    python scripts/accuracy_record.py runs/accuracy/compare.json [FURTHER/compare.json ...] --page docs/accuracy.md

Further comparisons add the arms that the first lacks, as where a GPU ran standard LoRA: same rows, base and settings.

The record holds every raw score by row id (label logits as their margin, six decimals) and the command, so run that
with relative paths; no text of any conversation. `--check` computes every AUROC again from the record alone. The tables
stand between two comments in the page.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from alora.config.schema import EvaluationSettings
from alora.evaluation.calibration import fit_calibration, positive_probability
from alora.evaluation.metrics import compute_metrics
from alora.evaluation.paired import mean_auroc
from alora.lab.compare.compare_report import COLUMNS, TITLES, document, table
from alora.lab.compare.figures import compare
from alora.lab.compare.task import Scores
from alora.received import decode

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks/results/accuracy_cpu.json"
BEGIN, END = "<!-- tables: begin (scripts/accuracy_record.py) -->", "<!-- tables: end -->"
KEPT_APART = ("prefix_cache", "prefix_cache_bytes", "threads")  # settings of training that no score depends on
RIVAL = "bag_of_words"


def main() -> int:
    """Write the record and the page, or check the record that is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("comparison", nargs="*", type=Path, help="compare.json of a comparison, and of further ones")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--page", type=Path, help="write the tables into it")
    parser.add_argument("--check", action="store_true", help="compute the record's AUROCs again from its scores")
    arguments = parser.parse_args()
    if arguments.check:
        content = json.loads(arguments.record.read_text(encoding="utf-8"))
        worst = max(map(recompute, content if isinstance(content, list) else [content]))
        print(f"largest difference between a recorded AUROC and the one of its raw scores: {worst:.1e}")
        return int(worst > 1e-4)
    if not arguments.comparison:
        parser.error("give compare.json, or --check")
    found = joined(*(json.loads(file.read_text(encoding="utf-8")) for file in arguments.comparison))
    arguments.record.write_text(json.dumps(record(found), separators=(",", ":")) + "\n", encoding="utf-8")
    if arguments.page:
        before, rest = arguments.page.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        arguments.page.write_text(f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{after}", encoding="utf-8")
    return 0


def joined(found: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """``found`` with the arms that only ``others`` ran, and every figure computed again.

    Raises:
        SystemExit: another one ran on other rows, another base or by other settings.
    """
    if not others:
        return found
    own = {item["arm"] for item in found["scores"]}
    rows = {(item["policy"], part): _asked(item[part]) for item in found["scores"] for part in ("validation", "test")}
    scores, also = list(found["scores"]), []
    for other in others:
        if _what_counts(other["settings"]) != _what_counts(found["settings"]):
            raise SystemExit("the comparisons differ in their base or settings; a record holds one of each")
        new = [item for item in other["scores"] if item["arm"] not in own]
        kinds = {(item["arm"], item["policy"]) for item in new}
        if not new or not kinds.isdisjoint((item["arm"], item["policy"]) for item in scores):
            raise SystemExit("one comparison has no arm that the others lack; an arm's seeds belong together")
        for item in new:
            if any(rows[item["policy"], part] != _asked(item[part]) for part in ("validation", "test")):
                raise SystemExit(f"{item['arm']} of {item['policy']} was asked about other rows")
        scores += new
        kept = {
            name: other["environment"].get(name) for name in ("command", "commit", "processor", "torch", "transformers")
        }
        also.append({"arms": sorted({item["arm"] for item in new}), **kept})
    settings, read = found["settings"], [decode(Scores, item) for item in scores]
    options = EvaluationSettings(**settings["evaluation"])
    again = compare(read, options, settings["adapter"]["rank"], settings["training"]["seed"])
    return document(again, read, {}, settings, found["environment"]) | {"also": also}


def _asked(part: dict[str, Any]) -> tuple[Any, Any]:
    return part["ids"], part["label_ids"]


def _what_counts(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that a score depends on; the digest of a GGUF's tokenizer changes with transformers."""
    training = {name: value for name, value in settings["training"].items() if name not in KEPT_APART}
    budget = {name: value for name, value in settings["compare"].items() if name not in ("arms", "seeds", "ranks")}
    same = {name: settings[name] for name in ("adapter", "prompt", "evaluation")}
    return same | {"weights": settings["base_fingerprint"]["weights"], "training": training, "compare": budget}


def record(found: dict[str, Any]) -> dict[str, Any]:
    """What is committed: settings, versions, figures, gaps, and each run's margins under the rows' ids and labels."""
    rows: dict[str, dict[str, Any]] = {}
    runs = []
    for item in found["scores"]:
        margins = {}
        for part in ("validation", "test"):
            scores = item[part]
            own = rows.setdefault(item["policy"], {})
            own.setdefault(part, {"ids": scores["ids"], "label_ids": scores["label_ids"]})
            same = own[part]["ids"] == scores["ids"]
            margins[part] = {"margins": [round(float(m), 6) for m in _margins(scores["logits"])]}
            margins[part] |= {} if same else {"ids": scores["ids"], "label_ids": scores["label_ids"]}
        runs.append({name: item[name] for name in ("arm", "policy", "seed", "rank", "facts")} | margins)
    hidden = ("platform", "machine")
    return {
        "schema_version": 1,
        "settings": found["settings"],
        "environment": {name: value for name, value in found["environment"].items() if name not in hidden},
        "also": found.get("also", []),
        "methods": found["methods"],
        "gaps": found["gaps"],
        "rows": rows,
        "runs": runs,
    }


def recompute(content: dict[str, Any]) -> float:
    """Largest difference between a recorded AUROC and the one that its runs' margins give."""
    worst = 0.0
    for method in content["methods"]:
        if method["policy"] is None:
            continue
        wanted = (method["arm"], method["rank"], method["policy"])
        runs = [run for run in content["runs"] if (run["arm"], run["rank"], run["policy"]) == wanted]
        labels = runs[0]["test"].get("label_ids") or content["rows"][method["policy"]]["test"]["label_ids"]
        again = mean_auroc(np.array(labels) == 0, np.array([run["test"]["margins"] for run in runs]))
        worst = max(worst, abs(again - method["figures"]["auroc"]["value"]))
    return worst


def tables(found: dict[str, Any]) -> str:
    """The page's tables at the comparison's own rank: means over the policies, AUROC policy by policy with the paired
    tests against a bag of words, the mean gap to every method; and the means at every rank, where there are several.
    """
    rank = found["settings"]["adapter"]["rank"]
    methods = {(m["arm"], m["policy"]): m for m in found["methods"] if m["rank"] in (None, rank)}
    arms = [arm for arm in TITLES if (arm, None) in methods]
    policies = sorted({policy for _, policy in methods if policy})
    overall = [[TITLES[arm], *(_cell(methods[arm, None], name) for name in COLUMNS)] for arm in arms]
    gaps = {(g["second"][0], g["policy"]): g for g in found["gaps"] if {g["first"][1], g["second"][1]} <= {None, rank}}
    each = []
    for policy in policies:
        cells = [_auroc(methods.get((arm, policy))) for arm in arms]
        each.append([policy, _rows(methods, policy), *cells, *_gap(gaps.get((RIVAL, policy)))])
    each.append(["**mean**", "", *(_auroc(methods[arm, None]) for arm in arms), *_gap(gaps.get((RIVAL, None)))])
    others = [[f"aLoRA - {TITLES[arm]}", *_gap(gaps.get((arm, None)))[:1]] for arm in arms if arm != "alora"]
    return "\n\n".join(
        [
            "Mean of the policies, at operating points fitted on validation rows:",
            table(["method", *COLUMNS.values()], overall),
            f"Exact probabilities would show an ECE of {_least_ece(found):.3f} on rows as few as these.",
            "AUROC policy by policy, with the standard deviation over seeds; the gap is aLoRA minus bag of words on "
            "the same rows, with DeLong's p:",
            table(["policy", "test rows", *(TITLES[arm] for arm in arms), "gap [95 %]", "p"], each),
            "The mean gap to every other method:",
            table(["methods", "AUROC gap [95 %]"], others),
            *_ranks(found),
        ]
    )


def _least_ece(found: dict[str, Any], draws: int = 200) -> float:
    """The mean ECE over the policies if labels were drawn from aLoRA's own probabilities."""
    generator, least = np.random.default_rng(0), []
    for run in (
        run for run in found["scores"] if run["arm"] == "alora" and run["rank"] == found["settings"]["adapter"]["rank"]
    ):
        validation, test = (np.array(run[part]["logits"], dtype=np.float64) for part in ("validation", "test"))
        chances_N = positive_probability(test, *fit_calibration(validation, np.array(run["validation"]["label_ids"])))
        ece = [
            compute_metrics(generator.random(len(chances_N)) < chances_N, chances_N, 0.5, 0).value("ece")
            for _ in range(draws)
        ]
        least.append(np.mean([value for value in ece if value is not None]))
    return float(np.mean(least))


def _ranks(found: dict[str, Any]) -> list[str]:
    """Mean AUROC of both kinds at every rank."""
    ranks = sorted({m["rank"] for m in found["methods"] if m["rank"] is not None})
    if len(ranks) < 2:
        return []
    methods = {(m["arm"], m["rank"]): m for m in found["methods"] if m["policy"] is None}
    gaps = {
        g["first"][1]: g
        for g in found["gaps"]
        if g["policy"] is None and g["second"][0] == "lora" and g["first"][1] == g["second"][1]
    }
    rows = [
        [str(rank), *(_cell(methods[arm, rank], "auroc") for arm in ("alora", "lora")), *_gap(gaps.get(rank))[:1]]
        for rank in ranks
        if ("alora", rank) in methods and ("lora", rank) in methods
    ]
    return [
        "Mean AUROC by rank, the learning rates those of the table above:",
        table(["rank", "aLoRA", "standard LoRA", "gap [95 %]"], rows),
    ]


def _margins(logits: list[list[float]]) -> list[float]:
    """Logit of the positive label above the other; of several others, above their log-sum-exp."""
    values = np.array(logits, dtype=np.float64).reshape(len(logits), -1)
    return (values[:, 0] - np.logaddexp.reduce(values[:, 1:], axis=1)).tolist() if len(values) else []


def _cell(method: dict[str, Any], name: str) -> str:
    figure = method["figures"][name]
    text = f"{figure['value']:.3f}"
    return f"{text} [{figure['low']:.3f}, {figure['high']:.3f}]" if name == "auroc" else text


def _auroc(method: dict[str, Any] | None) -> str:
    if method is None:
        return ""
    spread = method["spread"]["auroc"]
    return f"{method['figures']['auroc']['value']:.3f}" + (f" ± {spread:.3f}" if spread is not None else "")


def _rows(methods: dict[Any, Any], policy: str) -> str:
    item = next(method for (_, name), method in methods.items() if name == policy)
    return f"{item['rows']} ({item['positives']}+)"


def _gap(gap: dict[str, Any] | None) -> list[str]:
    if gap is None:
        return ["", ""]
    p = gap["p_delong"]
    return [
        f"{gap['value']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]",
        "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
