# SPDX-License-Identifier: Apache-2.0
"""Tests tools/lint/devices.py with small trees: factories that name no device, and others that do."""
import unittest

from small_tree import faults_of
from devices import check_devices  # noqa: I001: small_tree finds the folder of the checks


class Devices(unittest.TestCase):
    def faults(self, path, text):
        return faults_of(check_devices, path, text)

    def test_a_factory_names_its_device(self):
        for line in ["at::empty({2, 3});", "at::zeros({n}, at::kFloat);", "at::arange(f(n),\n           at::kLong);", "at::tensor(values);",
                     "at::from_blob(p, {2}, at::kFloat).to(device);"]:
            self.assertEqual(len(self.faults("stepforge/nn/a.cpp", line)), 1, line)

    def test_options_of_a_tensor_and_explicit_devices_are_names(self):
        for line in ["at::empty({2}, x.options());", "at::zeros({n},\n          at::device(at::kCPU).dtype(at::kFloat));",
                     "at::zeros({n}, resting_options(at::kFloat));", "at::empty_like(x);", "at::zeros_like(x);"]:
            self.assertEqual(self.faults("stepforge/nn/a.cpp", line), [], line)

    def test_kernels_for_the_cpu_and_other_rooms_are_free(self):
        for path in ["stepforge/kernels/cpu/a.cpp", "stepforge/prove/a.cpp", "tests/nn/a.cpp"]:
            self.assertEqual(self.faults(path, "at::empty({2});"), [], path)


if __name__ == "__main__":
    unittest.main()
