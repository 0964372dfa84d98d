"""Documents as rows of token ids, and what each position of a row belongs to."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerFast

from alora.errors import BaseError


def pack(documents: Sequence[str], tokenizer: PreTrainedTokenizerFast, sequence_length: int) -> torch.Tensor:
    """Token ids as rows of ``sequence_length``, padded with -1: every row opens at the start of a document.

    A document that no longer fits opens the next row (cutting it would part a summary from what it sums up); one
    longer than a row is cut into pieces. Each ends with ``<|endoftext|>``. Returns int32 ``rows_NT``.

    Raises:
        BaseError: there is no document.
    """
    end = tokenizer.pad_token_id
    rows: list[list[int]] = [[]]
    for ids in tokenizer(list(documents), add_special_tokens=False)["input_ids"] if documents else []:
        ids = [*ids, end]
        for start in range(0, len(ids), sequence_length):
            piece = ids[start : start + sequence_length]
            if len(rows[-1]) + len(piece) > sequence_length:
                rows.append([])
            rows[-1].extend(piece)
    if not rows[0]:
        raise BaseError("pre-training: the corpus holds no document; give a text file with at least one")
    rows_NT = torch.full((len(rows), sequence_length), -1, dtype=torch.int32)
    for row_T, ids in zip(rows_NT, rows, strict=True):
        row_T[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return rows_NT


def document_positions(ids_BT: torch.Tensor, end: int) -> torch.Tensor:
    """Position of each token within its document; a new one starts behind every ``end`` and every padding (-1)."""
    place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    opens_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    opens_BT[:, 1:] = (ids_BT[:, :-1] == end) | (ids_BT[:, :-1] < 0)
    return place_T - torch.cummax(torch.where(opens_BT, place_T, 0), dim=1).values


def in_answer(ids_BT: torch.Tensor, turn_start: int, assistant: int, turn_end: int) -> torch.Tensor:
    """Which tokens an assistant turn is made of: behind its role and line break, up to and with its end mark."""
    place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    opens_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    opens_BT[:, 3:] = (ids_BT[:, :-3] == turn_start) & (ids_BT[:, 1:-2] == assistant)
    closes_BT = torch.zeros_like(opens_BT)
    closes_BT[:, 1:] = ids_BT[:, :-1] == turn_end
    opened_BT = torch.cummax(torch.where(opens_BT, place_T, -1), dim=1).values
    closed_BT = torch.cummax(torch.where(closes_BT, place_T, -1), dim=1).values
    return opened_BT > closed_BT
