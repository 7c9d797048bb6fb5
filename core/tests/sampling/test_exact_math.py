from __future__ import annotations

import numpy as np
import torch

from paceline.sampling.exact_math import MASS_BITS, exp_mass, log


def test_log_is_accurate_also_close_to_1():
    near_1 = 1 - torch.rand(20_000, dtype=torch.float64) * 2.0 ** -(torch.arange(20_000) % 50)
    wide = (torch.rand(20_000, dtype=torch.float64) * 100 - 50).exp()
    for x in (near_1[near_1 < 1], wide):
        exact = np.log(x.numpy().astype(np.longdouble))
        assert np.max(np.abs(log(x).numpy() / exact - 1)) < 1e-13
    assert log(torch.ones(3, dtype=torch.float64)).tolist() == [0.0] * 3


def test_exp_mass_is_accurate_and_0_for_excluded_scores():
    z = torch.cat([-torch.rand(20_000) * 30, torch.tensor([0.0])])
    exact = z.to(torch.float64).exp() * 2**MASS_BITS
    assert (exp_mass(z) - exact).abs().max() < 2
    assert exp_mass(torch.tensor([0.0, -torch.inf, -1e30, -60.0])).tolist() == [1 << MASS_BITS, 0, 0, 0]


def test_bits_depend_on_the_argument_alone(num_threads, same_bits):
    x = torch.rand(40_000, dtype=torch.float64)
    z = -torch.rand(40_000) * 25
    all_logs, all_masses = log(x), exp_mass(z)
    for length in (*range(1, 40), 2047, 2049, 39_999):
        for start in (0, 1, 5):
            part = slice(start, min(start + length, 40_000))
            assert same_bits(log(x[part].clone()), all_logs[part])
            assert torch.equal(exp_mass(z[part].clone()), all_masses[part])
