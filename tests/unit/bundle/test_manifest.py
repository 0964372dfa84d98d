"""What a manifest may say, and that it is read as it was written."""

from dataclasses import replace

import pytest

from alora.bundle.manifest import CardRecord, MoveRecord, manifest_from_dict
from alora.errors import BundleError
from alora.policy import Policy
from alora.text import content_digest
from tests.unit.bundle.cases import manifest

MOVED = {"quantization": "none", "dtype": "float32", "rows": 8, "same_verdict": 7, "largest_difference": 1.5}


@pytest.mark.parametrize("difference", [0.0, 1.5, None])
def test_a_move_is_read_back(difference):
    moved = MoveRecord(**MOVED | {"largest_difference": difference})
    made = manifest(moved=moved, system_share=0.25, card=CardRecord("mit", ("de", "en"), {"rank": "4"}))
    assert manifest_from_dict(made.as_dict(), "memory") == made


def test_the_order_of_labels_is_in_the_digest():
    """The first label is the positive one."""
    made = manifest()
    content = made.as_dict()
    labels = content["policy"]["labels"]
    content["policy"]["labels"] = dict(reversed(labels.items()))
    assert list(labels) != list(content["policy"]["labels"])
    with pytest.raises(BundleError):
        manifest_from_dict(content, "memory")


def test_a_policy_comes_back_with_its_labels_in_their_order_and_what_it_judges():
    policy = Policy("tone", "Tone", "", ("rude", "dry"), ("No", "Yes"), "last_turn")
    assert manifest_from_dict(replace(manifest(), policy=policy).as_dict(), "memory").policy == policy


@pytest.mark.parametrize("tokens", [[11], [11, 11], [11, 12, 13], [11, 12, 12]])
def test_each_label_has_one_token_of_its_own(tokens):
    content = manifest().as_dict()
    content["suffix"]["label_token_ids"] = tokens
    with pytest.raises(BundleError, match="not one label token per label"):
        manifest_from_dict(content | {"sha256": content_digest(content)}, "memory")
