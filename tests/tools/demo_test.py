# SPDX-License-Identifier: Apache-2.0
"""Runs scripts/demo.sh with a stub of the program: it creates the expected runs and deletes none."""
import shutil
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Trains until it is killed, then to the end; exports a folder.
PROGRAM = """#!/bin/sh
case $1 in
  train)
    run=$(sed -n 's/^run_dir = "\\(.*\\)"/\\1/p' "$2")
    mkdir -p "$run"
    if [ -e "$run/metrics.jsonl" ]; then exit 0; fi
    echo '{"step":1000}' >"$run/metrics.jsonl"
    exec sleep 60 ;;
  export) mkdir -p "$3"; echo weights >"$3/model" ;;
esac
"""


class Demo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name, text in {"scripts/setup.sh": "#!/bin/sh\n", "scripts/build.sh": "#!/bin/sh\n", "build/release/stepforge": PROGRAM}.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)

    def demo(self, name, text):
        (self.root / name).write_text(text)
        done = subprocess.run(["scripts/demo.sh", name], cwd=self.root, capture_output=True, text=True)
        return done, self.root / "runs"

    def test_each_text_has_its_own_run_and_configuration(self):
        for name in ("my book.txt", "letters.txt"):
            done, runs = self.demo(name, "A line of text.\n" * 4000)
            self.assertEqual(done.returncode, 0, done.stderr)
        for run in ("demo-my-book", "demo-letters"):
            self.assertTrue((runs / run / "export/model").exists())
            self.assertEqual(tomllib.loads((runs / f"{run}.toml").read_text())["run_dir"], f"runs/{run}")

    def test_a_run_of_the_same_text_is_moved_aside(self):
        for _ in range(2):
            done, runs = self.demo("a.txt", "A line of text.\n" * 4000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((runs / "demo-a/export/model").exists())
        self.assertEqual(len(list(runs.glob("demo-a-before-*/export/model"))), 1)

    def test_a_short_text_is_validated_on_a_larger_share(self):
        done, runs = self.demo("a.txt", "A paragraph of text.\n\n" * 4000)
        config = tomllib.loads((runs / "demo-a.toml").read_text())
        self.assertEqual(config["data"]["document"], "paragraph")
        self.assertAlmostEqual(config["data"]["validation_fraction"], 20000 / 88000, delta=0.03)
        self.assertEqual(config["training"]["steps"], 214)
        self.assertEqual(config["validation"]["freq"], 53)

    def test_a_text_of_one_line_is_not_validated_and_a_message_says_so(self):
        done, runs = self.demo("a.txt", "word " * 10000)
        self.assertIn("No validation", done.stdout)
        self.assertEqual(tomllib.loads((runs / "demo-a.toml").read_text())["validation"]["freq"], 0)

    def test_a_text_that_is_too_short_is_refused(self):
        done, _ = self.demo("a.txt", "word " * 100)
        self.assertEqual(done.returncode, 1)
        self.assertIn("too short to learn from: 500 bytes", done.stderr)


if __name__ == "__main__":
    unittest.main()
