"""`python -m tandem.diagnosis.gru_step cuda:0`: runs a small GRU's training step and prints measurements for `make
doctor`.
"""

import json
import resource
import sys
import time

import torch


def main(device: str) -> None:
    torch.manual_seed(0)
    gru, batch = torch.nn.GRU(8, 128, batch_first=True).to(device), torch.randn(256, 45, 8).to(device)  # (B, T, F)
    for _ in range(3):  # the first step also allocates
        start = time.perf_counter()
        loss = gru(batch)[0].square().mean()
        gradients = torch.autograd.grad(loss, list(gru.parameters()))
        norm = sum(float(gradient.norm()) for gradient in gradients)  # waits for the device
        seconds = time.perf_counter() - start
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mib = rss_kib >> 10 if device == "cpu" else torch.cuda.max_memory_allocated(device) >> 20
    devices = sorted({str(tensor.device) for tensor in (batch, loss, *gru.parameters(), *gradients)})
    print(json.dumps({"seconds": seconds, "norm": norm, "devices": devices, "peak_mib": peak_mib}))


if __name__ == "__main__":
    main(sys.argv[1])
