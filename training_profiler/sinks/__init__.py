"""The terminal and the trackers, each tracker with a queue and a thread of its own. Never: make the training wait,
import wandb or mlflow before the program does.
"""
