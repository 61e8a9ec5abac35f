"""The functions of libraries that say what a program does while they run. No library is imported for it.

A row matches a frame by its file and function. Loops are where a trainer's own loop stands: their line says which part
of the loop runs. Phases are parts of that loop by the library's names for them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from training_profiler.base.sections import ANOMALIES, CUSTOM_BACKWARD, LOGGING, RECOMPUTATION, ROLLOUT

LOOP: Final = "loop"
CALLBACK: Final = "callback"
EVALUATION: Final = "evaluation"
SAVING: Final = "saving"
PROGRESS: Final = "progress bar"
ENVIRONMENT: Final = "environment"
REPLAY: Final = "replay buffer"
SAMPLER: Final = "sampler"
OPTIMIZER: Final = "optimizer"
LOSS: Final = "loss"
METRICS: Final = "metrics"
MAKING: Final = "making a batch"  # of a loader without workers; see ``batch_phases``
HANDLERS: Final = "handlers"
ENGINE: Final = "gradients"  # where autograd runs a backward pass
MODULE_CALL: Final = "call of a module"  # its hooks, and its forward
CHECKING: Final = "checks of arguments"  # of a distribution, where they are on
NO_PHASE: Final = ""

ANY: Final = "*"
MOST_FILES: Final = 30_000  # of all tables together; only programs that generate code have more
# A bar's iteration contains the work of the iterable that it wraps: the loader's next batch.
ITERATION: Final = ("__iter__", "__anext__", "tzip", "tmap", "product")
# Trainers call what users add to them by such names: on_step_end, on_train_batch_start, _on_rollout_end.
HOOK: Final = re.compile(r"_?(on_[a-z][a-z0-9_]*)")


class LibraryFrame(NamedTuple):
    """A row of the table."""

    path: str
    """The end of the file's path, or a folder in it, with slashes."""
    functions: tuple[str, ...]
    """Names, or qualified names; a name that ends with * stands for all that begin so."""
    phase: str


def _rows(path: str, **phases: str) -> tuple[LibraryFrame, ...]:
    return tuple(LibraryFrame(path, tuple(functions.split()), phase) for phase, functions in phases.items())


def whole(phase: str, *paths: str) -> tuple[LibraryFrame, ...]:
    """Return rows of files, or folders, of which every function is in the phase."""
    return tuple(LibraryFrame(path, (ANY,), phase) for path in paths)


def _lightning(package: str) -> tuple[LibraryFrame, ...]:
    return (
        LibraryFrame(f"/{package}/loops/training_epoch_loop.py", ("run", "advance", "on_*"), LOOP),
        LibraryFrame(f"/{package}/loops/fit_loop.py", ("run", "advance", "on_*"), LOOP),
        *whole(EVALUATION, f"/{package}/loops/evaluation_loop.py"),
        *whole(LOGGING, f"/{package}/loggers/", f"/{package}/trainer/connectors/logger_connector/"),
        LibraryFrame(f"/{package}/trainer/connectors/checkpoint_connector.py", ("dump_*",), SAVING),
        LibraryFrame(f"/{package}/trainer/trainer.py", ("save_checkpoint",), SAVING),
        LibraryFrame(f"/{package}/callbacks/model_checkpoint.py", ("_save_*",), SAVING),
        LibraryFrame(f"/{package}/callbacks/progress/", (ANY,), PROGRESS),
    )


