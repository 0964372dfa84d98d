"""``alora recalibrate`` and ``alora fleet`` on a battery that was trained for real."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import scipy.special

from alora.adapter.folder import AdapterWeights, save_adapter
from alora.base.load import load_base
from alora.bundle.manifest import CARD_FILE, CERTIFICATE_FILE
from alora.bundle.move import parity_run
from alora.bundle.read import load_battery, load_bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.cli import main
from alora.config.schema import BaseSettings, DataSettings, EvaluationSettings, IdentitySettings
from alora.data.labelled import read_multilabelled
from alora.data.probes import probe_conversations
from alora.errors import DataError
from alora.evaluation.calibration import fit_operating_point, positive_probability
from alora.evaluation.predict import predict
from alora.identity.certificate import read_certificate
from alora.identity.certify import certify
from alora.prefix.scorer import Scorer
from tests.integration.lab.compare.places import make_place, overrides
from tests.unit.bundle.cases import with_weights


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = make_place(tmp_path_factory.mktemp("operations"))
    assert main(["train", *overrides(place, place / "run", "adapter.rank=4", "training.learning_rate=3e-3")]) == 0
    return place


@pytest.fixture
def battery(place, tmp_path):
    return shutil.copytree(place / "run/battery", tmp_path / "battery")


def recalibrate(place, artifact, *more: str) -> int:
    rows = f"data.validation={place / 'validation.jsonl'}"
    return main(
        ["recalibrate", f"artifact={artifact}", f"base.source={place / 'base'}", rows, "evaluation.bootstrap=60", *more]
    )


def digests(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_battery_gets_the_thresholds_of_another_precision(place, battery, tmp_path):
    before = digests(battery)
    assert recalibrate(place, battery, "base.dtype=bfloat16", f"output={tmp_path / 'half'}") == 0
    assert digests(battery) == before
    half = load_battery(tmp_path / "half")
    base = load_base(BaseSettings(source=str(place / "base"), dtype="bfloat16"))
    rows = read_multilabelled(str(place / "validation.jsonl"), DataSettings(), [b.policy for b in half])
    with Scorer(base, [bundle.weights for bundle in half]) as scorer:
        answers = predict(
            scorer, half[0].renderer(base), [b.policy for b in half], [b.suffix for b in half], rows, progress=False
        )
    for bundle, old, answer in zip(half, load_battery(battery), answers, strict=True):
        point = bundle.manifest.operating_point
        expected = fit_operating_point(answer.logits_NL, answer.label_ids_N, EvaluationSettings(bootstrap=60))
        assert point == replace(expected, dtype="bfloat16", engine="packed")
        assert point.threshold_low <= point.threshold <= point.threshold_high
        assert (bundle.manifest.base.dtype, old.manifest.base.dtype) == ("bfloat16", "float32")
        assert bundle.weights.digest == old.weights.digest
        assert bundle.manifest.certificate is not None
        assert bundle.manifest.data["train"] == old.manifest.data["train"]
        assert "bfloat16" in (bundle.folder / "README.md").read_text()
    points = [bundle.manifest.operating_point.threshold for bundle in half]
    assert points != [bundle.manifest.operating_point.threshold for bundle in load_battery(battery)]


def test_one_bundle_in_its_place_for_the_lowest_cost(place, battery, capsys):
    assert recalibrate(place, battery / "red", "evaluation=lowest_cost", "json=true") == 0
    told = json.loads(capsys.readouterr().out)
    point = load_bundle(battery / "red").manifest.operating_point
    assert (point.target, point.costs, point.dtype, point.engine) == ("cost", (1.0, 10.0), "float32", "packed")
    assert told["policies"][0]["threshold"] == point.threshold
    assert told["bundles"] == [str(battery / "red")]
    assert load_bundle(battery / "blue").manifest.operating_point.target == "f1"
    assert recalibrate(place, battery, "base.dtype=bfloat16") == 0  # each for what it was fitted for
    targets = [bundle.manifest.operating_point for bundle in load_battery(battery)]
    assert [(p.target, p.costs, p.dtype) for p in targets] == [
        ("cost", (1.0, 10.0), "bfloat16"),
        ("f1", None, "bfloat16"),
    ]


def test_a_battery_moves_to_four_bits_as_a_whole_with_a_parity_run(place, battery, tmp_path, capsys):
    """A moved bundle records how far its golden rows moved; a later fit on the same base keeps the record."""
    before = digests(battery)
    assert recalibrate(place, battery, "base.quantization=nf4", "policies=[red]") == 2
    assert "would leave the battery on two bases" in capsys.readouterr().err
    assert digests(battery) == before
    assert recalibrate(place, battery, "base.quantization=nf4", f"output={tmp_path / 'nf4'}") == 0
    for bundle, old in zip(load_battery(tmp_path / "nf4"), load_battery(battery), strict=True):
        assert (bundle.manifest.base.fingerprint.quantization, bundle.weights.digest) == ("nf4", old.weights.digest)
        own, former = (read_certificate(item.folder / CERTIFICATE_FILE) for item in (bundle, old))
        assert own.passed
        assert own.base.quantization == "nf4" != former.base.quantization
        assert bundle.manifest.operating_point != old.manifest.operating_point
        moved = bundle.manifest.moved
        assert (old.manifest.moved, moved is None) == (None, False)
        assert (moved.quantization, moved.dtype, moved.rows) == ("none", "float32", len(old.golden))
        here, there = (
            np.array([scipy.special.log_softmax(row.label_logits) for row in item.golden]) for item in (old, bundle)
        )
        largest = np.max(np.abs(here - there) / np.maximum(1, np.abs(here)))
        assert moved.largest_difference == pytest.approx(largest)
        assert largest > 1e-4
        fired = [
            [positive_probability(np.array([row.label_logits]), point.temperature, point.bias)[0] >= point.threshold
             for row in item.golden]
            for item in (old, bundle) for point in [item.manifest.operating_point]
        ]  # fmt: skip
        assert moved.same_verdict == sum(one == other for one, other in zip(*fired, strict=True))
    assert recalibrate(place, tmp_path / "nf4", "base.quantization=nf4", "evaluation.target=recall") == 0
    kept = load_bundle(tmp_path / "nf4/red").manifest.moved
    assert kept is not None
    assert kept.quantization == "none"
    assert "measured before the operating point was fitted again" in (tmp_path / "nf4/red" / CARD_FILE).read_text()


def test_a_parity_run_sees_another_adapter(place, battery):
    """The control: on the same base the answers are the same, and those of its opposite turn."""
    base = load_base(BaseSettings(source=str(place / "base"), dtype="float32"))
    bundle = load_bundle(battery / "red")
    point = bundle.manifest.operating_point
    same = parity_run(bundle, base, point)
    assert same.same_verdict == same.rows == len(bundle.golden) > 1
    assert same.largest_difference is not None
    assert same.largest_difference < 1e-5
    broken = replace(bundle, golden=tuple(replace(row, label_logits=(math.nan, 0.0)) for row in bundle.golden))
    with pytest.raises(DataError, match="are not finite"):
        parity_run(broken, base, point)
    opposite = AdapterWeights(bundle.weights.spec, {n: (a, -b) for n, (a, b) in bundle.weights.tensors.items()})
    turned = parity_run(with_weights(replace(bundle), opposite), base, point)
    assert turned.largest_difference is not None
    assert turned.largest_difference > 0.1


def test_rows_that_choose_nothing_change_nothing(place, battery, tmp_path, capsys):
    lines = (place / "validation.jsonl").read_text().splitlines()
    (tmp_path / "one.jsonl").write_text("\n".join(line for line in lines if json.loads(line)["labels"]["red"] == "ok"))
    before = digests(battery)
    assert recalibrate(place, battery, f"data.validation={tmp_path / 'one.jsonl'}") == 2
    assert "all of one class" in capsys.readouterr().err
    assert recalibrate(place, battery, "scorer=http://127.0.0.1:9") == 2
    assert recalibrate(place, battery, f"data.validation={tmp_path / 'none.jsonl'}") == 2
    assert digests(battery) == before


def fleet(place, battery, *more: str) -> int:
    rows = f"data.test={place / 'test.jsonl'}"
    base = f"base.source={place / 'base'}"
    return main(["fleet", f"battery={battery}", base, rows, "evaluation.bootstrap=20", f"output={battery}", *more])


def degrade(place, battery, policy: str) -> None:
    """The policy's adapter answers the opposite: B with its sign turned, certified and bundled as any other."""
    old = load_bundle(battery / policy)
    tensors = {name: (a_rd, -b_or) for name, (a_rd, b_or) in old.weights.tensors.items()}
    weights = AdapterWeights(old.weights.spec, tensors)
    base = load_base(BaseSettings(source=str(place / "base")))
    save_adapter(weights, place / f"degraded-{policy}", "base")
    prompts = [old.renderer(base).prompt(talk, old.policy) for talk in probe_conversations(2, "test")]
    settings = IdentitySettings(dtypes=["float32"], negative_controls=False)
    certificate = certify(base, place / f"degraded-{policy}", prompts, settings)
    point = old.manifest.operating_point
    contents = BundleContents(
        old.policy, old.manifest.prompt, point, base=base, weights=weights, certificate=certificate
    )
    write_bundle(contents, battery / policy, golden_rows=1)


