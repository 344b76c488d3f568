"""A compiler plugin is code that runs in the compiler."""

# expects: contract_violation
from torch import nn
from torch.utils.cpp_extension import load_inline

load_inline("plugged", cpp_sources="", extra_cflags=["-fplugin=/tmp/x.so"], is_python_module=False)


class ModelNew(nn.Module):
    pass