# The first row that matches a frame holds. A frame of no row whose function is named like a hook is a callback.
FRAMES: Final[tuple[LibraryFrame, ...]] = (
    LibraryFrame("/torch/utils/data/dataloader.py", ("_BaseDataLoaderIter._next_index",), SAMPLER),
    LibraryFrame("/torch/utils/data/_utils/fetch.py", ("fetch",), MAKING),
    LibraryFrame("/torch/utils/data/_utils/pin_memory.py", ("pin_memory",), MAKING),
    LibraryFrame(
        "/torch/distributions/distribution.py", ("Distribution.__init__", "Distribution._validate_sample"), CHECKING
    ),
    LibraryFrame("/torch/fx/traceback.py", ("format_stack",), ANOMALIES),
    LibraryFrame("/torch/autograd/graph.py", ("_engine_run_backward",), ENGINE),
    LibraryFrame("/torch/nn/modules/module.py", ("Module._call_impl*",), MODULE_CALL),
    LibraryFrame("/torch/autograd/function.py", ("BackwardCFunction.apply*",), CUSTOM_BACKWARD),
    LibraryFrame(
        "/torch/utils/checkpoint.py",
        ("CheckpointFunction.backward", "_checkpoint_hook.__init__.<locals>.unpack_hook"),
        RECOMPUTATION,
    ),
    *_rows(
        "/transformers/trainer.py",
        loop="_inner_training_loop _run_epoch _maybe_log_save_evaluate",
        logging="log",
        evaluation="evaluate evaluation_loop prediction_loop predict",
        saving="_save_checkpoint save_model _save _save_* _rotate_checkpoints",
    ),
    LibraryFrame("/transformers/utils/notebook.py", (ANY,), PROGRESS),
    *_lightning("lightning/pytorch"),
    *_lightning("pytorch_lightning"),
    LibraryFrame("/lightning/fabric/loggers/", (ANY,), LOGGING),
    LibraryFrame("/lightning/fabric/fabric.py", ("log", "log_dict"), LOGGING),
    LibraryFrame("/lightning/fabric/fabric.py", ("save",), SAVING),
    LibraryFrame("/sentence_transformers/evaluation/", (ANY,), EVALUATION),
    LibraryFrame("/evaluator.py", ("SentenceEvaluator.*", "SequentialEvaluator.*"), EVALUATION),
    *_rows("/fit_mixin.py", loop="fit old_fit", evaluation="_eval_during_training", saving="_save_checkpoint"),
    *_rows("/sentence_transformers/trainer.py", logging="log", evaluation="evaluate evaluation_loop", saving="_save"),
    *_rows(
        "/sentence_transformers/base/trainer.py", logging="log", evaluation="evaluate evaluation_loop", saving="_save"
    ),
    *_rows(
        "/skorch/net.py",
        loop="fit_loop run_single_epoch",
        evaluation="validation_step evaluation_step",
        saving="save_params",
    ),
    LibraryFrame("/skorch/callbacks/logging.py", (ANY,), LOGGING),
    LibraryFrame("/skorch/callbacks/training.py", ("save_*", "Checkpoint.*"), SAVING),
    LibraryFrame("/stable_baselines3/common/on_policy_algorithm.py", ("learn",), LOOP),
    LibraryFrame("/stable_baselines3/common/off_policy_algorithm.py", ("learn",), LOOP),
    LibraryFrame("/stable_baselines3/common/on_policy_algorithm.py", ("collect_rollouts",), ROLLOUT),
    LibraryFrame("/stable_baselines3/common/off_policy_algorithm.py", ("collect_rollouts",), ROLLOUT),
    LibraryFrame("/stable_baselines3/common/logger.py", (ANY,), LOGGING),
    LibraryFrame("/stable_baselines3/common/on_policy_algorithm.py", ("dump_logs", "_dump_logs"), LOGGING),
    LibraryFrame("/stable_baselines3/common/off_policy_algorithm.py", ("dump_logs", "_dump_logs"), LOGGING),
    LibraryFrame("/stable_baselines3/common/evaluation.py", (ANY,), EVALUATION),
    LibraryFrame("/stable_baselines3/common/vec_env/", ("step", "step_wait", "step_async", "reset"), ENVIRONMENT),
    LibraryFrame("/stable_baselines3/common/buffers.py", (ANY,), REPLAY),
    LibraryFrame("/stable_baselines3/common/save_util.py", ("save_*",), SAVING),
    LibraryFrame("/stable_baselines3/common/base_class.py", ("save",), SAVING),
    LibraryFrame("/stable_baselines3/", ("train",), LOOP),
    LibraryFrame("/keras/src/backend/torch/trainer.py", ("fit",), LOOP),
    LibraryFrame("/keras/src/backend/torch/trainer.py", ("evaluate", "test_step", "predict"), EVALUATION),
    # Its optimizers are not torch's, so their updates are in no section.
    LibraryFrame("/keras/src/optimizers/base_optimizer.py", ("BaseOptimizer.apply",), OPTIMIZER),
    LibraryFrame("/keras/src/trainers/compile_utils.py", ("CompileLoss.*",), LOSS),
    LibraryFrame("/keras/src/trainers/compile_utils.py", ("CompileMetrics.*",), METRICS),
    LibraryFrame("/keras/src/trainers/trainer.py", ("Trainer.compute_metrics", "Trainer.get_metrics_result"), METRICS),
    LibraryFrame("/keras/src/utils/progbar.py", (ANY,), PROGRESS),
    LibraryFrame("/keras/src/saving/", (ANY,), SAVING),
    LibraryFrame("/ignite/engine/engine.py", ("_run_once_on_dataset*",), LOOP),
    LibraryFrame("/ignite/engine/engine.py", ("_fire_event",), HANDLERS),
    LibraryFrame("/ignite/handlers/checkpoint.py", (ANY,), SAVING),
    LibraryFrame("/ignite/handlers/tqdm_logger.py", (ANY,), PROGRESS),
    *_rows(
        "/fastai/learner.py",
        loop="all_batches",
        evaluation="_do_epoch_validate validate get_preds",
        saving="save save_model export",
        logging="Recorder.*",
    ),
    LibraryFrame("/fastai/callback/progress.py", ("CSVLogger.*",), LOGGING),
    LibraryFrame("/fastai/callback/progress.py", (ANY,), PROGRESS),
    LibraryFrame("/fastai/callback/tracker.py", ("SaveModelCallback._save",), SAVING),
    *whole(LOGGING, "/fastai/callback/tensorboard.py", "/fastai/callback/wandb.py", "/fastai/callback/comet.py"),
    LibraryFrame("/fastai/callback/", (ANY,), CALLBACK),
    *_rows(
        "/ultralytics/engine/trainer.py",
        loop="_do_train",
        evaluation="validate final_eval",
        saving="save_model",
        logging="save_metrics",
    ),
    LibraryFrame("/ultralytics/engine/validator.py", (ANY,), EVALUATION),
    LibraryFrame("/ultralytics/utils/callbacks/", (ANY,), LOGGING),
    LibraryFrame("/ultralytics/utils/tqdm.py", ITERATION, NO_PHASE),
    LibraryFrame("/ultralytics/utils/tqdm.py", (ANY,), PROGRESS),
    *whole(LOGGING, "/accelerate/tracking.py", "/torch/utils/tensorboard/", "/tensorboardX/", "/wandb/", "/mlflow/"),
    *whole(LOGGING, "/comet_ml/", "/neptune/"),
    LibraryFrame("/tqdm/", ITERATION, NO_PHASE),
    LibraryFrame("/tqdm/", (ANY,), PROGRESS),
)


