"""``training.engine=trl``: SFTTrainer on exactly our rows, with our loss, and the base given back as it was."""

import json
import re

import pytest
import torch

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, AdapterWeights, load_adapter, new_adapter
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.cli import main
from alora.config.schema import TrainingSettings
from alora.errors import TrainingError
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from alora.training.examples import Example, Target
from alora.training.loss import LabelledLogits, label_losses
from alora.training.trl_engine import fit_with_trl, make_trainer, peft_on, read_back
from tests.toy_models import toy_model
from tests.toy_recipe import toy_overrides
from tests.toy_tokenizers import toy_tokenizer

LABELS = (11, 12)
SPEC = AdapterSpec(4, 8.0, ("down_proj", "q_proj", "v_proj"), None)
# TRL looks for its columns in the datasets that it is given with a function that is deprecated there.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def base() -> LoadedBase:
    tokenizer = toy_tokenizer("qwen3")
    model = toy_model("qwen3", vocab=len(tokenizer)).eval().requires_grad_(False)
    return LoadedBase(model, tokenizer, Fingerprint("w", "t", "c"), "toy")


def _rows(count: int, first: int = 0, longest: int = 0) -> list[Example]:
    """Standard LoRA examples of different lengths; the label is whether token 30 or 31 stands in the middle."""
    rows = []
    for number in range(first, first + count):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(40, 190, (longest or 6 + number % 5,), generator=generator).tolist()
        ids[len(ids) // 2] = 30 + number % 2
        rows.append(Example((), (Target(0, tuple(ids), LABELS, number % 2),)))
    return rows


def _adapter(base: LoadedBase, trained: bool = False) -> AdapterWeights:
    fresh = new_adapter(SPEC, base.model, seed=1)
    if not trained:
        return fresh
    generator = torch.Generator().manual_seed(2)
    return AdapterWeights(
        SPEC, {name: (a, torch.randn(b.shape, generator=generator) * 0.1) for name, (a, b) in fresh.tensors.items()}
    )


def _settings(**changes) -> TrainingSettings:
    options = {"max_steps": 12, "batch_size": 4, "learning_rate": 5e-3, "early_stopping_patience": 0}
    return TrainingSettings(**(options | changes))


def test_the_loss_is_that_of_our_own_standard_lora(base, tmp_path):
    """Over the whole vocabulary, as a language model is trained; rows of different lengths in one padded batch."""
    rows, adapter = _rows(4), _adapter(base, trained=True)
    with peft_on(base, adapter) as model:
        trainer = make_trainer(base, model, rows, rows, _settings(), tmp_path)
        theirs = trainer.evaluate()["eval_loss"]
        again = read_back(model, adapter)
        wrong = make_trainer(base, model, rows, [_flipped(row) for row in rows], _settings(), tmp_path)
        other = wrong.evaluate()["eval_loss"]
    assert again.digest == adapter.digest

    bank = Bank(base.model, [adapter], trainable=False, dtype=torch.float32)
    vocabulary = tuple(range(base.model.config.vocab_size))
    pairs = [Pair(0, 0, row.targets[0].suffix_ids, vocabulary) for row in rows]
    with torch.no_grad():
        logits_nV = PackedModel(base.model, bank).label_logits([None], pairs)
    bank.release()
    labels_n = torch.tensor([LABELS[row.targets[0].label] for row in rows])
    ours = label_losses(LabelledLogits(logits_nV, labels_n)).mean().item()
    assert theirs == pytest.approx(ours, abs=1e-5)
    assert abs(other - ours) > 1e-3  # negative control: the wrong answers have another loss


def _flipped(row: Example) -> Example:
    target = row.targets[0]
    return Example((), (Target(0, target.suffix_ids, LABELS, 1 - target.label),))


def test_the_base_is_given_back(base, tmp_path):
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before = base.model(ids).logits
    state = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    attributes, config = set(vars(base.model)), base.model.config.to_dict()
    tokenizer = base.tokenizer.init_kwargs.copy()
    settings = _settings(max_steps=2, gradient_checkpointing=True)
    fitted = fit_with_trl(base, _adapter(base), _rows(8), _rows(4, 50), settings, tmp_path, progress=False)
    assert fitted.steps == 2
    assert set(vars(base.model)) == attributes
    assert base.model.config.to_dict() == config
    assert base.tokenizer.init_kwargs == tokenizer
    assert base.model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in base.model.state_dict().items())
    assert not base.model.training
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    with torch.no_grad():
        assert torch.equal(base.model(ids).logits, before)


def test_rows_that_are_cut_are_refused(base, tmp_path):
    """Negative control: SFTTrainer's own default is the fault that the check is there for."""
    long, short = _rows(2, longest=1100), _rows(4)
    with peft_on(base, _adapter(base)) as model:
        make_trainer(base, model, long + short, short, _settings(), tmp_path)
        with pytest.raises(TrainingError, match=r"kept 4 of 6 training rows.*max_length=None"):
            make_trainer(base, model, long + short, short, _settings(), tmp_path, max_length=1024)
        with pytest.raises(TrainingError, match=r"kept 0 of 2 validation rows"):
            make_trainer(base, model, short, long, _settings(), tmp_path, max_length=1024, truncation_mode="keep_end")


def test_the_command_trains_a_bundle_that_learned(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    overrides = toy_overrides(tmp_path, tmp_path / "run")
    given = ["adapter=lora", "training.engine=trl", "training.learning_rate=3e-3", "training.max_suffix_tokens=64"]
    assert main(["train", *overrides, *given]) == 0
    found = json.loads((tmp_path / "run/policies/toy/evaluation.json").read_text())["evaluations"][0]
    assert (found["method"], found["split"]) == ("lora", "test")
    assert found["metrics"]["figures"]["auroc"]["value"] > 0.9
    assert not load_adapter(tmp_path / "run/bundle").spec.activated
    assert not (tmp_path / "run/checkpoints").exists()
    told = capsys.readouterr().err
    assert re.search(r"^toy flags '\w+', the label of \d+ of \d+ train rows$", told, re.MULTILINE)
    assert "training.max_suffix_tokens: without effect on training.engine=trl" in told
    assert main(["train", *overrides, "training.engine=trl"]) == 2
    assert "choose adapter=lora" in capsys.readouterr().err
