"""``bench.serving.engine=scorer``: the packed scorer against PEFT's LoRA, where there is no vLLM."""

import json
import sys

import pytest
import torch

from alora.bench.serving.context import Bench, TimeIsUp
from alora.cli import main

COMMAND = [
    "bench", "serving", "bench=quick_serving", "bench.serving.engine=scorer", "bench.serving.lengths=[96]",
    "bench.serving.adapters=[1,3]", "bench.serving.turns=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    code = main([*COMMAND, f"output={folder}"])
    return code, json.loads((folder / "bench.json").read_text()), folder


def test_the_scorer_is_ours_and_what_needs_an_engine_is_left_out(run):
    _, results, _ = run
    assert results["ours"] == "packed"
    assert results["engine"] == {"name": "scorer"}
    assert {cell["workload"] for cell in results["cells"]} == {"grid", "conversation"}
    assert all(set(cell["arms"]) == {"lora", "packed", "null"} for cell in results["cells"])
    assert results["open_loop"] == []


def test_it_computes_the_conversation_once_and_lora_once_per_adapter(run):
    _, results, _ = run
    arms = next(c for c in results["cells"] if c["workload"] == "grid" and c["at"]["adapters"] == 3)["arms"]
    assert arms["packed"]["computed_tokens"] == 96 + 3 * 12
    assert arms["lora"]["computed_tokens"] == 3 * (96 + 12)


def test_both_answer_as_peft_does(run):
    _, results, _ = run
    for cell in results["cells"]:
        against = {(entry["arm"], entry["against"]) for entry in cell["agreement"]}
        assert against >= {("packed", "PEFT's aLoRA"), ("null", "PEFT's aLoRA"), ("lora", "PEFT's LoRA")}
        assert all(entry["worst"] <= results["tolerance"] and entry["checked"] for entry in cell["agreement"])


def test_the_report_names_it_and_the_exit_code_tells_of_withheld_ratios(run):
    code, results, folder = run
    assert "the in-process scorer alone; LoRA is PEFT's" in (folder / "bench.md").read_text()
    reasons = [reason for cell in results["cells"] for entry in cell["ratios"] for reason in entry["refused"]]
    assert code == int(bool(reasons))
    assert all("null arm" in reason for reason in reasons)  # the machine's; no arm here has a cache to lose


def test_a_place_that_cannot_be_written_to_is_told_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("alora.bench.serving.run.run_serving", lambda *args: pytest.fail("it was measured first"))
    (tmp_path / "file").touch()
    assert main([*COMMAND, f"output={tmp_path / 'file'}"]) == 2
    assert "File exists" in capsys.readouterr().err


def test_a_disk_that_became_full_does_not_take_the_figures_with_it(run, tmp_path, monkeypatch, capsys):
    _, results, _ = run

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("alora.bench.serving.run.run_serving", lambda *args: results)
    monkeypatch.setattr("alora.commands.bench.write_text", full)
    assert main([*COMMAND, f"output={tmp_path}"]) == 2
    told = capsys.readouterr()
    assert "## grid" in told.out
    assert "No space left on device" in told.err


def test_a_run_that_is_out_of_time_reports_what_it_finished(tmp_path, monkeypatch, capsys):
    """The clock jumps once the first cell stands; a limit that nothing fits into is the user's mistake."""
    stock = Bench.in_time

    def jump(self):
        self.deadline = 0.0 if self.cells else self.deadline
        stock(self)

    monkeypatch.setattr(Bench, "in_time", jump)
    assert main([*COMMAND, "bench.serving.limit_s=500", f"output={tmp_path / 'some'}"]) == 1
    results = json.loads((tmp_path / "some" / "bench.json").read_text())
    assert not results["complete"]
    assert len(results["cells"]) == 1
    assert results["cells"][0]["agreement"]
    told = "the limit of 500 s was reached (bench.serving.limit_s)"
    assert results["stopped"] == told
    assert f"Stopped before its end** ({told})" in (tmp_path / "some" / "bench.md").read_text()
    assert f"{told}: the report holds what was finished before" in capsys.readouterr().err
    assert main([*COMMAND, "bench.serving.limit_s=0.001", f"output={tmp_path / 'none'}"]) == 2
    assert "before anything was finished; raise it, or ask for less" in capsys.readouterr().err
    assert not list((tmp_path / "none").iterdir())


@pytest.mark.parametrize("late", [False, True])
def test_references_that_cannot_be_asked_take_no_figure_with_them(late, tmp_path, monkeypatch):
    def full(*args):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("alora.bench.serving.run.ask_references", full)
    if late:
        monkeypatch.setattr(Bench, "in_time", lambda self: _raise(TimeIsUp("the limit")) if self.cells else None)
    assert main([*COMMAND, "bench.serving.workloads=[grid]", f"output={tmp_path}"]) == 1
    results = json.loads((tmp_path / "bench.json").read_text())
    assert results["stopped"] == ("the limit; then " if late else "") + "RuntimeError: CUDA out of memory"
    refused = [entry["refused"] for cell in results["cells"] for entry in cell["ratios"]]
    assert refused
    assert all("no verdict was compared" in " ".join(reasons) for reasons in refused)


def _raise(error):
    raise error


def test_a_target_that_the_base_does_not_have_is_refused_before_anything_is_measured(tmp_path, capsys):
    assert main([*COMMAND, "bench.serving.targets=[self_attn.q_proj,o_proj]", f"output={tmp_path}"]) == 2
    assert "bench.serving.targets: self_attn.q_proj is none of q_proj" in capsys.readouterr().err


def test_the_machine_of_the_floor_is_told(run):
    _, results, folder = run
    kernels = results["machine"]["kernels"]
    assert results["machine"]["flops"] == max(kernels.values()) > 0
    assert "torch" in kernels
    assert results["environment"]["processor"] in (folder / "bench.md").read_text()


def test_a_benchmark_for_a_gpu_is_refused_without_one(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("alora.bench.serving.run.run_serving", lambda *args: asked.append(args) or sys.exit(7))
    assert main(["bench", "serving", "bench=gpu", f"output={tmp_path / 'out'}"]) == 2
    assert "needs a GPU (bench.needs_gpu)" in capsys.readouterr().err
    assert (asked, list(tmp_path.iterdir())) == ([], [])
    assert main(["bench", "serving", "bench=gpu", "base.device=cpu", f"output={tmp_path / 'out'}"]) == 7
    assert asked[0][2].type == "cpu"


def test_workloads_that_all_need_an_engine_are_refused(capsys):
    assert main([*COMMAND, "bench.serving.workloads=[warm,open_loop]"]) == 2
    assert "all need vLLM" in capsys.readouterr().err