class FrameTable:
    """Finds the rows of a file: a program's start reads hundreds of files, and few have a row."""

    def __init__(self, rows: Sequence[LibraryFrame]) -> None:
        self._rows = rows
        self._folders: list[int] = []  # numbers of rows
        self._files: dict[str, list[int]] = {}  # by the last part of the path
        for number, row in enumerate(rows):
            name = row.path.rpartition("/")[2]
            (self._files.setdefault(name, []) if name.endswith(".py") else self._folders).append(number)

    def of_file(self, path: str) -> list[LibraryFrame]:
        """Return the rows of a file, in the order of the table."""
        path = path.replace("\\", "/")
        rows, files = self._rows, self._files.get(path.rpartition("/")[2], ())
        found = [number for number in self._folders if rows[number].path in path]
        found += [number for number in files if path.endswith(rows[number].path)]
        return [rows[number] for number in sorted(found)]


FRAME_TABLE: Final = FrameTable(FRAMES)


class FileRows:
    """The rows of one file. What a function was found to be is kept.

    Args:
        path: of the file.
        has_hooks: whether its functions may be hooks of a trainer by their names alone.
        table: has the rows.
    """

    def __init__(self, path: str, has_hooks: bool, table: FrameTable = FRAME_TABLE) -> None:
        self._has_hooks = has_hooks
        self._rows = table.of_file(path)
        self._phases: dict[str, str] = {}

    def phase_of(self, qualified_name: str) -> str:
        """Return the phase while this function runs, or ``LOOP``; "" if its name says neither."""
        if not self._rows and not self._has_hooks:  # as of most files
            return ""
        try:
            return self._phases[qualified_name]
        except KeyError:
            phase = self._phases[qualified_name] = self._find(qualified_name)
            return phase

    def _find(self, qualified_name: str) -> str:
        name = qualified_name.rpartition(".")[2]
        for row in self._rows:
            if any(_matches(pattern, name) or _matches(pattern, qualified_name) for pattern in row.functions):
                return row.phase
        return callback_named(name) if self._has_hooks else ""


@lru_cache(MOST_FILES)
def rows_of(path: str, table: FrameTable = FRAME_TABLE, has_hooks: bool = False) -> FileRows:
    """Return the rows of a file, the same object while the file is among the latest ``MOST_FILES``."""
    return FileRows(path, has_hooks, table)


def callback_named(function: str) -> str:
    """Return "callback on_step_end" for a function named like a hook of a trainer; else ""."""
    match = HOOK.fullmatch(function)
    return f"{CALLBACK} {match[1]}" if match else ""


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
