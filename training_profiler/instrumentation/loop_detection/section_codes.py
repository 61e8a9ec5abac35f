"""The sections that patches record, and their codes in the event stream."""

from training_profiler.recording.event_codes import INFERRED, time_only
from training_profiler.recording.section_names import SectionNames

NO_GRAD = "forward_without_grad"  # in a training step, e.g. of a frozen teacher
FIRST_FETCH = "first_fetch"  # nested in data_loading: the first of a pass, in which workers fill their queues
WORKER_START = "worker_start"


class SectionCodes:
    """Codes of enters; an exit has the negative code."""

    def __init__(self, names: SectionNames) -> None:
        def code(name: str) -> int:
            return names.id_of(name) | INFERRED

        self.data_loading = code("data_loading")
        self.first_fetch = code(FIRST_FETCH)
        self.worker_start = code(WORKER_START)
        self.data_transfer = code("data_transfer")
        self.forward = code("forward_pass")
        self.no_grad = code(NO_GRAD)
        self.backward = code("backward_pass")
        self.optimizer = code("optimizer_step")
        self.metrics = code("metrics_computation")
        self.averaging = code("ema_update")
        self.checkpoint = code("checkpointing")
        self.synchronization = code("synchronization")
        self.validation = code("validation_epoch")
        self.codes_in_evaluation = {
            sign * change(self.no_grad): sign * change(self.forward) for sign in (1, -1) for change in (int, time_only)
        }
