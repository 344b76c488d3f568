# expects: task_rejected no class Model
import torch


def get_inputs():
    return [torch.ones(2)]


def get_init_inputs():
    return []
