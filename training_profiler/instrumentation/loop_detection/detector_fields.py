"""The attributes of a loop detector that the fast paths in C read, too."""

from collections.abc import Callable

from training_profiler.instrumentation.loop_detection.inferred_updates import InferredUpdates
from training_profiler.instrumentation.loop_detection.input_sizes import InputSizes
from training_profiler.instrumentation.loop_detection.loop_begin import EarlyCalls
from training_profiler.instrumentation.loop_detection.optimizer_update import OptimizerUpdate
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.instrumentation.loop_detection.phase_detector import PhaseDetector
from training_profiler.instrumentation.loop_detection.step_detector import StepDetector
from training_profiler.recording.fields import Fields, field, hidden_field, number
from training_profiler.recording.section import Clock, ThreadBuffer

Write = Callable[[], None]  # writes an event of a code


class DetectorFields(Fields):
    """The numbers are those of native/fast_path.h."""

    calls: list[ModuleCall] = hidden_field()  # under way, outermost first
    _fast_path: dict[int, ModuleCall] = field(1)  # calls of every step, by id of the module
    frame: tuple[int, int] | None = field(2)  # the method whose calls are one forward pass
    phases: PhaseDetector = field(3)
    update: OptimizerUpdate = field(4)
    input_sizes: InputSizes = field(5)
    _is_grad_enabled: Callable[[], bool] = field(6)
    forward_begins: Write = field(7)
    inferred: InferredUpdates | None = field(8)  # while no optimizer of torch exists
    early: EarlyCalls = field(9)
    _buffer: ThreadBuffer = field(10)
    is_shadowed: bool = field(11)  # methods stand in front of those of the class, see ``Shadow``
    _step_detector: StepDetector = field(12)
    _end_step: Callable[[int], None] = field(13)
    has_manual_steps: bool = field(14)
    _host_clock: Clock = field(15)
    _called_in_frame: set[int] = field(16)  # ids of the modules that were called in ``frame``
    backwards: int = number(0)
    updates: int = number(1)
    _forward_code: int = number(2)
    _bare_code: int = number(3)
    _fetch_code: int = number(4)
    _backward_code: int = number(5)
    _update_code: int = number(6)
    _transfer_code: int = number(7)

    def use_shadow(self, is_shadowed: bool) -> None:
        """Note that methods stand in front of those of the class, or no longer."""
        self.is_shadowed = is_shadowed
