"""One thread per test process: tests are small, and two processes share the machine."""

import torch

torch.set_num_threads(1)
