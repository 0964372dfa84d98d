"""What is said of an override before Hydra sees it, and of Hydra's own errors."""

import pytest

from alora.config.overrides import explain, keys_given, require_known
from alora.errors import ConfigError


def test_an_error_of_another_kind_keeps_its_text():
    assert explain(ValueError("first line\nsecond line")) == "first line\nsecond line"


def test_every_override_that_leads_nowhere_at_once(tmp_path):
    (tmp_path / "base").mkdir()
    wrong = ["typo=1", "~training", "~training.seed", "base=null"]
    with pytest.raises(ConfigError) as caught:
        require_known(
            [*wrong, "training.seed=1", "base=x", "hydra.verbose=true", "+a@b=c", "data.label_map.x=y"], [tmp_path]
        )
    assert len(str(caught.value).splitlines()) == len(wrong)


def test_the_keys_that_a_command_line_sets_by_themselves_in_a_mapping_or_by_an_option(tmp_path):
    given = ["data={columns: {label: x}, test: null}", "++data.label_map.a=b", "data.role_map={}", "~policy.labels"]
    keys = {"data.columns.label", "data.test", "data.label_map.a", "data.role_map", "policy.labels"}
    assert keys_given(given, [tmp_path]) == keys
    (tmp_path / "prompt").mkdir()
    (tmp_path / "prompt/mine.yaml").write_text("layout: turns\n")
    assert keys_given([*given, "prompt=mine", "recipe=mine", "name=mine"], [tmp_path]) == {
        *keys,
        "prompt.layout",
        "name",
    }
