"""A record as a file: read back as it was written, and what is refused."""

import json
from typing import Any

import pytest

from alora.errors import ConfigError
from alora.lab.bench.record import LoadRecord, OfferedRate, load_record, plain, record_json
from tests.unit.lab.bench.cases import judged, played, players


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    run = judged(played("warm", players()))
    run.load.append(LoadRecord("rate", "alora", 4, 1000.0, 4, 4, rates=[OfferedRate(1.0, True, 2.0, [3.0])]))
    (tmp_path / "bench.json").write_text(record_json(run))
    again = load_record(tmp_path)
    assert record_json(again) == record_json(run)
    assert plain(again) == plain(run)
    assert again.cells[1].whole_ms("lora") == run.cells[1].whole_ms("lora")
    trials = sum(len(cell.trials) for cell in run.cells)
    assert sum(line.lstrip().startswith('{"system"') for line in record_json(run).splitlines()) == trials


@pytest.mark.parametrize("content", ["", "{", '{"benchmark": "training"}', "[]", "\x00", '{"format": 1}'])
def test_a_file_that_is_no_record_is_refused(tmp_path, content):
    file = tmp_path / "bench.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"bench\.json"):
        load_record(file)
    with pytest.raises(ConfigError, match="read"):
        load_record(tmp_path / "missing")


def without(*path):
    def damage(data: Any) -> None:
        *way, last = path
        for key in way:
            data = data[key]
        del data[last]

    return damage


def having(value, *path):
    def damage(data: Any) -> None:
        *way, last = path
        for key in way:
            data = data[key]
        data[last] = value

    return damage


RUN = ("cells", 0, "trials", 0, "run")
DAMAGE = [
    without("settings"), without("base", "dtype"), having(None, "environment"), without("cells"), having("x", "cells"),
    having("x", "cells", 0), without("cells", 0, "at"), having("x", "cells", 0, "trials", 0), without(*RUN, "seconds"),
    having("1", *RUN, "seconds"), having("three", "cells", 0, "trials", 0, "round"), having([3], "load"),
    having(1, *RUN, "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_refused(tmp_path, damage):
    data = json.loads(record_json(judged(played("grid", players()))))
    damage(data)
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"is damaged \("):
        load_record(file)
