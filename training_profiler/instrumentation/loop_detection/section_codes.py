"""The sections that patches record, and their codes in the event stream."""

from training_profiler.recording.event_codes import INFERRED, time_only
from training_profiler.recording.section_names import SectionNames
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    CHECKPOINTING,
    DATA_LOADING,
    DATA_TRANSFER,
    EMA_UPDATE,
    FIRST_FETCH,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    GRAPH_REPLAY,
    METRICS_COMPUTATION,
    OPTIMIZER_STEP,
    ROLLOUT,
    SYNCHRONIZATION,
    VALIDATION_EPOCH,
    WORKER_START,
)


class CodesByName(dict[str, int]):
    """The code of each section name, made at its first use."""

    def __init__(self, names: SectionNames) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, name: str) -> int:
        code = self[name] = self._names.id_of(name) | INFERRED
        return code


class SectionCodes:
    """Codes of enters; an exit has the negative code."""

    def __init__(self, names: SectionNames) -> None:
        self.by_name = CodesByName(names)
        code = self.by_name.__getitem__
        self.data_loading = code(DATA_LOADING)
        self.first_fetch = code(FIRST_FETCH)
        self.worker_start = code(WORKER_START)
        self.data_transfer = code(DATA_TRANSFER)
        self.forward = code(FORWARD_PASS)
        self.no_grad = code(FORWARD_WITHOUT_GRAD)
        self.rollout = code(ROLLOUT)
        self.backward = code(BACKWARD_PASS)
        self.optimizer = code(OPTIMIZER_STEP)
        self.replay = code(GRAPH_REPLAY)
        self.metrics = code(METRICS_COMPUTATION)
        self.averaging = code(EMA_UPDATE)
        self.checkpoint = code(CHECKPOINTING)
        self.synchronization = code(SYNCHRONIZATION)
        self.validation = code(VALIDATION_EPOCH)
        self.codes_in_evaluation = {
            sign * change(self.no_grad): sign * change(self.forward) for sign in (1, -1) for change in (int, time_only)
        }
