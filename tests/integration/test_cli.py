"""The command line's outside: verbs, exit codes, one clear message and never a traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from alora import cli, errors
from alora.cli import VERBS, main, report


def run_alora(*arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "alora", *arguments]
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=120, check=False, **options)


def test_help_names_every_verb(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("train", "doctor")])
def test_a_verb_of_one_process_is_refused_under_a_launcher_of_several(verb, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(
        "TORCHELASTIC_RUN_ID", "none"
    )  # of torchrun and accelerate launch; RANK may be the machine's own
    assert main([verb, "artifact=nowhere"]) == 2
    said = capsys.readouterr().err
    assert "a launcher started 2 processes" in said
    assert f"run alora {verb} without torchrun" in said


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        pytest.param(["--help"], {"torch", "hydra", "omegaconf", "transformers", "pyarrow", "numpy"}, id="help"),
        pytest.param(["train", "--cfg", "job", "recipe=quickstart"], {"torch", "transformers", "numpy"}, id="config"),
    ],
)
def test_loads_nothing_heavy(tmp_path, arguments, heavy):
    script = (
        f"import sys; from alora.cli import main; code = main({arguments}); heavy = {heavy} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_help_on_a_verb_either_way(capsys):
    texts = []
    for words in (["help", "export"], ["export", "--help"]):
        assert main(words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "export.golden_rows" in texts[0]


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (errors.ConfigError("bad key"), 2, "bad key"),
        (errors.DataError("bad rows", ["a.jsonl:3: empty"]), 2, "a.jsonl:3: empty"),
        (errors.CheckFailed("not identical"), 1, "not identical"),
        (errors.TrainingError("no gradient"), 1, "no gradient"),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on from what it had saved"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 2, "/x/y: No space left on device"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "/x"), 2, "give a shorter name"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "/x: Permission denied"),
        (RuntimeError("PytorchStreamWriter failed writing file at inline_container.cc:603"), 2, "free the space"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 8 bytes"), 2, "training=low_memory"),
        (MemoryError(), 2, "out of memory"),
        (ZeroDivisionError("division by zero"), 3, "internal error: ZeroDivisionError: division by zero"),
        (
            ModuleNotFoundError("No module named 'hydra'", name="hydra"),
            2,
            "No module named 'hydra'; install alora with",
        ),
        (ImportError("libfoo.so: cannot open shared object file"), 2, "alora doctor says which do not load"),
        (OSError("libtorch.so: undefined symbol: x"), 2, "libtorch.so: undefined symbol: x; install alora with its"),
        (ImportError("cannot import name 'x'", name="alora.prompt"), 3, "internal error: ImportError: cannot import"),
    ],
)
def test_each_kind_of_error_has_its_code_and_message(error, exit_code, words, capsys, monkeypatch):
    monkeypatch.delenv("ALORA_DEBUG", raising=False)
    assert report(error) == exit_code
    text = capsys.readouterr().err
    assert words in text
    assert "Traceback" not in text


def test_traceback_only_when_debugging(capsys, monkeypatch):
    monkeypatch.setenv("ALORA_DEBUG", "1")
    with pytest.raises(ZeroDivisionError) as caught:
        raise ZeroDivisionError("division by zero")
    assert report(caught.value) == cli.INTERNAL
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_reader_that_went_away_is_no_error(tmp_path):
    """Like `alora train --cfg job | head -0`: the pipe's other end is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "alora", "train", "--cfg", "job"]
    try:
        result = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert result.returncode == cli.BROKEN_PIPE
    assert result.stderr == ""


def test_through_a_real_process(tmp_path):
    result = run_alora("train", "recipe=quickstart", "+typo=1", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "alora: unknown key 'typo': --help lists every key\n"
    assert list(tmp_path.iterdir()) == []
