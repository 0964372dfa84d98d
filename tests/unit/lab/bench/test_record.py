"""A record as a file: read back as it was written, and what is refused."""

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


@pytest.mark.parametrize("content", ["{", '{"benchmark": "training"}', '{"format": 1}'])
def test_a_file_that_is_no_record_is_refused(tmp_path, content):
    file = tmp_path / "bench.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"bench\.json"):
        load_record(file)
