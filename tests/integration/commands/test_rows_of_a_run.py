"""Commands on a run read labelled rows as the run read its own: the columns, labels and rows that it was trained on."""

import json
import shutil
from dataclasses import replace

import pytest

from alora.cli import main
from alora.evaluation.tables import read_evaluations
from alora.verdict import OperatingPoint
from tests.toy_recipe import toy_overrides

SAYS = {"violation": "red", "ok": "blue"}


def write_rows(file, count, seed):
    """``human`` says what is right; ``label`` is an old guess, and wrong."""
    lines = []
    for number in range(count):
        human, guess = ("violation", "ok") if number % 2 else ("ok", "violation")
        text = f"message {seed} {number} says {SAYS[human]}"
        lines.append({"uid": f"{seed}-{number}", "prompt": text, "human": human, "label": guess})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    overrides = [item for item in toy_overrides(folder, folder / "run") if not item.startswith("data.")]
    names = {"train": 40, "validation": 24, "test": 24}
    rows = [
        f"data.{name}={write_rows(folder / f'{name}.jsonl', n, seed)}" for seed, (name, n) in enumerate(names.items())
    ]
    more = ["data.columns.label=human", "training.learning_rate=0.03", "training.max_steps=40"]
    assert main(["train", *overrides, *rows, *more]) == 0
    return folder


@pytest.fixture
def place(trained, tmp_path):
    """A copy that a test may change."""
    for name in ("train.jsonl", "validation.jsonl", "test.jsonl"):
        shutil.copy(trained / name, tmp_path)
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path


def evaluated(place, *more):
    """AUROC by method."""
    given = (f"artifact={place / 'run'}", f"data.test={place / 'test.jsonl'}", f"output={place / 'out'}", *more)
    assert main(["evaluate", *given, "evaluation.bootstrap=5"]) == 0
    found = read_evaluations(place / "out" / "evaluation.json")
    return {item.method: item.metrics.figures["auroc"].value or 0 for item in found}


def words(file):
    return next(item for item in read_evaluations(file) if item.method == "bag_of_words")


def test_the_bag_of_words_has_the_threshold_that_the_run_gave_it(place, capsys):
    as_trained = words(place / "run/policies/toy/evaluation.json")
    evaluated(place)
    again = words(place / "out/evaluation.json")
    points = [replace(one.operating_point, threshold_low=None, threshold_high=None) for one in (again, as_trained)]
    assert points[0] == points[1] != OperatingPoint()  # the interval is of other resamples
    figures = {name: figure.value for name, figure in as_trained.metrics.figures.items()}
    assert {name: figure.value for name, figure in again.metrics.figures.items()} == figures
    assert "uncalibrated" not in capsys.readouterr().err
    target = ["evaluation.target=recall", "evaluation.target_value=0.6"]
    assert main(["recalibrate", f"artifact={place / 'run'}", *target]) == 0
    evaluated(place)
    again = words(place / "out/evaluation.json").operating_point
    assert (again.target, again.target_value) == ("recall", 0.6), "what it is compared with was fitted for that"
    evaluated(place, f"data.train={place / 'test.jsonl'}")  # other rows, and none to choose a threshold by
    assert words(place / "out/evaluation.json").operating_point == OperatingPoint()
    assert "toy: the bag of words is at 0.5, uncalibrated" in capsys.readouterr().err


def threshold(place, name="run"):
    return json.loads((place / name / "battery/toy/alora.json").read_text())["operating_point"]["threshold"]


def test_one_column_named_leaves_the_others_to_the_run(place):
    as_trained = evaluated(place)
    assert as_trained["alora"] > 0.9
    assert evaluated(place, "data.columns.id=uid") == as_trained
    assert evaluated(place, "data.columns.messages=prompt") == as_trained


def test_what_the_command_spells_out_counts_even_where_it_is_the_default(place):
    right = evaluated(place)["alora"]
    assert evaluated(place, "data.columns.label=label")["alora"] == pytest.approx(1 - right)
    assert "bag_of_words" in evaluated(place)
    assert "bag_of_words" not in evaluated(place, "data.train=null")


def test_a_threshold_fitted_to_named_rows_reads_them_as_the_run_does(place):
    before = threshold(place)
    assert main(["recalibrate", f"artifact={place / 'run'}", f"data.validation={place / 'validation.jsonl'}"]) == 0
    assert threshold(place) == pytest.approx(before)
    named = ["data.columns.label=label", f"data.validation={place / 'validation.jsonl'}"]
    assert main(["recalibrate", f"artifact={place / 'run'}", *named]) == 0
    assert threshold(place) != pytest.approx(before)


@pytest.mark.parametrize("of", ["run", "run/battery/toy", "run/policies/toy/adapter"])
def test_a_setting_that_would_change_nothing_is_refused(trained, place, capsys, of):
    """Its user would take the figures for those of the setting."""
    given = ["evaluate", f"artifact={place / of}", f"base.source={trained / 'base'}", "data.columns.label=human"]
    given += [f"data.test={place / 'test.jsonl'}", f"output={place / 'out'}", "evaluation.bootstrap=5"]
    one = (
        "prompt.layout=turns",
        "prompt=turns",
        "prompt.max_prefix_tokens=20",
        "base.template_kwargs.enable_thinking=true",
    )
    for setting in (*one, "policy.title=Other policy.rule=Other."):
        assert main([*given, *setting.split()]) == 2, setting
        assert not (place / "out").exists()
    assert "keeps to" in capsys.readouterr().err
    assert main([*given, "prompt.layout=transcript", "prompt.max_prefix_tokens=400"]) == 0
    # An option stands for the keys that it sets, and this one leaves prompt.max_prefix_tokens to the run.
    assert main([*given, "prompt=transcript", "evaluation.target=recall"]) == 0
    assert "evaluation.target: without effect on alora evaluate" in capsys.readouterr().err


def test_figures_on_rows_that_the_run_was_trained_on_are_no_news(place, capsys):
    """Nor do they say anything of a bag of words, which knows them, too."""
    run_yaml = place / "run/run.yaml"  # which names the first folder's rows
    first = run_yaml.read_text().split("train: ", 1)[1].split("\n")[0]
    run_yaml.write_text(run_yaml.read_text().replace(first, str(place / "train.jsonl")))
    evaluated(place)
    assert "LEAK" not in capsys.readouterr().err
    lines = (place / "train.jsonl").read_text().splitlines()[:30] + (place / "test.jsonl").read_text().splitlines()
    (place / "mixed.jsonl").write_text("\n".join(lines))
    evaluated(place, f"data.test={place / 'mixed.jsonl'}")
    told = capsys.readouterr().err
    assert "30 of its 54 test rows are rows that it was trained on or calibrated by" in told
    assert "WORDS_BEAT_ADAPTER" not in told
    evaluated(place, f"data.test={place / 'train.jsonl'}", f"data.train={place / 'test.jsonl'}")
    found = read_evaluations(place / "out" / "evaluation.json")
    leaks = {"alora": 40, "bag_of_words": 0}
    assert {item.method: item.trained_on for item in found} == leaks, "the adapter knows the run's own rows"
    evaluated_strictly = ["evaluate", f"artifact={place / 'run'}", f"data.test={place / 'mixed.jsonl'}", "strict=true"]
    assert main([*evaluated_strictly, f"output={place / 'out'}"]) == 1
