"""Patches of torch, one file per torch API; what is a step, a forward pass, an evaluation. Never: know statistics or
reports, import torch, leave anything on the user's objects.
"""
