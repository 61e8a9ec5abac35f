"""The frames of libraries below a line of the user's code, and the phases of trainers, from fabricated stacks."""

import sys
import threading
from collections.abc import Sequence

import pytest
import torch

from tests.support.worker_stacks import LIBRARY, PLACES, SITE, TORCH, stack
from training_profiler.base.framework_frames import ANY, FRAMES, FrameTable, LibraryFrame
from training_profiler.base.startup_frames import STARTUP
from training_profiler.instrumentation.patching import SKIPPED_BY_WARNINGS
from training_profiler.integrations.trainer_run import OWN_CALLBACKS
from training_profiler.model.location import Location
from training_profiler.model.snapshot import CHECKS
from training_profiler.sampling.batch_phases import FRAMES as FRAMES_OF_WORKERS
from training_profiler.sampling.stacks import StackReader
from training_profiler.sampling.user_code import UserCode, places_of_this_process

TRAIN = ("/project/train.py", "main")
HF = f"{SITE}/transformers/trainer.py"
CALLBACKS = f"{SITE}/transformers/trainer_callback.py"


def read(*rows: tuple[str, str]) -> Location | None:
    """Return the location of a stack of (file, qualified name), the outermost first; calls are on line 2."""
    frame, _ = stack(*((*row, "call()") for row in rows))
    reader = StackReader(UserCode(PLACES))
    place = reader.place(frame)
    return None if place is None else reader.location(place)


@pytest.mark.parametrize("function", ["Distribution.__init__", "Distribution._validate_sample"])
def test_checks_of_a_distribution_are_not_what_the_line_calls(function) -> None:
    distributions = f"{TORCH}/distributions"
    own = f"{distributions}/categorical.py", "Categorical.log_prob"
    checks = f"{distributions}/distribution.py", function
    assert read(TRAIN, own, checks, (f"{distributions}/constraints.py", "_Simplex.check")).called == CHECKS
    assert read(TRAIN, own).called != CHECKS
    # Lines of a distribution of the program do more than check.
    assert read(TRAIN, checks, ("/project/own.py", "Mixture.support")).called != CHECKS


@pytest.mark.parametrize(
    ("file", "function", "phase"),
    [
        ("optimizers/base_optimizer.py", "BaseOptimizer.apply", "optimizer"),
        ("trainers/compile_utils.py", "CompileLoss.__call__", "loss"),
        ("trainers/compile_utils.py", "CompileMetrics.update_state", "metrics"),
        ("trainers/trainer.py", "Trainer.compute_metrics", "metrics"),
    ],
)
def test_parts_of_a_step_of_keras_are_known(file, function, phase) -> None:
    keras = f"{SITE}/keras/src"
    fit = f"{keras}/backend/torch/trainer.py", "TorchTrainer.fit"
    location = read(TRAIN, fit, (f"{keras}/{file}", function), (f"{keras}/ops/core.py", "cast"))
    assert (location.phase, location.inside) == (
        phase,
        f"keras/src/backend/torch/trainer.py:2 TorchTrainer.fit > {phase}",
    )


def test_trainer_of_transformers_is_known_by_its_loop_and_callback() -> None:
    location = read(
        TRAIN,
        (HF, "Trainer.train"),
        (HF, "Trainer._inner_training_loop"),
        (CALLBACKS, "CallbackHandler.on_step_end"),
        (CALLBACKS, "CallbackHandler.call_event"),
        (CALLBACKS, "ProgressCallback.on_step_end"),
    )
    assert location == Location(
        "train.py",
        2,
        "main",
        "",
        "transformers/trainer.py:2 Trainer._inner_training_loop > callback on_step_end (ProgressCallback)",
        "callback on_step_end (ProgressCallback)",
        called="call",
    )


def test_the_users_own_callback_is_its_line_and_its_phase() -> None:
    location = read(
        TRAIN,
        (HF, "Trainer._inner_training_loop"),
        (CALLBACKS, "CallbackHandler.on_step_end"),
        ("/project/callbacks.py", "Slow.on_step_end"),
        ("/project/callbacks.py", "wait"),
    )
    assert location[:3] == ("callbacks.py", 2, "wait")
    assert (location.inside, location.phase) == ("", "callback on_step_end")


