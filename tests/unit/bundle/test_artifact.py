"""What stands for a list of policies, what is a bundle, and which of those that are named are taken."""

import json
from dataclasses import replace

import pytest

from alora.base.fingerprint import Fingerprint
from alora.bundle import artifact
from alora.bundle.artifact import Artifact, Kind, base_of_bundle, chosen, find_artifact, members_by_policy, read_bundles
from alora.config.schema import BaseSettings
from alora.errors import BundleError, ConfigError
from tests.unit.bundle.cases import BASE, bundle, manifest


def test_a_battery_of_one_bundle_is_still_a_list(tmp_path):
    (tmp_path / "battery.json").write_text(json.dumps({"schema_version": 1, "bundles": ["advice"]}))
    found = find_artifact(tmp_path)
    assert (found.bundles, found.several) == ((tmp_path / "advice",), True)


def artifact_of(folder, kind: Kind = Kind.BATTERY, run=None) -> Artifact:
    return Artifact(kind, folder, (folder,), (folder,), run)


ITEMS = {"advice": 1, "refunds": 2}


def test_policies_choose_among_several(tmp_path, capsys):
    battery = artifact_of(tmp_path)
    assert chosen(ITEMS, ["refunds"], battery) == {"refunds": 2}
    assert chosen(ITEMS, ["refunds", "*"], battery) == chosen(ITEMS, [], battery) == ITEMS
    assert chosen(ITEMS, ["refunds", "tone"], battery) == {"refunds": 2}
    assert "has no policy tone; going on without" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="has no policy tone; it has advice, refunds"):
        chosen(ITEMS, ["tone"], battery)


def test_all_of_them_or_none(tmp_path):
    with pytest.raises(ConfigError, match="has no policy tone; it has advice, refunds"):
        chosen(ITEMS, ["refunds", "tone"], artifact_of(tmp_path), all_of=True)


def test_members_go_by_their_policy_whatever_their_folder_is_called(tmp_path, monkeypatch):
    policies = {"beta": "alpha", "v2": "beta"}

    def manifest_in(folder):
        if folder.name not in policies:
            raise BundleError("damaged")
        return manifest(policies[folder.name])

    folders = tuple(tmp_path / name for name in ("beta", "v2", "damaged"))
    battery = Artifact(Kind.BATTERY, tmp_path, folders, folders, None)
    monkeypatch.setattr(artifact, "read_manifest", manifest_in)
    assert members_by_policy(battery) == dict(zip(("alpha", "beta", "damaged"), folders, strict=True))
    policies["damaged"] = "alpha"
    with pytest.raises(BundleError, match=r"beta and .*damaged are both of the policy alpha"):
        members_by_policy(battery)


def test_bundles_that_are_named_one_by_one_share_a_base_too(tmp_path, monkeypatch):
    bases = {"a": BASE, "b": replace(BASE, fingerprint=Fingerprint("other", "t", "c"))}
    monkeypatch.setattr(artifact, "find_artifact", lambda name: artifact_of(tmp_path / name, Kind.BUNDLE))
    with pytest.raises(BundleError, match=r"different bases \(weights differ\)"):
        read_bundles(
            list(bases), BaseSettings(), [], lambda folder: bundle(folder, folder.name, base=bases[folder.name])
        )


def test_of_several_folders_policies_are_chosen_together(tmp_path, monkeypatch, capsys):
    """Also the base is that of what was chosen, and no other folder's."""
    bases = {"a": replace(BASE, source="other", fingerprint=Fingerprint("other", "t", "c")), "b": BASE, "c": BASE}
    monkeypatch.setattr(artifact, "find_artifact", lambda name: artifact_of(tmp_path / name, Kind.BUNDLE))

    def read(policies):
        return read_bundles(
            list(bases), BaseSettings(), policies, lambda folder: bundle(folder, folder.name, base=bases[folder.name])
        )

    taken, base = read(["b", "tone"])
    assert ([one.policy.id for one in taken], base.source) == (["b"], BASE.source)
    assert "a, b, c has no policy tone; going on without" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="a, b, c has no policy tone; it has a, b, c"):
        read(["tone"])


def test_the_base_that_is_given_goes_before_the_one_of_the_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").write_text("base:\n  source: /data/trained-on\n")
    made = bundle(run / "bundle", base=replace(BASE, source="trained-on", local=True))
    asked = [
        base_of_bundle(made, artifact_of(run, Kind.RUN, run), BaseSettings(source=s)) for s in (None, "/data/here")
    ]
    assert [base.source for base in asked] == ["/data/trained-on", "/data/here"]
