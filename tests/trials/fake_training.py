"""A training for sessions of trials, without a process."""

from training_profiler.trials.process import Block
from training_profiler.trials.statistics import CpuUse


class FakeTraining:
    """A training whose blocks take a known time; fails in a block, where that is asked for.

    Args:
        noise: by how much the block of a number takes longer.
        saving_s: what every third block takes for a checkpoint.
        of_block: what each block has besides its times.
    """

    def __init__(
        self, step_s=0.04, *, fails_at=None, error=None, cpu=None, losses="0x1p+0", noise=None, saving_s=0.0, **of_block
    ):
        self.process = self
        self.blocks, self.is_closed = 0, False
        self._step_s, self._saving_s, self._noise = step_s, saving_s, noise
        self._fails_at, self._error = fails_at, error
        self._losses, self._cpu = losses, cpu or CpuUse()
        self._of_block = {"samples": 32, "prints": (1, 2, 3), **of_block} if noise else {}

    def wait_for_block(self, timeout_s):
        return Block(None, 2.0, (("0x1p+0",),) * 3, 7, **self._of_block)

    def run_block(self, steps, timeout_s):
        assert not self.is_closed
        if self.blocks == self._fails_at:
            raise self._error
        self.blocks += 1
        losses, step_s = ((self._losses,),) * steps, self._step_s
        if self._noise is None:
            return Block(step_s, None, losses, 7, self._cpu)
        step_s *= self._noise(self.blocks)
        saving_s = self._saving_s * (self.blocks % 3 == 0) / (steps - 1)
        return Block(step_s + saving_s, None, losses, 7, **self._of_block, cpu=self._cpu, typical_s=step_s)

    def close(self):
        self.is_closed = True
