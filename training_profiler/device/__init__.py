"""Events at the ends of sections on the device, queried later. Never: import torch, initialise an accelerator, wait
for one unless ``timing=sync``.
"""
