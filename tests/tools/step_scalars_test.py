# SPDX-License-Identifier: Apache-2.0
"""Tests tools/lint/step_scalars.py with small trees: the signatures that it must refuse, and others that only look like them."""
import unittest

from small_tree import faults_of
from step_scalars import ALLOWED_READS, ALLOWED_SIGNATURES, check_step_scalars  # noqa: I001: small_tree finds the folder of the checks


class StepScalars(unittest.TestCase):
    def faults(self, path, text):
        return faults_of(check_step_scalars, path, text)

    def refused(self, path, text, *words):
        faults = self.faults(path, text)
        self.assertEqual(len(faults), 1, (text, faults))
        for word in words:
            self.assertIn(word, faults[0])

    def test_no_signature_inside_a_step_has_a_host_number_that_depends_on_data(self):
        for path, line in [
            ("stepforge/kernels/a.h", "double sum_in_order(const at::Tensor& flat);"),
            ("stepforge/kernels/a.h", "void f(const at::Tensor& logits, double scale);"),
            ("stepforge/kernels/a.h", "void f(const at::Tensor& flat, std::span<double> partials);"),
            ("stepforge/kernels/a.h", "struct S { int64_t step = 1; };"),
            ("stepforge/kernels/a.h", "double grad_scale = 1.0;"),
            ("stepforge/nn/block.h", "double loss_sum = 0.0;"),
            ("stepforge/nn/block.h", "virtual R loss_with_gradients(const Bundle& inputs, double scale) = 0;"),
            ("stepforge/storage/gradient_norm.h", "double join_over_shards(Communicator* shards, const at::Tensor& own);"),
            ("stepforge/storage/gradient_norm.h", "void f(const double& norm_terms);"),
            ("stepforge/train/executor.h", "virtual bool check_finite() { return true; }"),
            ("stepforge/train/executor.h", "virtual double of_tokens() { return 1.0; }"),
            ("stepforge/train/training_services.h", "double lr_factor_;"),
            ("stepforge/train/averaging_domain.h", "int64_t labels() const;"),
        ]:
            with self.subTest(line):
                self.refused(path, "\n" + line + "\n", f"{path}:2", "is a host number inside a step")

    def test_two_on_a_line_are_two(self):
        self.assertEqual(len(self.faults("stepforge/optim/other.h", "void begin_update(double lr_factor, double grad_scale);")), 0)
        self.assertEqual(len(self.faults("stepforge/kernels/a.h", "void begin_update(double lr_factor, double grad_scale);")), 2)

    def test_settings_sizes_tensors_and_other_headers_are_accepted(self):
        for path, line in [
            ("stepforge/kernels/a.h", "void f(const at::Tensor& norm, double max_norm, double eps, const at::Tensor& scale);"),
            ("stepforge/kernels/a.h", "void f(int64_t chunk, bool accumulate_weight, const double* scale);  // double norm"),
            ("stepforge/nn/a.h", "void f(double dropout, bool qk_norm, int64_t layer);"),
            ("stepforge/train/train_step.h", "double loss = 0.0;"),
            ("stepforge/optim/clip_grad_norm.h", "double clip_grad_norm(const ShardedModule& module, double max_norm);"),
        ]:
            with self.subTest(line):
                self.assertEqual(self.faults(path, line + "\n"), [])

    def test_no_code_inside_a_step_waits_for_the_device(self):
        for path in ["stepforge/kernels/a.cpp", "stepforge/nn/a.cpp", "stepforge/storage/a.cpp", "stepforge/optim/a.cpp", "stepforge/train/executor.cpp"]:
            for read in ["x.item<double>()", "x.item()", "x.item <float>()", "x.cpu()", "x.to(at::kCPU)", "x.is_nonzero()", "at::equal(x, y)"]:
                with self.subTest(path + " " + read):
                    self.refused(path, f"\nauto y = {read};\n", f"{path}:2", "waits for the compute device")
        self.assertEqual(self.faults("stepforge/train/evaluation.cpp", "auto y = x.item<double>();\n"), [])
        self.assertEqual(self.faults("stepforge/nn/a.cpp", "// x.item<double>()\n"), [])

    def test_an_exception_that_is_no_longer_needed_is_refused(self):
        for path, what in [*ALLOWED_SIGNATURES, *ALLOWED_READS]:
            with self.subTest(what):
                self.assertTrue(any(f"allows `{what}`" in fault for fault in self.faults(path, "\n")))


if __name__ == "__main__":
    unittest.main()
