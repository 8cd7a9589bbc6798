# SPDX-License-Identifier: Apache-2.0
"""What a check of tools/lint says of a tree with a single file."""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools/lint"))
sys.dont_write_bytecode = True
from check_rooms import ROOMS_FILE, Rooms, Tree, below  # noqa: E402


def faults_of(check, path, text):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(text)
        tree = Tree(root, below(root), Rooms(ROOMS_FILE))
        check(tree)
        return [f"{path}:{line}: {message}" for path, line, message in tree.faults]
