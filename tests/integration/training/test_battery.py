"""A battery: several policies in one run, each as good as alone, none hurt by another."""

import json
from dataclasses import replace

import pytest
import torch

from alora.adapter.folder import WEIGHTS_FILE, AdapterSpec, load_adapter, new_adapter
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.training.examples import Example, Target
from alora.training.loop import fit
from tests.forked import kill_when, run_forked, start_forked
from tests.integration.training.last_weights import LastWeights
from tests.peft_reference import ALL_TARGETS, ATTENTION_TARGETS, relative_error
from tests.toy_models import toy_model
from tests.toy_recipe import toy_overrides

INVOCATION, LABELS = (5, 6, 7), (11, 12)
SHAPES = ((4, 8.0, False, ALL_TARGETS), (2, 1.4, False, ATTENTION_TARGETS), (6, 3.0, True, ("down_proj", "q_proj")))


def _base(dtype=torch.float64) -> LoadedBase:
    return LoadedBase(toy_model("qwen3", dtype), None, Fingerprint("w", "t", "c"), "toy")  # pyright: ignore[reportArgumentType]


def _fresh(base, place):
    rank, alpha, rank_stabilised, targets = SHAPES[place]
    spec = AdapterSpec(rank, alpha, tuple(sorted(targets)), INVOCATION, rank_stabilised)
    return new_adapter(spec, base.model, seed=place)


def _rows(count: int, policies, first: int = 0) -> list[Example]:
    rows = []
    for number in range(first, first + count):
        generator = torch.Generator().manual_seed(number)
        prefix = tuple(torch.randint(20, 190, (5 + number % 7,), generator=generator).tolist())
        targets = [
            Target(place, (*INVOCATION, *range(30 + policy, 33 + 2 * policy)), LABELS, (number >> policy) % 2)
            for place, policy in enumerate(policies)
        ]
        rows.append(Example(prefix, tuple(targets)))
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


def _distance(ours, theirs) -> float:
    assert ours.tensors.keys() == theirs.tensors.keys()
    pairs = zip(ours.tensors.values(), theirs.tensors.values(), strict=True)
    return max(relative_error(o, t) for mine, other in pairs for o, t in zip(mine, other, strict=True))


def test_each_policy_equals_itself_trained_alone(tmp_path):
    together, last = _fit(tmp_path / "together", (0, 1, 2))
    for policy in range(3):
        alone, (alone_last,) = _fit(tmp_path / f"alone{policy}", (policy,))
        assert _distance(together.adapters[policy], alone.adapters[0]) <= 1e-6
        assert _distance(last[policy], alone_last) <= 1e-6
        assert together.standings[policy].best_step == alone.standings[0].best_step


@pytest.mark.parametrize(("patience", "steps"), [(1, 40), (3, 60)])
def test_a_policy_that_stops_early_stops_as_it_would_alone(patience, steps, tmp_path):
    """Each policy is at its best before the end, at a step of its own. What a stopped policy has last is what it
    stopped with, while the others go on."""
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
        assert _distance(together.adapters[policy], alone.adapters[0]) <= 1e-6
        assert _distance(last[policy], alone_last) <= 1e-6
        assert _distance(together.adapters[policy], last[policy]) > 1e-3
    patient, _ = _fit(tmp_path / "patient", (0,), **options | {"patience": 0})
    assert patient.standings[0].stopped_at is None


def test_another_seed_is_far_away(tmp_path):
    """Negative control: 1e-6 is not what any two runs have."""
    (_, one), (_, other) = _fit(tmp_path / "one", (0,)), _fit(tmp_path / "other", (0,), seed=1)
    assert _distance(one[0], other[0]) > 1e-3


def _two(folder, second, rows=None):
    """The first policy beside a ``second`` adapter, and its distance from the first one trained alone."""
    alone, _ = _fit(folder / "alone", (0,), steps=12)
    settings = TrainingSettings(
        max_steps=12, batch_size=4, learning_rate=3e-3, early_stopping_patience=0, max_suffix_tokens=40
    )
    pair = rows or (_rows(40, (0, 1)), _rows(8, (0, 1), 90))
    fitted = fit(_base(), [_fresh(_base(), 0), second], *pair, settings, folder / "both", progress=False)
    return fitted, _distance(fitted.adapters[0], alone.adapters[0])


def test_a_policy_that_diverges_on_the_way_is_dropped_and_hurts_nobody(tmp_path):
    """Its first loss is finite, because B is zero; two steps then take it to infinity."""
    sick = new_adapter(AdapterSpec(2, 1e140, tuple(sorted(ALL_TARGETS)), INVOCATION), _base().model, seed=1)
    fitted, distance = _two(tmp_path, sick)
    assert "is not finite at step 2" in fitted.standings[1].dropped
    assert fitted.standings[0].dropped is None
    assert distance <= 1e-6


def test_a_policy_without_a_gradient_is_dropped_and_hurts_nobody(tmp_path):
    """Both of its labels are the same token, so that no weights tell them apart."""
    rows = []
    for part in (_rows(40, (0, 1)), _rows(8, (0, 1), 90)):
        rows.append([replace(row, targets=(row.targets[0], _same_words(row.targets[1]))) for row in part])
    fitted, distance = _two(tmp_path, _fresh(_base(), 1), rows)
    assert "no gradient reached 12 adapted layer" in fitted.standings[1].dropped
    assert fitted.standings[0].dropped is None
    assert distance <= 1e-6


def _same_words(target: Target) -> Target:
    return replace(target, label_token_ids=(11, 11))


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


@pytest.fixture(scope="module")
def battery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("battery")
    overrides = toy_overrides(folder, folder / "run")
    _policies(folder)
    overrides.append("policies=[red,blue,rare,typo]")
    code, output, errors = run_forked("train", *overrides, cache=folder / "cache")
    return folder, code, output, errors, overrides


def test_the_battery_is_trained_and_the_unusable_policy_is_named(battery):
    folder, code, output, errors, _ = battery
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


def test_a_killed_battery_goes_on_and_ends_with_the_same_bytes(battery, tmp_path):
    folder, overrides, run = battery[0], battery[4], tmp_path / "run"
    again = [f"run_dir={run}" if item.startswith("run_dir=") else item for item in overrides]
    process = start_forked("train", *again, cache=folder / "cache")
    kill_when(process, lambda: (run / "checkpoints/checkpoint-6/complete.json").exists())
    assert not list(run.glob("policies/*/adapter"))
    code, _, errors = run_forked("train", *again, cache=folder / "cache")
    assert code == 1, errors
    assert "going on in" in errors
    for name in ("red", "blue"):
        ours, wanted = (place / "policies" / name / "adapter" / WEIGHTS_FILE for place in (run, folder / "run"))
        assert ours.read_bytes() == wanted.read_bytes()
        ours, wanted = (
            json.loads((place / "policies" / name / "training.json").read_text()) for place in (run, folder / "run")
        )
        assert ours["standing"] == wanted["standing"]
