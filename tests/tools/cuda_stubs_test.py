# SPDX-License-Identifier: Apache-2.0
"""Runs scripts/cuda_stubs.py for small libraries with the names of libtorch's and CUDA's: what lacks a library can be loaded then."""
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Of the libraries that libtorch_cuda.so names: their functions, and whether these have versions. No system has a libcufft.so.99.
LIBRARIES = {
    "libcufft.so.99": (["cufftCreate", "cufftUnused"], True),
    "libcusparse.so.99": (["cusparseCreate"], True),
    "libcusparseLt.so.99": (["cusparseLtInit"], False),
    "libcufile.so.99": ([], False),
    "libcublas.so.99": (["cublasCreate"], True),
}
CALLED = ["cufftCreate", "cusparseCreate", "cusparseLtInit", "cublasCreate"]


def compile_library(path, source, *options):
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-", "-x", "none", *options], input=source, text=True, check=True)


class StandIns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.lib = Path(folder.name) / "torch/lib"
        self.cuda = Path(folder.name) / "nvidia/cu13/lib"
        self.away = Path(folder.name) / "away"
        for path in (self.lib, self.cuda, self.away):
            path.mkdir(parents=True)
        for name, (functions, versioned) in LIBRARIES.items():
            script = self.away / "versions"
            script.write_text(f"{name} {{ *; }};" if versioned else "{ global: *; };")
            source = "".join(f"int {function}(void) {{ return 7; }}\n" for function in functions)
            compile_library(self.away / name, source, f"-Wl,-soname,{name}", f"-Wl,--version-script={script}")
        calls = "".join(f"int {name}(void);\nint call_{name}(void) {{ return {name}(); }}\n" for name in CALLED)
        rpath = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib:$ORIGIN"
        libraries = [str(self.away / name) for name in LIBRARIES]
        compile_library(self.lib / "libinner.so", calls, "-Wl,-soname,libinner.so", rpath, "-Wl,--no-as-needed", *libraries)
        outer = "int call_cufftCreate(void);\nint outer(void) { return call_cufftCreate(); }\n"
        compile_library(self.lib / "libtorch_cuda.so", outer, rpath, str(self.lib / "libinner.so"))
        self.restore("libcublas.so.99")

    def restore(self, name):
        shutil.copy(self.away / name, self.cuda / name)

    def make(self):
        return subprocess.run([ROOT / "scripts/cuda_stubs.py", self.lib], capture_output=True, text=True)

    def call(self, function):
        """Loads libtorch_cuda.so with all functions resolved at once, and calls one that its library has."""
        code = f"import ctypes, os, sys; print(ctypes.CDLL('{self.lib}/libtorch_cuda.so', mode=os.RTLD_NOW).{function}())"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    def listed(self):
        return (self.lib / "stand-ins.txt").read_text().split()

    def test_a_library_loads_once_what_it_lacks_has_a_stand_in(self):
        self.assertIn("cannot open shared object file", self.call("outer").stderr)
        self.assertEqual(self.make().returncode, 0)
        self.assertEqual(self.listed(), ["libcufft.so.99", "libcufile.so.99", "libcusparse.so.99", "libcusparseLt.so.99"])
        self.assertEqual(self.call("call_cublasCreate").stdout, "7\n")

    def test_a_call_ends_the_process_and_names_the_function_the_library_and_the_remedy(self):
        self.make()
        for function, library in (("cufftCreate", "libcufft.so.99"), ("cusparseCreate", "libcusparse.so.99"),
                                  ("cusparseLtInit", "libcusparseLt.so.99")):  # fmt: skip
            done = self.call(f"call_{function}")
            self.assertEqual(done.returncode, -signal.SIGABRT)
            self.assertRegex(done.stderr, f"{function} was called, a function of {library}, .*`scripts/setup.sh cuda-full` fetches")

    def test_a_stand_in_has_the_functions_that_are_taken_and_their_versions(self):
        self.make()
        symbols = subprocess.run(["nm", "-D", "--defined-only", self.lib / "libcufft.so.99"], capture_output=True, text=True).stdout
        self.assertIn("cufftCreate@@libcufft.so.99", symbols)
        self.assertNotIn("cufftUnused", symbols)

    def test_a_library_that_training_calls_has_none(self):
        (self.cuda / "libcublas.so.99").unlink()
        self.make()
        self.assertNotIn("libcublas.so.99", self.listed())
        self.assertIn("libcublas.so.99: cannot open", self.call("outer").stderr)

    def test_a_library_that_is_there_is_used_and_its_stand_in_removed(self):
        self.make()
        self.restore("libcufft.so.99")
        self.assertEqual(self.call("outer").stdout, "7\n")
        self.assertEqual(self.make().returncode, 0)
        self.assertFalse((self.lib / "libcufft.so.99").exists())
        self.assertNotIn("libcufft.so.99", self.listed())
        self.assertTrue((self.lib / "libcufile.so.99").exists())

    def test_a_second_run_makes_the_same(self):
        self.make()
        before = self.listed()
        self.assertEqual(self.make().returncode, 0)
        self.assertEqual(self.listed(), before)

    def test_a_folder_without_libtorch_cuda_is_refused(self):
        (self.lib / "libtorch_cuda.so").unlink()
        done = self.make()
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no libtorch_cuda.so", done.stderr)


if __name__ == "__main__":
    unittest.main()
