"""Cutting turns to a budget."""

from hypothesis import given
from hypothesis import strategies as st

from alora.prompt.truncate import Turn, fit

MARKER = (-1, -2)
TURNS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5)).map(lambda n: Turn("user", tuple(range(1, n[0] + 1)), n[1])),
    min_size=1,
    max_size=8,
)


def plain(turns):
    return [index for turn in turns for index in turn.token_ids if index > 0]


@given(TURNS, st.integers(17, 120), st.sampled_from(["middle", "start"]))
def test_a_cut_keeps_the_ends_in_order_within_the_budget(turns, budget, taken_from):
    cut = fit(turns, budget, taken_from, MARKER)
    cost = sum(turn.cost for turn in turns)
    if cost <= budget:
        assert cut == turns
        return
    assert sum(turn.cost for turn in cut) <= budget
    assert any(MARKER[0] in turn.token_ids for turn in cut)
    whole, kept = plain(turns), plain(cut)
    tail = next(n for n in range(len(kept), -1, -1) if kept[len(kept) - n :] == whole[len(whole) - n :])
    head = kept[: len(kept) - tail]
    assert head == whole[: len(head)]
    if taken_from == "start":
        assert not head


def test_a_turn_cut_through_shows_the_marker_once():
    (turn,) = fit([Turn("user", tuple(range(100)), 3, kept=True)], 40, "middle", MARKER)
    assert turn.token_ids[:5] == (0, 1, 2, 3, 4)
    assert turn.token_ids[-2:] == (98, 99)
    assert turn.token_ids.count(MARKER[0]) == 1


def test_whole_turns_that_go_leave_a_marker_too():
    turns = [Turn("user", (1, 2, 3), 4) for _ in range(20)]
    cut = fit(turns, 48, "start", MARKER)
    assert len(cut) < len(turns)
    assert sum(turn.token_ids.count(MARKER[0]) for turn in cut) == 1
    assert cut[0].token_ids[0] == MARKER[0]


def test_a_system_text_that_goes_leaves_a_marker_in_its_turn():
    turns = [Turn("system", tuple(range(50)), kept=True), Turn("user", tuple(range(50)), 4)]
    cut = fit(turns, 40, "start", MARKER)
    assert cut[0] == Turn("system", MARKER, kept=True)
    assert cut[1].token_ids[:2] == MARKER