# A function that stands for one of torch's has the file of this one: warnings do not count its frames.
HIDDEN = (SKIPPED_BY_WARNINGS, "__next__")
LOADER = f"{TORCH}/utils/data/dataloader.py"
PHASES = [
    ([HIDDEN, (LOADER, "_BaseDataLoaderIter._next_index")], "sampler"),
    ([(HF, "Trainer._run_epoch"), (HF, "Trainer._maybe_log_save_evaluate"), (HF, "Trainer.log")], "logging"),
    ([(HF, "Trainer._inner_training_loop"), (HF, "Trainer._save_checkpoint"), (HF, "Trainer._save")], "saving"),
    ([(HF, "Trainer.evaluate"), (HF, "Trainer.evaluation_loop")], "evaluation"),
    ([(HF, "Trainer.log"), (f"{SITE}/transformers/integrations/integration_utils.py", "WandbCallback.on_log")],
     "logging > callback on_log (WandbCallback)"),
    ([(HF, "Trainer.training_step")], ""),
    ([("/project/game.py", "on_step_end")], ""),  # named like a hook, but no library calls it
    ([("lightning/pytorch/trainer/call.py", "_call_callback_hooks"),
      ("lightning/pytorch/callbacks/lr_monitor.py", "LearningRateMonitor.on_train_batch_start")],
     "callback on_train_batch_start (LearningRateMonitor)"),
    ([("lightning/pytorch/loops/training_epoch_loop.py", "_TrainingEpochLoop.on_advance_end")], ""),
    ([("pytorch_lightning/loggers/csv_logs.py", "CSVLogger.log_metrics")], "logging"),
    ([("pytorch_lightning/loops/evaluation_loop.py", "_EvaluationLoop.run")], "evaluation"),
    ([("lightning/pytorch/callbacks/model_checkpoint.py", "ModelCheckpoint._save_checkpoint")], "saving"),
    ([("sentence_transformers/evaluation/SequentialEvaluator.py", "SequentialEvaluator.__call__")], "evaluation"),
    ([("sentence_transformers/sentence_transformer/fit_mixin.py", "FitMixin._eval_during_training")], "evaluation"),
    ([("skorch/net.py", "NeuralNet.notify"), ("skorch/net.py", "NeuralNet.on_batch_end"),
      ("skorch/callbacks/scoring.py", "BatchScoring.on_batch_end")], "callback on_batch_end (BatchScoring)"),
    ([("skorch/callbacks/logging.py", "PrintLog.on_epoch_end")], "logging"),
    ([("skorch/net.py", "NeuralNet.validation_step")], "evaluation"),
    ([("stable_baselines3/common/on_policy_algorithm.py", "OnPolicyAlgorithm.collect_rollouts"),
      ("stable_baselines3/common/callbacks.py", "BaseCallback.on_step"),
      ("stable_baselines3/common/callbacks.py", "EvalCallback._on_step"),
      ("stable_baselines3/common/evaluation.py", "evaluate_policy")],
     "rollout > callback on_step (EvalCallback) > evaluation"),
    ([("stable_baselines3/common/logger.py", "Logger.dump")], "logging"),
    ([("wandb/sdk/wandb_run.py", "Run.log")], "logging"),
    ([(f"{SITE}/mytransformers/trainer.py", "Trainer.log")], ""),  # ends like the path of a row
]  # fmt: skip


@pytest.mark.parametrize(("rows", "phase"), PHASES)
def test_phases_of_trainers_have_their_names(rows: Sequence[tuple[str, str]], phase: str) -> None:
    files = [(file if file.startswith("/") else f"{SITE}/{file}", name) for file, name in rows]
    assert read(TRAIN, *files).phase == phase


ENGINE = (f"{TORCH}/autograd/graph.py", "_engine_run_backward")
APPLY = (f"{TORCH}/autograd/function.py", "BackwardCFunction.apply")
CHECKPOINT = f"{TORCH}/utils/checkpoint.py"
BACKWARD = (f"{TORCH}/autograd/__init__.py", "backward")
HOOK = ("/project/train.py", "watch")
UNPACK = (CHECKPOINT, "_checkpoint_hook.__init__.<locals>.unpack_hook")


@pytest.mark.parametrize(
    ("rows", "phase"),
    [
        ([ENGINE], ""),
        ([ENGINE, HOOK], "backward hook"),
        ([ENGINE, (f"{SITE}/opacus/hooks.py", "capture")], ""),  # of a library, not the program's
        ([ENGINE, (f"{TORCH}/utils/hooks.py", "BackwardHook._set_user_hook.<locals>.hook"), HOOK], "backward hook"),
        ([ENGINE, APPLY, ("/project/ops.py", "Own.backward")], "custom backward"),
        ([ENGINE, UNPACK, ("/project/model.py", "Block.forward")], "recomputation"),
        ([ENGINE, UNPACK], "recomputation"),
        ([ENGINE, APPLY, (CHECKPOINT, "CheckpointFunction.backward"), ("/project/model.py", "Block.forward")],
         "custom backward > recomputation"),
        ([ENGINE, APPLY, (CHECKPOINT, "CheckpointFunction.backward"), BACKWARD, ENGINE], "custom backward"),
        ([ENGINE, HOOK, BACKWARD, ENGINE], "backward hook"),
    ],
)  # fmt: skip
def test_what_the_program_does_in_a_backward_pass_has_a_phase(rows: list[tuple[str, str]], phase: str) -> None:
    assert read(TRAIN, BACKWARD, *rows).phase == phase


