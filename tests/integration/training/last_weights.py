"""What a run holds after its last step, whatever its best checkpoint is."""

from transformers import TrainerCallback


class LastWeights(TrainerCallback):
    """A callback that keeps every policy's adapter at the end of training."""

    def __init__(self):
        self.adapters = []

    def on_train_end(self, args, state, control, model=None, **kwargs):
        bank = model.packed.bank
        self.adapters = [bank.adapter(policy) for policy in range(len(bank.specs))]
