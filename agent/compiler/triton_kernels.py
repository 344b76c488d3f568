from agent.compiler.capture import Capture
from agent.compiler.cpu_kernels import Library


def library(capture: Capture) -> Library:
    raise NotImplementedError
