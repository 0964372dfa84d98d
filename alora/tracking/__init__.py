"""A run's figures shown outside its folder: Weights & Biases, TensorBoard, or nowhere (the default).

:func:`~alora.tracking.track.start_tracking` opens what ``tracking.kind`` names, the
:class:`~alora.tracking.callback.TrackingCallback` feeds it while the adapters train, and ``train`` ends with the table
and the curves of the evaluation. A tracker that fails is given up with one remark; the run itself never depends on it.
"""

from alora.tracking.callback import TrackingCallback
from alora.tracking.track import Tracking, require_tracking, start_tracking

__all__ = ["Tracking", "TrackingCallback", "require_tracking", "start_tracking"]
