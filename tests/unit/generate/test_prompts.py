"""What a model's answer is read as, however odd."""

import pytest

from alora.generate.prompts import read_cases, read_dimensions
from alora.policy import Policy


@pytest.mark.parametrize("depth", [900, 985, 990, 995, 5000])
def test_an_answer_that_is_nested_deeply_is_none(depth):
    answer = '{"a":' * depth + "1" + "}" * depth
    assert read_dimensions(answer) is None
    assert read_cases(answer, Policy("p", "T", "R")) is None
