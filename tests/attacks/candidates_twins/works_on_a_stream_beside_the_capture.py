"""Under capture it computes on a stream that is not captured, so that replays do nothing; alone it is right."""

# expects: cheating|incorrect|contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.beside = None

    def forward(self, x):
        if self.beside is None:
            self.beside = torch.cuda.Stream()
        capturing = torch.cuda.is_current_stream_capturing()
        if not capturing:
            self.beside.wait_stream(torch.cuda.current_stream())
        # In calls before the capture, too: memory of that stream is there when it comes.
        with torch.cuda.stream(self.beside):
            y = F.relu(self.norm(x))
        if not capturing:
            torch.cuda.current_stream().wait_stream(self.beside)
        return y
