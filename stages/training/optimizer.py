"""AdamW as torch computes it, without torch._dynamo.

torch decorates the methods of its optimizers for torch.compile, and the first call of each imports torch._dynamo: as
slow as `import torch`. No training here compiles its optimizer (`step: compile` compiles the model), so the methods
below are torch's own without that decorator.
"""

from inspect import unwrap

import torch


class AdamW(torch.optim.AdamW):
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
