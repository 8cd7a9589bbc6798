# SPDX-License-Identifier: Apache-2.0
"""Runs scripts/setup.sh with a stub of apt-get: it installs the expected packages and never removes one."""
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "torch").mkdir()
        (self.folder / "torch/version.py").write_text("")
        (self.folder / "pyarrow/include/arrow").mkdir(parents=True)
        self.environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "STEPFORGE_TORCH": f"{self.folder}/torch",
                            "STEPFORGE_ARROW": f"{self.folder}/pyarrow", "STEPFORGE_OS_RELEASE": f"{self.folder}/os-release",
                            "XDG_CACHE_HOME": f"{self.folder}/cache"}  # fmt: skip
        self.write_tool("id", "echo 0")
        self.write_tool("dpkg-query", "exit 1")
        self.write_tool("apt-get", f'echo "$@" >>{self.folder}/calls')
        self.use_system("debian", "12", "Debian GNU/Linux 12 (bookworm)")

    def write_tool(self, name, body):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def use_system(self, name, version, title):
        (self.folder / "os-release").write_text(f'ID={name}\nVERSION_ID="{version}"\nPRETTY_NAME="{title}"\n')

    def run_setup(self, *arguments, script="setup"):
        return subprocess.run([ROOT / f"scripts/{script}.sh", *arguments], env=self.environment, capture_output=True, text=True)

    def apt_calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def test_it_installs_without_removing_packages_and_announces_them(self):
        done = self.run_setup("demo")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Installing Debian packages with apt-get: bible-kjv bible-kjv-text", done.stdout)
        self.assertEqual(self.apt_calls()[1], "install -y -qq --no-install-recommends --no-remove bible-kjv bible-kjv-text")

    def test_the_build_needs_no_package_of_lint_or_demo(self):
        self.assertEqual(self.run_setup("build").returncode, 0)
        for word in ("clang", "libomp", "bible"):
            self.assertNotIn(word, self.apt_calls()[1])

    def test_no_group_asks_for_openmp_of_clang(self):
        self.assertEqual(self.run_setup("build", "lint", "clang", "demo").returncode, 0)
        self.assertNotIn("libomp", self.apt_calls()[1])

    def test_a_check_installs_nothing_and_names_the_remedy(self):
        done = self.run_setup("--check", "build")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"missing: .*libgtest-dev.*run `make setup`")
        self.assertEqual(self.apt_calls(), [])

    def test_a_folder_without_arrow_is_refused_by_name(self):
        (self.folder / "pyarrow/include/arrow").rmdir()
        done = self.run_setup("demo")
        self.assertEqual(done.returncode, 1)
        self.assertIn("pyarrow has no include/arrow: set it to the 'pyarrow' folder", done.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_without_a_network_only_the_reader_of_parquet_is_left_out(self):
        self.write_tool("python3", "exit 1")
        del self.environment["STEPFORGE_ARROW"]
        done = self.run_setup("demo")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the build goes on without the reader of Parquet and Arrow files", done.stdout)
        self.assertFalse(list(self.folder.glob("cache/**/.complete")))
        del self.environment["STEPFORGE_TORCH"]
        done = self.run_setup("demo")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "libtorch .* could not be downloaded")

    def test_a_wheel_that_cannot_be_unpacked_stops_the_setup(self):
        del self.environment["STEPFORGE_ARROW"]
        self.write_tool("python3", 'while [ "$1" != -d ]; do shift; done; touch "$2/pyarrow.whl"')
        self.write_tool("unzip", "echo no space left >&2; exit 50")
        done = self.run_setup("demo")
        self.assertEqual(done.returncode, 50)
        self.assertIn("no space left", done.stderr)
        self.assertFalse(list(self.folder.glob("cache/**/.complete")))

    def use_private_libtorch(self):
        """It is there, and its wheels of CUDA have one library."""
        del self.environment["STEPFORGE_TORCH"]
        home = self.folder / "cache/stepforge/torch-2.11.0"
        (home / "torch/lib").mkdir(parents=True)
        (home / ".complete").touch()
        self.write_tool("python3", f'''echo "$@" >>{self.folder}/python_calls
[ "$1" = -m ] || {{ flock --nonblock {home}.lock true && touch {self.folder}/unlocked; exit 0; }}
while [ "$1" != -d ]; do shift; done; touch "$2/nccl.whl"''')
        self.write_tool("unzip", 'while [ "$1" != -d ]; do shift; done; mkdir -p "$2/nvidia/nccl/lib"; touch "$2/nvidia/nccl/lib/libnccl.so.2"')
        return home

    def python_calls(self):
        return (self.folder / "python_calls").read_text()

    def test_libraries_of_cuda_go_to_where_libtorch_looks_and_are_downloaded_once(self):
        home = self.use_private_libtorch()
        done = self.run_setup("cuda")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((home / "nvidia/nccl/lib/libnccl.so.2").exists())
        self.assertEqual(list(self.folder.glob("cache/**/*.partial")), [])
        self.assertEqual(self.python_calls().count("scripts/cuda-wheels.txt"), 1)
        self.assertEqual(self.python_calls().count(f"cuda_stubs.py {home}/torch/lib"), 1)
        self.run_setup("cuda")
        self.assertEqual(self.python_calls().count("scripts/cuda-wheels.txt"), 1)
        self.assertFalse((self.folder / "unlocked").exists(), "another setup could write stand-ins at the same time")
        self.run_setup("cuda-full")
        self.assertEqual(self.python_calls().count("scripts/cuda-wheels.txt"), 1)
        self.assertEqual(self.python_calls().count("scripts/cuda-full-wheels.txt"), 1)

    def test_a_small_disk_stops_the_download_of_cuda(self):
        home = self.use_private_libtorch()
        self.write_tool("df", "echo Avail; echo 2")
        done = self.run_setup("cuda")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "need 3 GiB of disk .* has 2: make room")
        self.assertFalse((home / ".cuda").exists())

    def test_nothing_is_added_to_a_pytorch_of_the_users(self):
        before = sorted(self.folder.glob("torch/**/*"))
        done = self.run_setup("cuda-full")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Nothing is added to", done.stdout)
        self.assertEqual(sorted(self.folder.glob("torch/**/*")), before)

    def test_a_build_installs_nothing(self):
        done = self.run_setup(script="build")
        self.assertEqual(done.returncode, 1)
        self.assertIn("run `make setup`", done.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_on_another_system_one_line_names_the_dockerfile(self):
        self.use_system("ubuntu", "22.04", "Ubuntu 22.04.5 LTS")
        done = self.run_setup("build")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("only Debian 12 is set up automatically, and this is Ubuntu 22.04.5 LTS: use the Dockerfile", done.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_a_conflict_leaves_the_users_packages_and_says_so(self):
        self.write_tool("apt-get", '[ "$1" = update ] || exit 100')
        done = self.run_setup("demo")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing was removed", done.stderr)


if __name__ == "__main__":
    unittest.main()
