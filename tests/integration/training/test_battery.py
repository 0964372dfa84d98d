"""A battery: several policies in one run, each as good as alone, none hurt by another."""

import json

import torch

from alora.adapter.folder import AdapterSpec, load_adapter, new_adapter
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.training.examples import Example, Target
from alora.training.loop import fit
from tests.forked import run_forked
from tests.integration.training.last_weights import LastWeights
from tests.peft_reference import ALL_TARGETS, ATTENTION_TARGETS, adapter_distance
from tests.toy_models import as_base, toy_model, toy_tokens
from tests.toy_recipe import toy_overrides

INVOCATION, LABELS = (5, 6, 7), (11, 12)
SHAPES = ((4, 8.0, False, ALL_TARGETS), (2, 1.4, False, ATTENTION_TARGETS), (6, 3.0, True, ("down_proj", "q_proj")))


def _base() -> LoadedBase:
    return as_base(toy_model("qwen3", torch.float64))


def _fresh(base, place):
    rank, alpha, rank_stabilised, targets = SHAPES[place]
    spec = AdapterSpec(rank, alpha, tuple(sorted(targets)), INVOCATION, rank_stabilised)
    return new_adapter(spec, base.model, seed=place)


def _rows(count: int, policies, first: int = 0) -> list[Example]:
    rows = []
    for number in range(first, first + count):
        targets = [
            Target(place, (*INVOCATION, *range(30 + policy, 33 + 2 * policy)), LABELS, (number >> policy) % 2)
            for place, policy in enumerate(policies)
        ]
        rows.append(Example(toy_tokens(5 + number % 7, number), tuple(targets)))
    return rows


def _fit(folder, policies, steps=20, learning_rate=3e-3, patience=0, **kwargs):
    base = _base()
    settings = TrainingSettings(
        max_steps=steps,
        batch_size=4,
        learning_rate=learning_rate,
        early_stopping_patience=patience,
        max_suffix_tokens=40,
        **kwargs,
    )
    adapters, last = [_fresh(base, policy) for policy in policies], LastWeights()
    rows = (_rows(40, policies), _rows(8, policies, 90))
    return fit(base, adapters, *rows, settings, folder, progress=False, callbacks=[last]), last.adapters


def test_each_policy_equals_itself_trained_alone(tmp_path):
    together, last = _fit(tmp_path / "together", (0, 1, 2))
    for policy in range(3):
        alone, (alone_last,) = _fit(tmp_path / f"alone{policy}", (policy,))
        assert adapter_distance(together.adapters[policy], alone.adapters[0]) <= 1e-6
        assert adapter_distance(last[policy], alone_last) <= 1e-6
        assert together.standings[policy].best_step == alone.standings[0].best_step


def test_a_policy_that_stops_early_stops_as_it_would_alone(tmp_path):
    """Each policy is at its best before the end, at a step of its own. What a stopped policy has last is what it
    stopped with, while the others go on."""
    patience, steps = 1, 40
    options = {"steps": steps, "learning_rate": 1e-2, "patience": patience, "evaluations_per_epoch": 5}
    together, last = _fit(tmp_path / "together", (0, 1, 2), **options)
    stops = [standing.stopped_at for standing in together.standings]
    assert all(stop is not None and stop < steps for stop in stops)
    assert len(set(stops)) == 3
    assert {standing.evaluations_since_best for standing in together.standings} == {patience}
    for policy in range(3):
        alone, (alone_last,) = _fit(tmp_path / f"alone{policy}", (policy,), **options)
        ours, theirs = together.standings[policy], alone.standings[0]
        assert (ours.stopped_at, ours.best_step) == (theirs.stopped_at, theirs.best_step)
        assert ours.stopped_at - ours.best_step == 2 * patience  # an evaluation every second step
        assert adapter_distance(together.adapters[policy], alone.adapters[0]) <= 1e-6
        assert adapter_distance(last[policy], alone_last) <= 1e-6
        assert adapter_distance(together.adapters[policy], last[policy]) > 1e-3


def test_another_seed_is_far_away(tmp_path):
    """Negative control: 1e-6 is not what any two runs have."""
    (_, one), (_, other) = _fit(tmp_path / "one", (0,)), _fit(tmp_path / "other", (0,), seed=1)
    assert adapter_distance(one[0], other[0]) > 1e-3


def test_a_policy_that_diverges_on_the_way_is_dropped_and_hurts_nobody(tmp_path):
    """Its first loss is finite, because B is zero; two steps then take it to infinity."""
    base = _base()
    sick = new_adapter(AdapterSpec(2, 1e140, tuple(sorted(ALL_TARGETS)), INVOCATION), base.model, seed=1)
    alone, _ = _fit(tmp_path / "alone", (0,), steps=12)
    settings = TrainingSettings(
        max_steps=12, batch_size=4, learning_rate=3e-3, early_stopping_patience=0, max_suffix_tokens=40
    )
    rows = _rows(40, (0, 1)), _rows(8, (0, 1), 90)
    fitted = fit(base, [_fresh(base, 0), sick], *rows, settings, tmp_path / "both", progress=False)
    assert "is not finite at step 2" in fitted.standings[1].dropped
    assert fitted.standings[0].dropped is None
    assert adapter_distance(fitted.adapters[0], alone.adapters[0]) <= 1e-6


def _policies(folder):
    (folder / "policy.yaml").write_text(
        "policies:\n"
        "- {id: red, title: No red, rule: Nobody says red.}\n"
        "- {id: blue, title: No blue, rule: Nobody says blue.}\n"
        "- {id: rare, title: Never seen, rule: Nobody says anything.}\n"
        "- {id: typo, title: Typed badly, rule: Nobody says green.}\n"
    )
    for split in ("train", "test"):
        rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
        for row in rows:
            red = row.pop("label") == "violation"
            del row["policy"]
            row["labels"] = {
                "red": "violation" if red else "ok",
                "blue": None if row["id"].endswith("5") else ("ok" if red else "violation"),
                "rare": "ok",
                "typo": "violatoin" if row["id"] == "0-8" else "violation" if red else "ok",
            }
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_battery_is_trained_and_the_unusable_policy_is_named(tmp_path):
    folder, overrides = tmp_path, toy_overrides(tmp_path, tmp_path / "run")
    _policies(folder)
    overrides.append("policies=[red,blue,rare,typo]")
    code, output, errors = run_forked("train", *overrides, cache=folder / "cache")
    assert code == 1, errors
    assert "rare" in output
    assert "hold no 'violation' of policy 'rare'" in output
    assert "train.jsonl:9: label 'violatoin' is not one of violation, ok of policy 'typo'" in output
    listed = json.loads((folder / "run/battery/battery.json").read_text())["bundles"]
    assert listed == ["red", "blue"]
    for name in listed:
        assert load_adapter(folder / "run/battery" / name).spec.activated
        for file in ("adapter/adapter_model.safetensors", "training.json", "evaluation.json", "identity.json"):
            assert (folder / "run/policies" / name / file).exists()
