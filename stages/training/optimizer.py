"""torch's AdamW without importing torch._dynamo and without starting CUDA in a CPU training.

torch decorates the methods of its optimizers for torch.compile. The first call of each imports torch._dynamo, which
takes as long as `import torch`. No training here compiles its optimizer (`step: compile` compiles the model), so the
methods below are torch's own without the decorator.

If a GPU is visible, torch checks before each step whether the current CUDA stream is capturing. In a CPU training this
creates a context on the GPU: hundreds of MiB, and a process that `speed` would count as another user of the GPU. The
check prevents captures with `capturable=False`; Trainer sets `capturable` whenever it captures.
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

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check  # its name in older torch versions
