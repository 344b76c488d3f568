"""C++ that does not compile."""

# expects: compile_error
from torch import nn
from torch.utils.cpp_extension import load_inline

load_inline("broken", cpp_sources="int f( {", is_python_module=False, no_implicit_headers=True)


class ModelNew(nn.Module):
    pass
