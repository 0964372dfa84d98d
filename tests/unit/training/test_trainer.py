"""What a pass takes from its batch."""

import torch

from alora.prefix.passes import Pair
from alora.training.examples import Batch
from alora.training.trainer import _label_weights


def test_each_pair_of_a_pass_has_the_label_weights_of_its_own():
    pairs = tuple(Pair(0, policy, (5,), labels) for policy, labels in enumerate([(11, 12), (11, 12, 13), (11, 12)]))
    batch = Batch(((20,),), pairs, (0, 2, 1), (1.0,) * 3, ((2.0, 0.5), (3.0, 1.0, 0.25), (0.75, 1.5)))
    found = _label_weights(batch, [2, 1], torch.zeros(2, 3))
    assert found is not None
    assert found.tolist() == [[0.75, 1.5, 1.0], [3.0, 1.0, 0.25]], "1 where a policy has fewer labels"
    assert _label_weights(batch, [], torch.zeros(0, 1)) is None
