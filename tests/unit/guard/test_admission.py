"""What is let in, and what is refused at once (P5)."""

from contextlib import ExitStack

import pytest

from alora.guard.admission import ON_CPU, ON_GPU, Admission, admission
from alora.guard.reader import Overloaded


def enter(stack, queue, tokens=1, **options):
    stack.enter_context(queue.place(**options))(tokens)


@pytest.mark.parametrize(("most", "taken"), [(2, 2), (3, 3)])
def test_conversations_are_bounded_and_a_place_is_free_again(most, taken):
    queue = Admission(most, 1000)
    with ExitStack() as stack:
        for _ in range(taken):
            enter(stack, queue)
        with pytest.raises(Overloaded) as refused, queue.place():
            pass
        assert refused.value.wait_s >= 1
    with queue.place() as take:
        take(1)
    assert queue.under_way == 0


@pytest.mark.parametrize(("second", "fits"), [(50, True), (51, False)])
def test_tokens_are_bounded_but_for_a_conversation_that_is_alone(second, fits):
    queue = Admission(10, 100)
    with queue.place() as take:
        take(5000)
    with ExitStack() as stack:
        enter(stack, queue, 50)
        if fits:
            enter(stack, queue, second)
        else:
            with pytest.raises(Overloaded):
                enter(stack, queue, second)
    with queue.place() as take:  # what was refused holds nothing
        take(100)


def test_what_may_wait_takes_a_share():
    queue = Admission(4, 100)
    with ExitStack() as stack:
        enter(stack, queue)
        enter(stack, queue, share=0.5)
        with pytest.raises(Overloaded):
            enter(stack, queue, share=0.5)
        enter(stack, queue)


@pytest.mark.parametrize(
    ("given", "gpu", "bounds"),
    [
        ((None, None), False, ON_CPU),
        ((None, None), True, ON_GPU),
        ((5, None), False, (5, ON_CPU[1])),
        ((5, 7), True, (5, 7)),
    ],
)
def test_the_bounds_are_the_devices_where_none_are_given(given, gpu, bounds):
    queue = admission(*given, gpu)
    assert (queue.conversations, queue.tokens) == bounds
