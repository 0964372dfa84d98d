"""The private copies of adapters, without an engine: what is copied, digested, kept and let go."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from alora.errors import AdapterError
from alora.vllm_plugin import lora_ids
from alora.vllm_plugin.carried_request import carry
from alora.vllm_plugin.lora_ids import Records
from tests.vllm.toy_engine import lora_request
from tests.vllm.toy_models import ToyAdapter, edit_config


@pytest.fixture
def home(toys, tmp_path) -> Path:
    """An adapter folder that a test may change."""
    return Path(shutil.copytree(toys["linear"].path, tmp_path / "home"))


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("-inf")]), torch.ones(2).bool()],
    ids=lambda tensor: str(tensor[-1].item()),
)
def test_weights_that_are_no_numbers_are_refused(tensor, home):
    edit_config(str(home), alora_invocation_tokens=None)
    save_file({"a.lora_A.weight": tensor}, home / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match="holds NaN or infinity"):
        Records().read(str(home))


def asked(home: Path, **more) -> SimpleNamespace:
    return SimpleNamespace(**{"lora_int_id": 1, "lora_path": str(home), "lora_name": "a", "load_inplace": False} | more)


def test_a_change_is_read_once_and_not_for_every_request(home, monkeypatch):
    records, reads, stock = Records(), [], lora_ids.read_record
    monkeypatch.setattr(lora_ids, "read_record", lambda *given: reads.append(given) or stock(*given))
    records.hold(1, records.read(str(home)))
    (home / "adapter_model.safetensors").touch()
    for _ in range(3):
        assert records.of(asked(home)) is records.known(1)
    assert len(reads) == 2, "the same content, and a new time"
    edit_config(str(home), lora_alpha=3)
    for _ in range(3):
        with pytest.raises(AdapterError, match="changed after their weights were loaded"):
            records.of(asked(home))
    assert len(reads) == 3
    assert len(list(Path(records.folder).iterdir())) == 1, "the weights in use, and none of the refused ones"


def test_plain_lora_goes_on_with_what_was_loaded_until_its_files_are_an_aloras(home):
    edit_config(str(home), alora_invocation_tokens=None)
    records = Records()
    records.hold(1, records.read(str(home)))
    edit_config(str(home), lora_alpha=3)
    assert records.of(asked(home)) is records.known(1)
    edit_config(str(home), alora_invocation_tokens=[4, 5])
    with pytest.raises(AdapterError, match="changed after their weights were loaded"):
        records.of(asked(home))


def test_the_workers_are_given_the_record_and_never_anything_to_load_in_place(home):
    record = Records().read(str(home))
    theirs = lora_request(ToyAdapter("a", 7, str(home), (4,)), in_place=True)
    ours = carry(theirs, record, 40)
    assert (ours.lora_int_id, ours.lora_path, ours.load_inplace) == (record.number, record.copy, False)
    assert (ours.activation_index, ours.weights_digest) == (40, record.digest)
    assert (theirs.lora_int_id, theirs.lora_path, theirs.load_inplace) == (7, str(home), True)


def test_two_sets_of_weights_under_one_name_are_two_requests(home):
    records = Records()
    old = records.read(str(home))
    edit_config(str(home), lora_alpha=3)
    named = lora_request(ToyAdapter("a", 7, str(home), (4,)))
    other = lora_request(ToyAdapter("b", 8, str(home), (4,)))
    before, after = carry(named, old, 40), carry(named, records.read(str(home)), 40)
    assert before != after
    assert len({before, after, carry(other, old, 50)}) == 2, "one for each set of weights, whatever its name"


@pytest.mark.parametrize("invocation", [[4, 5], None], ids=["aLoRA", "plain"])
def test_a_request_with_a_digest_changes_nothing_for_those_without_one(home, invocation):
    """Its record goes by its own number alone, where its id means another one."""
    edit_config(str(home), alora_invocation_tokens=invocation)
    records = Records()
    first = records.of(asked(home))
    records.accept(1, first)
    edit_config(str(home), lora_alpha=3)
    digest = Records().read(str(home)).digest
    named = records.of(asked(home), digest)
    records.accept(1, named)
    assert (named.digest, records.known(1)) == (digest, first)
    assert records.of(asked(home), digest) is named, "not copied for every request"
    assert records.ids({first.number, named.number}) == {1}
    if invocation is None:
        assert records.of(asked(home)) is first
    else:
        with pytest.raises(AdapterError, match="changed after their weights were loaded"):
            records.of(asked(home))
    other = shutil.copytree(home, home.with_name("other"))
    elsewhere = records.of(asked(other), digest)
    records.accept(1, elsewhere)
    with pytest.raises(AdapterError, match="give every adapter an id of its own"):
        records.of(asked(other))


@pytest.mark.parametrize(
    "change", [lambda whole: whole[:-40], lambda whole: whole + b"x", lambda _: b"", lambda _: b"x"]
)
@pytest.mark.parametrize("invocation", [[4, 5], None], ids=["aLoRA", "plain"])
def test_damaged_weights_are_refused(home, change, invocation):
    edit_config(str(home), alora_invocation_tokens=invocation)
    weights = home / "adapter_model.safetensors"
    weights.write_bytes(change(weights.read_bytes()))
    with pytest.raises(AdapterError, match=r"home/adapter_model.safetensors is damaged"):
        Records().read(str(home))
