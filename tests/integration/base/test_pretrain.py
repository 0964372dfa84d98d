"""Packing, masks and weights of pre-training, and folders that are whole or not there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from alora.base.packing import document_positions, in_answer, pack
from alora.base.pretrain import (
    LABEL_WORDS,
    Architecture,
    pretrain,
    save_base,
    train_tokenizer,
)
from alora.errors import BaseError

TEXTS = [f"User: how is item {n}?\nAssistant: item {n} is fine, thank you." for n in range(60)]
SMALL = Architecture(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48, vocab=512)
TOKENIZER = train_tokenizer(TEXTS, SMALL.vocab)
END, OPEN, CLOSE = (TOKENIZER.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
ASSISTANT = TOKENIZER.convert_tokens_to_ids("assistant")


def train(documents=TEXTS, **changes):
    settings = {"steps": 3, "batch_size": 2, "sequence_length": 64, "progress": False, **changes}
    return pretrain(documents, TOKENIZER, SMALL, **settings)


@given(st.text())
def test_every_text_survives_the_tokenizer(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("word", LABEL_WORDS)
def test_label_words_are_single_tokens_behind_the_answer_header(word):
    header = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
    )
    assert header == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    before, after = TOKENIZER.encode(header), TOKENIZER.encode(header + word)
    assert after[:-1] == before


def test_a_vocabulary_too_small_for_the_label_words_is_refused():
    with pytest.raises(BaseError, match="raise it"):
        train_tokenizer(TEXTS[:5], 265)


def test_a_document_is_not_cut_when_it_fits_a_row():
    rows_NT = pack(["Yes no yes", "no Yes no", "Yes"], TOKENIZER, 6)
    assert [sorted((row == END).nonzero().flatten().tolist()) for row in rows_NT] == [[3], [3, 5]]
    assert rows_NT[0].tolist()[4:] == [-1, -1]
    assert len(pack(["Yes no yes"], TOKENIZER, 2)) == 2


def test_no_document_is_an_error():
    with pytest.raises(BaseError, match="no document"):
        train([])


def test_positions_start_anew_behind_each_document():
    ids_BT = torch.tensor([[7, 8, END, 9, END, 7, -1, -1]])
    assert document_positions(ids_BT, END).tolist() == [[0, 1, 2, 0, 1, 0, 1, 0]]


def test_documents_of_one_row_do_not_see_each_other():
    model = train()
    alone, other = ([*TOKENIZER.encode(text), END] for text in TEXTS[:2])
    row_BT = torch.tensor([other + alone])
    with torch.no_grad():
        want = model(input_ids=torch.tensor([alone])).logits[0]
        apart = model(input_ids=row_BT, position_ids=document_positions(row_BT, END), use_cache=False).logits[0]
        mixed = model(input_ids=row_BT, use_cache=False).logits[0]
    assert torch.allclose(apart[len(other) :], want, atol=1e-5)
    assert not torch.allclose(mixed[len(other) :], want, atol=1e-3)


def test_answers_are_the_assistants_turns_alone():
    text = "<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\nYes no<|im_end|>\n<|im_start|>user\nok<|im_end|>"
    ids_BT = torch.tensor([TOKENIZER.encode(text)])
    marked = ids_BT[0][in_answer(ids_BT, OPEN, ASSISTANT, CLOSE)[0]]
    assert TOKENIZER.decode(marked) == "Yes no<|im_end|>"


def test_the_seed_decides_the_weights():
    first, again, other = (dict(train(seed=seed).named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_training_lowers_the_loss():
    ids_BT = torch.tensor([TOKENIZER.encode(TEXTS[0])])
    before, after = (train(steps=steps)(input_ids=ids_BT, labels=ids_BT).loss.item() for steps in (0, 40))
    assert after < before - 1


def test_snapshots_come_when_asked_for():
    seen = []
    train(steps=5, checkpoint=lambda step, model: seen.append(step), checkpoint_every=2)
    assert seen == [2, 4]


def test_a_saved_base_reads_back(tmp_path):
    model = train()
    folder = save_base(model, TOKENIZER, tmp_path / "made" / "base")
    assert [path.name for path in folder.parent.iterdir()] == ["base"]
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    text = "é <|im_start|>user\nYes 😀"
    assert AutoTokenizer.from_pretrained(folder).encode(text) == TOKENIZER.encode(text)
    with pytest.raises(BaseError, match="exists already"):
        save_base(model, TOKENIZER, folder)


def test_a_failed_save_leaves_nothing(tmp_path):
    class Broken:
        def save_pretrained(self, folder):
            raise OSError(28, "No space left on device")

    with pytest.raises(BaseError, match="No space left"):
        save_base(train(), Broken(), tmp_path / "base")  # pyright: ignore[reportArgumentType] a tokenizer that fails
    assert list(tmp_path.iterdir()) == []