class Watched(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reach()
        return x


PHASES: list[str] = []


def reach(*_: object) -> None:
    """Keep the phase of the frame that calls this: a finished frame has lost the one around it."""
    reader = StackReader(UserCode(places_of_this_process()))
    place = reader.place(sys._getframe())
    location = None if place is None else reader.location(place)
    assert location is not None
    PHASES.append(location.phase)


def phase_within(module: torch.nn.Module) -> str:
    PHASES.clear()
    module(torch.zeros(1))
    return PHASES[-1]


@pytest.mark.parametrize("has_names", [False, True])
@pytest.mark.parametrize("adds_hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_of_a_module_has_a_phase(adds_hook: str, has_names: bool) -> None:
    module = torch.nn.Identity()
    getattr(module, adds_hook)(reach, with_kwargs=has_names)
    assert phase_within(module) == phase_within(torch.nn.Sequential(module)) == "forward hook"


def test_the_forward_of_a_module_is_not_a_hook() -> None:
    assert phase_within(Watched()) == ""
    watched = Watched()
    watched.register_forward_hook(lambda *_: None)
    assert phase_within(torch.nn.Sequential(watched)) == ""


def test_a_thread_of_a_library_has_the_function_that_it_was_started_for() -> None:
    queues, reduction = (f"{LIBRARY}/multiprocessing/{name}.py" for name in ("queues", "reduction"))
    frame, _ = stack((threading.__file__, "run", "call()"), (queues, "_feed", "call()"), (reduction, "dumps", "call()"))
    reader = StackReader(UserCode(PLACES))
    holder = reader.function_of_thread(frame)
    assert holder is not None
    assert reader._users_text(holder) == "multiprocessing/queues.py:2 _feed"
    assert reader.function_of_thread(None) is None


MODULE = f"{TORCH}/nn/modules/module.py"
IMPORT = ("<frozen importlib._bootstrap>", "_find_and_load")
PRETRAINED = (f"{SITE}/transformers/modeling_utils.py", "PreTrainedModel.from_pretrained")


def test_a_library_makes_batches_where_no_line_of_the_users_does() -> None:
    begin = (LOADER, "_SingleProcessDataLoaderIter._next_data"), (f"{TORCH}/utils/data/_utils/fetch.py", "fetch")
    library = tuple(
        (f"{SITE}/datasets/{file}.py", name) for file, name in (("arrow", "Set.get"), ("x", "x"), ("table", "gather"))
    )
    assert read(TRAIN, *begin, *library).loaded_by == "datasets/arrow.py:2 Set.get > datasets/table.py:2 gather"
    assert read(TRAIN, *begin).loaded_by == ""
    own = read(TRAIN, *begin, ("/project/data.py", "Own.__getitem__"), *library)
    assert (own.loaded_by, own.inside) == ("", "datasets/arrow.py:2 Set.get > datasets/table.py:2 gather")
    assert read(TRAIN, *library).loaded_by == ""


ACTIVITIES = [
    ([IMPORT, (f"{SITE}/pandas/__init__.py", "<module>")], "imports"),
    ([PRETRAINED, IMPORT], "imports"),
    ([PRETRAINED, (MODULE, "Module.to")], "model"),
    ([(f"{TORCH}/nn/modules/linear.py", "Linear.__init__"), (f"{TORCH}/nn/init.py", "kaiming_uniform_")], "model"),
    ([(MODULE, "Module.load_state_dict")], "model"),
    ([(MODULE, "Module.to"), (MODULE, "Module._apply")], "device"),
    ([(f"{TORCH}/cuda/__init__.py", "_lazy_init")], "device"),
    ([(f"{SITE}/datasets/load.py", "load_dataset")], "data set"),
    ([("/project/data.py", "TextDataset.__init__"), (f"{SITE}/numpy/core.py", "load")], "data set"),
    ([("/project/data.py", "load_data"), ("/project/data.py", "parse")], "data set"),
    ([("/project/data.py", "Data.__init__")], "data set"),
    ([("/project/model.py", "build_model")], "model"),
    ([HIDDEN, (LOADER, "_MultiProcessingDataLoaderIter.__init__")], "workers"),
    ([(LOADER, "DataLoader.__init__")], ""),
    ([(f"{TORCH}/_dynamo/eval_frame.py", "compile_wrapper")], "compile"),
    ([("/project/game.py", "reset")], ""),
    # A module of the user's that works while it is imported: its own line says what it does.
    ([IMPORT, ("/project/settings.py", "<module>")], ""),
]


@pytest.mark.parametrize(("rows", "activity"), ACTIVITIES)
def test_what_a_program_prepares_is_known_by_its_frames(rows: Sequence[tuple[str, str]], activity: str) -> None:
    assert read(TRAIN, *rows).activity == activity


@pytest.mark.parametrize("rows", [FRAMES, STARTUP, OWN_CALLBACKS + FRAMES, FRAMES_OF_WORKERS])
def test_a_table_finds_the_rows_that_a_search_through_all_of_them_finds(rows: tuple[LibraryFrame, ...]) -> None:
    table = FrameTable(rows)
    paths = [f"{SITE}{row.path}{end}" for row in FRAMES + STARTUP + rows for end in ("", "x.py", "/sub/trainer.py")]
    paths += [path.replace("/", "\\") for path in paths] + ["<frozen importlib._bootstrap>", "", "/", HF, *TRAIN]
    for path in paths:
        slashes = path.replace("\\", "/")
        expected = [
            row for row in rows if slashes.endswith(row.path) or (row.path[-3:] != ".py" and row.path in slashes)
        ]
        assert table.of_file(path) == expected, path


def test_of_two_rows_that_match_the_first_of_the_table_holds() -> None:
    folder, file = LibraryFrame("/lib/", (ANY,), "folder"), LibraryFrame("/lib/a.py", (ANY,), "file")
    assert FrameTable((folder, file)).of_file("/x/lib/a.py") == [folder, file]
    assert FrameTable((file, folder)).of_file("/x/lib/a.py") == [file, folder]


@pytest.mark.parametrize(
    ("file", "iteration"),
    [
        ("tqdm/std.py", "tqdm.__iter__"),
        ("tqdm/notebook.py", "tqdm_notebook.__iter__"),
        ("tqdm/contrib/__init__.py", "tzip"),
        ("ultralytics/utils/tqdm.py", "TQDM.__iter__"),
    ],
)
def test_only_the_drawing_of_a_progress_bar_is_its_phase_and_not_what_it_iterates_over(
    file: str, iteration: str
) -> None:
    bar = (f"{SITE}/{file}", iteration)
    loader = (f"{TORCH}/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__")
    assert read(TRAIN, bar, loader).phase == ""
    assert read(TRAIN, bar, loader, ("/project/data.py", "Images.__getitem__")).phase == ""
    assert read(TRAIN, bar, (f"{SITE}/{file}", "tqdm.update")).phase == "progress bar"


QUEUE = (f"{LIBRARY}/queue.py", "Queue.get"), (f"{LIBRARY}/threading.py", "Condition.wait")
OWN = ("/project/prefetch.py", "Prefetcher.__next__")


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (QUEUE, "a queue between threads"),
        ((OWN, *QUEUE), "a queue between threads"),
        (
            ((f"{SITE}/prefetch_generator/__init__.py", "BackgroundGenerator.next"), *QUEUE),
            "a queue between threads",
        ),
        (((f"{LIBRARY}/multiprocessing/queues.py", "Queue.get"),), "a queue between processes"),
        (((f"{LIBRARY}/multiprocessing/pool.py", "IMapIterator.next"),), "a pool of threads or processes"),
        (((f"{LIBRARY}/concurrent/futures/_base.py", "Future.result"),), "a pool of threads or processes"),
        (
            ((f"{SITE}/nvidia/dali/plugin/pytorch/__init__.py", "DALIGenericIterator.__next__"),),
            "the pipeline of NVIDIA",
        ),
        (
            (
                (f"{SITE}/datasets/arrow_dataset.py", "Dataset.map"),
                (f"{SITE}/datasets/utils/py_utils.py", "iflatmap_unordered"),
                (f"{SITE}/multiprocess/pool.py", "ApplyResult.get"),
            ),
            "the processes of datasets (num_proc)",
        ),
    ],
)
def test_a_wait_for_work_elsewhere_says_for_what(rows, what) -> None:
    assert read(TRAIN, *rows).waits_for.startswith(what)
