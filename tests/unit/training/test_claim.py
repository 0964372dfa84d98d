"""Whether a record of a run is this policy's own."""

import json

import pytest

from alora.errors import RunError
from alora.training.claim import require_trained

RECORD = {"policy": "red", "inputs": "a" * 64, "adapter_digest": "b" * 64}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"policy": "blue"}, "does not belong to the policy red: it is of blue"),
        ({"policy": None}, "does not belong to the policy red: it names none"),
        ({"policy": ["red"]}, "does not belong to the policy red"),
        ({"inputs": "c" * 64}, "does not belong to the settings and rows of this run, aaaaaaaaaaaa"),
        ({"adapter_digest": "c" * 64}, "does not belong to the adapter of this run, bbbbbbbbbbbb"),
    ],
)
def test_a_record_is_of_the_policy_the_claim_and_the_adapter(changed, words, tmp_path):
    file, named = tmp_path / "training.json", ("red", "a" * 64, "b" * 64)
    file.write_text(json.dumps(RECORD))
    require_trained(file, *named)
    file.write_text(json.dumps(RECORD | changed))
    with pytest.raises(RunError, match=words):
        require_trained(file, *named)