def test_a_battery_beside_itself_passes(place, battery, capsys):
    assert fleet(place, battery, f"fleet.against={place / 'run/battery'}", "fleet.tolerance=0") == 0
    out = capsys.readouterr().out
    assert out.count("unchanged") == 2
    assert "REGRESSED" not in out
    written = (battery / "fleet.json").read_text()
    assert "says red" not in written.replace("Nobody says red", ""), "no word of a conversation"
    found = json.loads(written)
    assert found["regressed"] == []
    fires = np.array(found["crossfire"]["fires"])
    assert fires[0, 0] > 0.5 > fires[0, 1]  # red and blue never share a row
    assert fires[1, 1] > 0.5 > fires[1, 0]


def test_a_degraded_adapter_fails_and_is_named(place, battery, capsys):
    degrade(place, battery, "red")
    assert fleet(place, battery, f"fleet.against={place / 'run/battery'}") == 1
    assert "REGRESSED: auroc" in capsys.readouterr().out
    found = json.loads((battery / "fleet.json").read_text())
    assert found["regressed"] == ["red"]
    assert [drift["state"] for drift in found["drifts"]] == ["changed", "unchanged"]
    assert fleet(place, battery) == 0  # without a last version there is nothing to fall from


def test_a_policy_that_is_gone_fails(place, battery):
    content = json.loads((battery / "battery.json").read_text())
    (battery / "battery.json").write_text(json.dumps(content | {"bundles": ["red"]}))
    assert fleet(place, battery, f"fleet.against={place / 'run/battery'}") == 1
    assert json.loads((battery / "fleet.json").read_text())["regressed"] == ["blue"]
    assert fleet(place, battery, f"fleet.against={place / 'run/battery'}", "policies=[red]") == 0


