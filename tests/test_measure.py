"""What a device can do at most is measured on it, and what the driver does not tell comes with the reason."""

import math

import pytest
import torch

from stages.machine.nvml import Gpu
from stages.machine.rates import best_seconds, host_to_device_rate, matrix_rate, memory_rate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rates_are_measured_in_the_precision_asked_for(dtype: torch.dtype):
    rate = matrix_rate(torch.device("cpu"), dtype)
    assert math.isfinite(rate) and rate > 0


def test_a_copy_is_measured():
    rate = memory_rate(torch.device("cpu"))
    assert math.isfinite(rate) and rate > 0


def test_the_first_run_does_not_count():
    runs = []
    assert best_seconds(lambda: runs.append(None), torch.device("cpu")) > 0
    assert len(runs) >= 4


def test_a_gpu_that_nvml_does_not_know_has_no_memory_of_this_process():
    found, reason = Gpu("GPU-00000000-0000-0000-0000-000000000000").process_mib()
    assert found is None and reason.startswith("NVML: ")


@pytest.mark.gpu
def test_cuda_takes_memory_of_its_own():
    device = torch.device("cuda", 0)
    torch.ones(1, device=device)
    found, reason = Gpu.of(device).process_mib()
    assert reason if found is None else found > torch.cuda.memory_reserved(device) / 2**20


@pytest.mark.gpu
def test_copies_to_the_gpu_are_measured_from_pinned_and_pageable_memory():
    for pinned in (True, False):
        assert host_to_device_rate(torch.device("cuda", 0), pinned) > 0
