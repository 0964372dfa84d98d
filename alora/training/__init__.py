"""Training by the split, in the order things happen.

:mod:`alora.training.examples` renders labelled rows, :mod:`alora.training.loss` is the objective,
:mod:`alora.training.trainer` is a ``transformers.Trainer`` over the packed forward, :mod:`alora.training.optimise`
runs it from new adapter to best checkpoint, and :mod:`alora.training.run_folder` keeps what it made.
"""

from alora.training.examples import Example, examples
from alora.training.optimise import Fitted, fit
from alora.training.run_folder import RunFolder

__all__ = ["Example", "Fitted", "RunFolder", "examples", "fit"]
