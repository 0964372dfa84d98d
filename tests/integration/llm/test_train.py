"""``alora train data.train=generate``: from a policy's text to a bundle, with the figures on real rows."""

import json

from alora.bundle.manifest import CERTIFICATE_FILE
from alora.cli import main
from tests.integration.llm.scripted import honest
from tests.toy_recipe import toy_overrides
from tests.unit.llm.endpoint import endpoint


def test_text_becomes_a_bundle_and_the_figures_are_of_the_real_rows(folder, monkeypatch, capsys):
    monkeypatch.setenv("ALORA_CACHE", str(folder / "cache"))
    more = ["data.train=generate", "data.validation=null", "judge.model=m", "generate.pairs=30"]
    with endpoint(honest) as server:
        command = ["train", *toy_overrides(folder, folder / "run"), f"judge.url={server.url}", *more]
        assert main(command) == 0
        asked = len(server.bodies)
        assert asked == 1 + 30 + 60 * 3
        assert main(command) == 0
        assert len(server.bodies) == asked
    assert "[WORDS_SOLVE]" in capsys.readouterr().err
    written = [json.loads(line) for line in (folder / "generated/toy/train.jsonl").open()]
    assert {row["policy"] for row in written} == {"toy"}
    assert (folder / "run/bundle" / CERTIFICATE_FILE).is_file()
    found = json.loads((folder / "run/policies/toy/evaluation.json").read_text())["evaluations"]
    assert {item["metrics"]["rows"] for item in found if item["split"] == "test"} == {12}
