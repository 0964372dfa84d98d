"""Folders that an earlier alora wrote (``tests/make_received.py``): they open and say the same as then, and one changed
byte in any of their files is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import alora
from alora.adapter.folder import load_adapter
from alora.batch.stored_verdicts import read_manifest, schema, tables
from alora.bundle.artifact import find_artifact, saved_run
from alora.bundle.read import load_bundle
from alora.cli import main
from alora.config.schema import DataSettings
from alora.data.splits import read_splits
from alora.errors import AloraError
from alora.evaluation.tables import read_evaluations
from alora.identity.certificate import read_certificate
from alora.policy import read_policies
from alora.training.layout import EVALUATION, IDENTITY, TRAINING, home_of
from alora.training.run_folder import open_claim
from alora.training.standings import require_trained
from tests.integration.llm.scripted import command, honest
from tests.make_received import IDS, VERDICTS, digests
from tests.unit.llm.endpoint import endpoint

RECEIVED = Path(__file__).parents[1] / "fixtures" / "received"
NEAR = 1e-6  # processors differ
BATTERIES = ("battery", "run/battery")
PAGE, FIGURES = "a page for people, which nothing reads", "it has no digest: another number in its place is as good"
# Files in which a changed byte is not refused, and why.
NOT_REFUSED = {
    **dict.fromkeys(("run/report.html", *(f"run/policies/{name}/report.html" for name in IDS)), PAGE),
    **{f"run/policies/{name}/predictions.parquet": "a table for people, which nothing reads" for name in IDS},
    **{f"run/policies/{name}/training.json": f"the losses of the training: {FIGURES}" for name in IDS},
    **{
        f"verdicts/verdicts-0000{number}.parquet": f"a column of tokens or probabilities: {FIGURES}"
        for number in (1, 2)
    },
    "verdicts.parquet": f"a column of tokens or probabilities: {FIGURES}",
    "generated/dimensions.yaml": "the user's to edit",
    "generated/report.json": "for people; made anew",
    "generated/report.md": "for people; made anew",
    "generated/calls.jsonl": "a cache: an answer that cannot be read is asked for again",
}
# Where the refusal names a file next to it: one of the two was changed, and which it was cannot be known.
NAMED = {f"run/policies/{name}/adapter/adapter_model.safetensors": "training.json" for name in IDS}
NAMED |= {"generated/generated.json": "train.jsonl", "verdicts/manifest.json": "verdicts"}


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def recorded() -> list[dict]:
    return lines(RECEIVED / "verdicts.jsonl")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("name", ["bundle", *BATTERIES, "run"])
def test_verdicts_are_those_of_then(name):
    rows = lines(RECEIVED / "test.jsonl")
    with alora.load(RECEIVED / name, base=RECEIVED / "base") as battery:
        assert battery.policies == (("shades",) if name == "bundle" else IDS)
        for then, now in zip(recorded(), battery.score_many(rows), strict=True):
            wanted = [verdict for verdict in then["verdicts"] if verdict["policy"] in battery.policies]
            assert_same(wanted, now.as_dict()["verdicts"])


def assert_same(then: object, now: object) -> None:
    """Numbers that are computed are near, all else is equal."""
    if isinstance(then, float):
        assert now == pytest.approx(then, abs=NEAR, rel=NEAR)
    elif isinstance(then, dict):
        assert isinstance(now, dict)
        assert list(then) == list(now)
        for key in then:
            assert_same(then[key], now[key])
    elif isinstance(then, list):
        assert isinstance(now, list)
        assert len(then) == len(now)
        for one, other in zip(then, now, strict=True):
            assert_same(one, other)
    else:
        assert then == now


def test_digests_are_those_of_then():
    assert digests(RECEIVED) == json.loads((RECEIVED / "digests.json").read_text())


@pytest.mark.parametrize("name", VERDICTS)
def test_stored_verdicts_are_those_of_then(name):
    job = read_manifest(RECEIVED / name)["job"]
    stored = [
        row for table in tables(RECEIVED / name, schema(list(job["policies"])).names) for row in table.to_pylist()
    ]
    assert len(stored) == len(recorded())
    for then, row in zip(recorded(), stored, strict=True):
        for verdict in then["verdicts"]:
            own = {key: row[f"{verdict['policy']}_{key}"] for key in ("probability", "label", "flagged", "threshold")}
            wanted = {key: verdict[key] for key in ("probability", "label")}
            assert_same(wanted | {"flagged": verdict["violated"], "threshold": verdict["threshold"]}, own)


def test_a_run_is_evaluated_as_then(tmp_path):
    data = [f"data.{split}={RECEIVED / split}.jsonl" for split in ("train", "validation", "test")]
    base, output = f"base.source={RECEIVED / 'base'}", f"output={tmp_path / 'evaluation.json'}"
    assert main(["evaluate", f"artifact={RECEIVED / 'run'}", base, output, *data, "evaluation.bootstrap=20"]) == 0
    found = {item["policy"]: item for item in json.loads((tmp_path / "evaluation.json").read_text())["evaluations"]
             if item["method"] == "alora"}  # fmt: skip
    for name in IDS:
        then = json.loads((RECEIVED / f"run/policies/{name}/evaluation.json").read_text())["evaluations"]
        (adapter,) = [item for item in then if item["method"] == "alora"]
        for part in ("split", "metrics", "confusion", "operating_point", "adapter_digest", "label_counts"):
            assert_same(adapter[part], found[name][part])


def test_the_certificate_covers_the_bundle():
    certificate, manifest = read_certificate(RECEIVED / "certificate.json"), load_bundle(RECEIVED / "bundle").manifest
    certificate.require(manifest.base.fingerprint, manifest.adapter_digest)
    assert certificate.passed
    assert json.dumps(certificate.as_dict(), indent=2) + "\n" == (RECEIVED / "certificate.json").read_text()


def test_generated_rows_are_read_and_generated_again_as_then(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(RECEIVED / "generated", tmp_path / "out")
    shutil.copy(RECEIVED / "policy.yaml", tmp_path)
    policies = read_policies("policy.yaml")
    splits, left_out = read_splits(DataSettings(train="out/train.jsonl", validation="out/validation.jsonl"), policies)
    assert not left_out
    assert [row.labels for row in splits.train] == [{"no_refunds": row["label"]} for row in lines(copy / "train.jsonl")]
    assert generate(copy) == (0, 0)  # every answer is there already
    for name in ("train.jsonl", "validation.jsonl", "dropped.jsonl"):
        assert (copy / name).read_bytes() == (RECEIVED / "generated" / name).read_bytes()


def generate(folder: Path) -> tuple[int, int]:
    """``alora generate`` over ``folder``: its exit code, and the number of requests."""
    with endpoint(honest) as server:
        return main(command(server.url, f"output={folder}")), len(server.bodies)


def open_bundles(folder: Path) -> None:
    alora.load(folder, base=RECEIVED / "base").close()


def open_run(folder: Path) -> None:
    """All that a verb reads of a run."""
    artifact = find_artifact(folder)
    recipe = saved_run(artifact)
    assert recipe is not None
    claim = open_claim(folder, recipe)
    for adapter in artifact.adapters:
        home, digest = home_of(adapter), load_adapter(adapter).digest
        require_trained(home / TRAINING, home.name, digest)
        read_evaluations(home / EVALUATION)
        read_certificate(home / IDENTITY).require(claim.base, digest)
    open_bundles(folder)


def open_verdicts(path: Path) -> None:
    job = read_manifest(path)["job"]
    for _ in tables(path, schema(list(job["policies"])).names):
        pass


OPENED: dict[str, Callable[[Path], object]] = {
    "bundle": open_bundles,
    "battery": open_bundles,
    "run": open_run,
    "certificate.json": read_certificate,
    "verdicts.parquet": open_verdicts,
    "verdicts": open_verdicts,
}
FILES = [
    str(file.relative_to(RECEIVED))
    for name in (*OPENED, "generated")
    for file in ([RECEIVED / name] if (RECEIVED / name).is_file() else sorted((RECEIVED / name).rglob("*")))
    if file.is_file()
]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def refusal(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a copy of ``name``'s folder, with one byte of ``name`` changed."""
    folder, copy = name.partition("/")[0], tmp_path / name.partition("/")[0]
    (shutil.copytree if (RECEIVED / folder).is_dir() else shutil.copy)(RECEIVED / folder, copy)
    flip(tmp_path / name)
    if folder == "generated":
        shutil.copy(RECEIVED / "policy.yaml", tmp_path)
        capsys.readouterr()
        code, _ = generate(copy)
        return capsys.readouterr().err if code == 2 else ""
    try:
        OPENED[folder](copy)
    except AloraError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", [name for name in FILES if (RECEIVED / name).stat().st_size])
def test_a_changed_byte_is_refused_by_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = refusal(name, tmp_path, capsys)
    if name in NOT_REFUSED:
        assert said == ""
    else:
        assert NAMED.get(name, Path(name).name) in said
