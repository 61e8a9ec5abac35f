"""Logs to TensorBoard, to W&B and MLflow servers, and to files that libraries open in C: ``trackers.py URL``."""

import glob
import os
import sys

import h5py
import mlflow
import torch
import wandb
from safetensors.torch import load_file, save_file
from torch.utils.tensorboard import SummaryWriter

url = sys.argv[1]
with SummaryWriter("tensorboard") as writer:
    writer.add_scalar("loss", 1.0, 0)
assert glob.glob("tensorboard/events.*")

save_file({"weight": torch.ones(2)}, "model.safetensors")
assert load_file("model.safetensors")["weight"].tolist() == [1, 1]

with h5py.File("data.h5", "w") as file:
    file["x"] = [1, 2]
with h5py.File("data.h5", "a") as file:
    file["y"] = [3]
with h5py.File("data.h5") as file:
    assert sorted(file) == ["x", "y"]

run = wandb.init(project="p", mode="online", settings=wandb.Settings(base_url=url, api_key="x" * 40, silent=True))
run.log({"loss": 1.0})
run.finish()

os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "1"
mlflow.set_tracking_uri(url)
mlflow.set_experiment("mine")
with mlflow.start_run():
    mlflow.log_metric("loss", 1.0)
print("done")
