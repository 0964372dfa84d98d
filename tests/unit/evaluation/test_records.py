"""What an evaluation's record may hold."""

import pytest

from alora.evaluation.records import Estimate


@pytest.mark.parametrize("numbers", [(1e30,), (-0.1,), (0.5, -1.0), (0.5, 0.4, 1.1), (float("nan"),)])
def test_a_figure_is_a_share(numbers):
    with pytest.raises(ValueError, match="not 0 to 1"):
        Estimate(*numbers)


def test_a_figure_that_the_rows_do_not_define():
    assert Estimate(None) == Estimate(None, None, None)
