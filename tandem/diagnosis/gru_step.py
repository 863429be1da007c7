"""`python -m tandem.diagnosis.gru_step cuda:0`: runs a small GRU's training step and prints measurements for `make
doctor`.
"""

import json
import sys

import torch

from tandem.devices.names import kind_of
from tandem.machine.measure import Clock, peak_rss_mib


def main(name: str) -> None:
    kind, _, index = name.partition(":")
    device = kind_of(kind)(int(index or 0))
    torch.manual_seed(0)
    gru, batch = (
        torch.nn.GRU(8, 128, batch_first=True).to(device.torch_device),
        torch.randn(256, 45, 8).to(device.torch_device),
    )
    for _ in range(3):  # the first step also allocates
        with Clock(device) as clock:
            loss = gru(batch)[0].square().mean()
            gradients = torch.autograd.grad(loss, list(gru.parameters()))
            norm = sum(float(gradient.norm()) for gradient in gradients)
    peak_mib = int(device.memory_mib().get("peak_allocated_mib", peak_rss_mib()))
    devices = sorted({str(tensor.device) for tensor in (batch, loss, *gru.parameters(), *gradients)})
    print(json.dumps({"seconds": clock.seconds, "norm": norm, "devices": devices, "peak_mib": peak_mib}))


if __name__ == "__main__":
    main(sys.argv[1])