def test_a_policy_whose_rows_cannot_be_read_fails_and_is_named(place, battery, tmp_path, capsys):
    shutil.copy(place / "test.jsonl", tmp_path / "red.jsonl")
    for content, code in ((place / "test.jsonl").read_text(), 0), ("not JSON", 1):
        (tmp_path / "blue.jsonl").write_text(content)
        assert fleet(place, battery, f"data.test={tmp_path}/%policy%.jsonl") == code
        assert list(json.loads((battery / "fleet.json").read_text())["unusable"]) == ["blue"] * code
    assert "blue is left out" in capsys.readouterr().err
    assert fleet(place, battery, f"data.test={tmp_path}/%policy%.jsonl", "json=true") == 1
    told = capsys.readouterr()
    assert "blue is left out" in told.err
    assert json.loads(told.out) == json.loads((battery / "fleet.json").read_text())


def test_rows_that_the_run_was_trained_on_are_told(place, tmp_path, capsys):
    """In its folder: a battery elsewhere does not know them."""
    of_run, known = place / "run/battery", f"{place / 'train.jsonl'}"
    for rows, leaks in ((known, 2), (f"{place / 'test.jsonl'}", 0)):
        assert fleet(place, of_run, f"data.test={rows}", f"output={tmp_path}") == 0
        assert capsys.readouterr().err.count("[LEAK]") == leaks
        found = json.loads((tmp_path / "fleet.json").read_text())["evaluations"]
        assert [item["trained_on"] for item in found] == [40 * bool(leaks)] * 2
        assert recalibrate(place, of_run, f"data.validation={rows}", f"output={tmp_path / 'again'}") == 0
        told = capsys.readouterr().err
        assert told.count("[LEAK]") == leaks
        assert not leaks or "red: 40 of 40 rows are of its training" in told
