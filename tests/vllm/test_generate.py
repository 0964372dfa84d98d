"""``alora generate`` end to end with SmolLM2 behind a real vLLM server: poor rows, and a report that says so."""

import json
import os

from alora.base.smollm2 import ensure_smollm2
from alora.cli import main
from tests.vllm.http_server import free_port, serving

SMALL = (
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=2048",
    "--block-size=32",
    "--num-gpu-blocks-override=256",
)


def test_a_small_model_writes_judges_and_is_found_out(tmp_path, monkeypatch, capsys):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text("id: no_refunds\ntitle: No refund promises\nrule: Never promise money.\n")
    port = free_port()
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(ensure_smollm2()),
               "--served-model-name", "smollm2", "--port", str(port), "--host", "127.0.0.1", *SMALL]  # fmt: skip
    with serving(command, port, tmp_path / "server.log") as server:
        asked = ["generate", "policy.file=policy.yaml", f"judge.url={server.url}/v1", "judge.model=smollm2",
                 "judge.timeout=300", "judge.retries=0", "generate.pairs=2", "generate.max_calls=12",
                 "generate.max_tokens=300", "output=out"]  # fmt: skip
        code = main(asked)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert 0 < report["requests"] <= 12
    assert report["failed_requests"] == 0
    assert report["output_tokens"] > 0
    assert report["cases_judged"] == 2 * (report["pairs_asked"] - report["pairs_unreadable"])
    # 135 M parameters do not apply a rule that they are told: no clean bill from two pairs.
    printed = capsys.readouterr().out
    assert code == (1 if "error " in printed else 0)
    assert "[FEW_ROWS]" in printed or "[ONE_LABEL]" in printed or "[NO_ROWS]" in printed
