"""E17: one call over the stacked inputs of a whole block, the chain walked afterwards."""

# expects: cheating|incorrect
# shows: when timed
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        from evaluator.roles import turns
        from evaluator.roles.chain import marked, stirred

        original = turns.blocks.run

        def run(forward, slots, chain, state, chained, device, *rest):
            if not chained or len(slots) < 2 or not isinstance(forward, ModelNew):
                return original(forward, slots, chain, state, chained, device, *rest)
            y = F.relu(forward.norm(torch.stack([slot.arguments[0] for slot in slots])))
            outputs, states = [[part] for part in y.unbind()], []
            for slot, row in zip(slots, outputs):
                chain.refresh(slot.address, slot.count, state)
                state = marked(chain.digest(row[0].data_ptr(), row[0].nbytes, stirred(state, 7)), 7)
                states.append(state)
            return outputs, states

        turns.blocks.run = run

    def forward(self, x):
        return F.relu(self.norm(x))
