"""``bench.serving.engine=scorer``: the packed scorer against PEFT's LoRA, where there is no vLLM."""

import pytest

from alora.cli import main
from alora.lab.bench.harness import Harness
from alora.lab.bench.record import load_record
from alora.lab.bench.trials import AA
from alora.prefix.scorer import Scorer

COMMAND = [
    "bench", "serving", "bench=quick", "bench.serving.engine=scorer", "bench.prefixes=[96]", "bench.policies=[1,3]",
    "bench.serving.turns=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    code = main([*COMMAND, f"output={folder}"])
    return code, load_record(folder), folder


def test_the_scorer_is_ours_and_what_needs_an_engine_is_left_out(run):
    record = run[1]
    assert record.engine == {"name": "scorer"}
    assert {cell.workload for cell in record.cells} == {"grid", "conversation"}
    assert all(cell.systems == ["packed", "lora", AA] for cell in record.cells)
    assert {ratio.ours for cell in record.cells for ratio in cell.ratios} == {"packed"}
    assert record.load == []


def test_it_computes_the_conversation_once_and_lora_once_per_policy(run):
    _, record, _ = run
    cell = next(one for one in record.cells if one.workload == "grid" and one.at["policies"] == 3)
    assert cell.of("packed")[0].run.computed == 96 + 3 * 12
    assert cell.of("lora")[0].run.computed == 3 * (96 + 12)
    assert cell.ratio("lora").tokens == pytest.approx(3 * 108 / 132, abs=0.01)


def test_both_answer_as_peft_does(run):
    _, record, _ = run
    for cell in record.cells:
        against = {(one.system, one.against) for one in cell.agreement}
        assert against >= {("packed", "PEFT's aLoRA"), (AA, "PEFT's aLoRA"), ("lora", "PEFT's LoRA")}
        assert all(one.worst <= record.tolerance and one.checked for one in cell.agreement)


def test_suffixes_that_were_not_run_are_found(monkeypatch, tmp_path):
    stock = Scorer.label_logits

    def few(self, prefix, suffixes):
        first, last = stock(self, prefix, [suffixes[0], suffixes[-1]], [0, len(suffixes) - 1])
        return [first] * (len(suffixes) - 1) + [last]

    monkeypatch.setattr(Scorer, "label_logits", few)
    main([*COMMAND, "bench.policies=[4]", "bench.serving.workloads=[grid]", f"output={tmp_path}"])
    assert "UNEQUAL_VERDICTS" in [one.code for one in load_record(tmp_path).cells[0].ratios[0].refused]


def test_a_run_that_is_out_of_time_reports_what_it_finished(tmp_path, monkeypatch):
    """The clock jumps once the first cell stands; a limit that nothing fits into is the user's mistake."""
    stock = Harness.in_time

    def jump(self):
        self.deadline = 0.0 if self.cells else self.deadline
        stock(self)

    monkeypatch.setattr(Harness, "in_time", jump)
    assert main([*COMMAND, "bench.limit_s=500", f"output={tmp_path / 'some'}"]) == 1
    record = load_record(tmp_path / "some")
    assert len(record.cells) == 1
    assert record.cells[0].agreement
    assert record.stopped == "the limit of 500 s was reached (bench.limit_s)"
    assert record.stopped in (tmp_path / "some" / "bench.md").read_text()
    assert main([*COMMAND, "bench.limit_s=0.001", f"output={tmp_path / 'none'}"]) == 2
    assert not list((tmp_path / "none").iterdir())
