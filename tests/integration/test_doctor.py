"""alora doctor on this machine as it is, and with a planted fault."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.forked import Forked


def test_tells_versions_caches_and_the_plugin(tmp_path: Path):
    place = {"ALORA_CACHE": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    process = Forked(["-m", "alora", "doctor", "json=true", "base=qwen3_4b"], os.environ | place)
    output, _ = process.communicate()
    told = json.loads(output)
    assert process.returncode == 0, output
    assert told["environment"]["transformers"]
    assert told["environment"]["command"].startswith("alora doctor json=true")
    assert told["vllm"]["vllm plugin"].startswith("active on vLLM")
    assert told["bases"]["base smollm2"].startswith("not fetched yet")
    assert told["bases"]["base Qwen/Qwen3-4B"] == "not in the hub cache"
    assert not any(finding["broken"] for finding in told["findings"])
    assert any("Qwen/Qwen3-4B is not here yet" in finding["what"] for finding in told["findings"])


def test_planted_faults_are_found_and_fail(tmp_path: Path):
    """A torchvision for another torch (the commonest broken install: transformers dies on import), and a bad cache."""
    record = tmp_path / "torchvision-0.99.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.99\n")
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "peft.py").write_text("raise ImportError('libfoo.so: cannot open')\n")
    (tmp_path / "gguf.py").write_text("raise SystemExit(7)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "ALORA_CACHE": str(tmp_path / "file" / "cache")}
    command = [sys.executable, "-m", "alora", "doctor"]  # a fresh one: nothing is imported yet
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 1
    assert "torchvision 0.99 does not load (operator torchvision::nms does not exist)" in result.stdout
    assert "pip uninstall torchvision" in result.stdout
    assert result.stdout.index("torchvision 0.99") < re.search(r"peft \S+ does", result.stdout).start(), (
        "others may be broken by it"
    )
    assert re.search(r"peft \S+ does not load \(libfoo.so: cannot open\); pip install 'peft<", result.stdout)
    assert re.search(r"gguf \S+ does not load \(7\)", result.stdout)
    assert "set ALORA_CACHE to a folder of yours" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
