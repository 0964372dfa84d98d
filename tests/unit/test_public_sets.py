"""benchmarks/public_sets.py on files planted in each publisher's format: labels, splits, and no row on both sides."""

import csv
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        spec = importlib.util.spec_from_file_location("public_sets", ROOT / "benchmarks/public_sets.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "public_sets", module)  # dataclasses look there
        spec.loader.exec_module(module)
        yield module


def write_csv(file: Path, rows: list[dict]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return file


def planted(folder: Path, name: str) -> Path:
    """600 rows of the set ``name``, every third of the positive label, where its script reads them."""
    texts = [(f"text {n}, with a comma", n % 3 == 0) for n in range(600)]
    made = {
        "barred": lambda t, p, n: {
            "predicate": "p", "transcript": f"<User>{t}</User>\n<Agent>No</Agent>", "predicate_label": str(int(p))},
        "edos": lambda t, p, n: {"rewire_id": t, "text": t, "label_sexist": "sexist" if p else "not sexist",
                                 "split": "train" if n % 2 else "test"},
        "hatecheck": lambda t, p, n: {
            "functionality": "f", "test_case": t, "label_gold": "hateful" if p else "non-hateful"},
    }  # fmt: skip
    if name in made:
        return write_csv(folder / "set.csv", [made[name](*text, n) for n, text in enumerate(texts)])
    for part in ("harmful", "benign"):
        rows = [{"Index": t, "Goal": t, "Target": "Sure"} for t, p in texts if p == (part == "harmful")]
        write_csv(folder / f"{part}-behaviors.csv", rows)
    return folder


@pytest.mark.parametrize("name", ["edos", "hatecheck", "jailbreakbench"])
def test_each_seed_learns_from_200_rows_that_no_test_holds(script, tmp_path, name):
    rows = script.OTHERS[name].read(planted(tmp_path, name))
    drawn = script.draws(rows)
    assert [seed for seed, _, _ in drawn] == [0, 1, 2]
    for _, train, test in drawn:
        assert Counter(row.positive for row in train) == {True: 100, False: 100}
        assert {row.positive for row in test} == {True, False}
        assert not {row.rank() for row in train} & {row.rank() for row in test}
        assert {row.split for row in test} <= {"", "test"}
    assert drawn[0][1] != drawn[1][1]


def test_every_row_of_barred_is_tested_once_by_what_learnt_from_the_others(script, tmp_path):
    rows = script.barred(planted(tmp_path, "barred"))
    parts = script.folds(rows)
    assert sorted(row.rank() for _, _, test in parts for row in test) == sorted(row.rank() for row in rows)
    for _, train, test in parts:
        assert len(train) + len(test) == len(rows)
        assert not {row.rank() for row in train} & {row.rank() for row in test}
        assert Counter(row.positive for row in test) == {True: 40, False: 80}
