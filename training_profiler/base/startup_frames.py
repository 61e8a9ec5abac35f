"""The functions that show what a program prepares before its first step. No library is imported for it."""

import re
from typing import Final

from training_profiler.base.framework_frames import ANY, FrameTable, LibraryFrame, whole

IMPORTS: Final = "imports"
IMPORTS_OF_COMPILE: Final = f"{IMPORTS} of torch.compile"  # which torch's optimizers import, too, with their first step
DATA_SET: Final = "data set"
MODEL: Final = "model"
WORKERS: Final = "workers"
DEVICE: Final = "device"
COMPILE: Final = "compile"
OPTIMIZER: Final = "optimizer"
PROCESS_GROUP: Final = "process group"
REST: Final = "other code"
BEFORE_TORCH: Final = "until torch was imported"  # imports of other packages, mostly

# What a line does that imports, before the name of a module. No name of a script stands for one that is unused.
IMPORT: Final = "import"
UNUSED_IMPORT: Final = f"unused {IMPORT}"

# The file of the frames that every import has. Wrappers of ours have the name of the other one, which warnings skip.
IMPORT_SYSTEM: Final = "<frozen importlib._bootstrap>"

# The first row that matches a frame holds. Among frames of a stack, the outermost below the user's line does.
STARTUP: Final[tuple[LibraryFrame, ...]] = (
    *whole(COMPILE, "/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/", "/torch/jit/_script.py"),
    LibraryFrame("/torch/cuda/__init__.py", ("_lazy_init", "init"), DEVICE),
    LibraryFrame("/torch/nn/modules/module.py", ("Module.to", "Module.cuda", "Module.xpu", "Module._apply"), DEVICE),
    LibraryFrame("/torch/nn/modules/module.py", ("Module.load_state_dict", "Module.__init__", "Module.apply"), MODEL),
    LibraryFrame("/torch/nn/modules/", ("__init__", "reset_parameters", "_reset_parameters"), MODEL),
    LibraryFrame("/torch/nn/init.py", (ANY,), MODEL),
    LibraryFrame("/torch/hub.py", ("load", "load_state_dict_from_url"), MODEL),
    LibraryFrame("/torch/distributed/distributed_c10d.py", ("init_process_group", "new_group"), PROCESS_GROUP),
    LibraryFrame("/torch/optim/", ("__init__",), OPTIMIZER),
    LibraryFrame("/torch/utils/data/dataloader.py", ("_MultiProcessingDataLoaderIter.*",), WORKERS),
    LibraryFrame("/torch/utils/data/dataset.py", (ANY,), DATA_SET),
    LibraryFrame("/multiprocessing/", ("BaseProcess.start", "Popen.*"), WORKERS),
    LibraryFrame("/safetensors/", (ANY,), MODEL),
    LibraryFrame("/transformers/tokenization_", ("from_pretrained*",), DATA_SET),
    LibraryFrame("/transformers/", ("from_pretrained", "from_config"), MODEL),
    LibraryFrame("/diffusers/", ("from_pretrained", "from_config"), MODEL),
    LibraryFrame("/sentence_transformers/", ("SentenceTransformer.__init__", "from_pretrained"), MODEL),
    LibraryFrame("/timm/models/_factory.py", ("create_model",), MODEL),
    LibraryFrame("/torchvision/models/", (ANY,), MODEL),
    *whole(DATA_SET, "/datasets/", "/torchvision/datasets/", "/torchaudio/datasets/", "/sklearn/datasets/"),
    *whole(DATA_SET, "/pandas/io/", "/pyarrow/"),
    LibraryFrame("/numpy/lib/", ("load", "loadtxt", "genfromtxt", "fromfile"), DATA_SET),
    LibraryFrame("/PIL/", (ANY,), DATA_SET),
)
STARTUP_TABLE: Final = FrameTable(STARTUP)
# Functions of the user's, by their qualified names.
_OF_USERS: Final = (
    (re.compile(r"\w*Data(set\w*|Module\w*|)\.|\w*Dataset$|(load|get|build|make|prepare)_data(set)?s?$"), DATA_SET),
    (re.compile(r"(load|get|build|make|create)_(model|net|network)$"), MODEL),
)


def activity_of_users(qualified_name: str) -> str:
    """Return what a function of the user's prepares, as far as its name says it; else ""."""
    name = qualified_name.rpartition("<locals>.")[2]
    return next((activity for pattern, activity in _OF_USERS if pattern.match(name)), "")
