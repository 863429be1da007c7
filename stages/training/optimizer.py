"""AdamW as torch computes it, without torch._dynamo, and without starting CUDA for a training on the CPU.

torch decorates the methods of its optimizers for torch.compile, and the first call of each imports torch._dynamo: as
slow as `import torch`. No training here compiles its optimizer (`step: compile` compiles the model), so the methods
below are torch's own without that decorator.

Before each step torch asks whether the accelerator's current stream is capturing, wherever a GPU is visible. On the CPU
that opens a context on the GPU: hundreds of MiB, and a process that `speed` would count as another user of the GPU. The
check guards against a capture with `capturable=False`; Trainer sets `capturable` where it captures.
"""

from inspect import unwrap

import torch


class AdamW(torch.optim.AdamW):
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)

    def _accelerator_graph_capture_health_check(self) -> None:
        pass

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check  # its name in older versions of torch
