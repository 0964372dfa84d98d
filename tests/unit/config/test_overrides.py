"""What is said of an override before Hydra sees it, and of Hydra's own errors."""

import pytest

from alora.config.overrides import explain, require_known
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
